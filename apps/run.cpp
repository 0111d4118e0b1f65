// troupe run: one prompt through the whole serving side, streamed to the terminal.
#include <spdlog/spdlog.h>
#include <unistd.h>
#include <CLI/CLI.hpp>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <future>
#include <mutex>
#include <stdexcept>

#include "apps/commands.hpp"
#include "apps/compare_layers.hpp"
#include "apps/engine.hpp"
#include "apps/tracing.hpp"
#include "core/json.hpp"

namespace troupe::apps {

namespace {

struct run_options {
  engine_options engine;
  std::string prompt;
  std::string system;
  bool raw = false;
  std::int32_t max_tokens = 256;
  float temperature = 0.0F;
  std::optional<std::uint64_t> seed;
  std::string trace_file;
  std::string compare_layers; // empty: answer the prompt
};

class terminal_sink : public token_sink {
 public:
  void on_prompt(const prompt_report&) override {}
  void on_output(const output_chunk& chunk) override {
    std::fwrite(chunk.text.data(), 1, chunk.text.size(), stdout);
    std::fflush(stdout);
  }
  void on_finished(const usage_report& usage) override { end(usage, std::nullopt); }
  void on_error(const error& failure) override { end({}, failure); }

  // Blocks until the request ended; the error, if it was one.
  std::optional<error> wait(usage_report& usage) {
    std::unique_lock lock(guard_);
    changed_.wait(lock, [&] { return done_; });
    usage = usage_;
    return failure_;
  }

 private:
  void end(const usage_report& usage, std::optional<error> failure) {
    std::lock_guard lock(guard_);
    usage_ = usage;
    failure_ = std::move(failure);
    done_ = true;
    changed_.notify_all();
  }

  std::mutex guard_;
  std::condition_variable changed_;
  bool done_ = false;
  usage_report usage_;
  std::optional<error> failure_;
};

prompt make_prompt(const run_options& o, bool has_template) {
  if (o.raw || !has_template) return o.prompt;
  value_array messages;
  auto add = [&](const char* role, const std::string& content) {
    value_object message;
    message.set("role", role);
    message.set("content", content);
    messages.emplace_back(std::move(message));
  };
  if (!o.system.empty()) add("system", o.system);
  add("user", o.prompt);
  chat_prompt chat;
  chat.messages_json = json::dump(value(std::move(messages)));
  return chat;
}

// What is left of the context beside the prompt, at most what was asked for.
std::int32_t token_limit(const run_options& o, request_handler& engine, const prompt& input) {
  std::promise<std::int64_t> counted;
  engine.tokenize({input, true},
                  [&](result<tokenize_reply> reply) { counted.set_value(reply ? static_cast<std::int64_t>(reply->tokens.size()) : 0); });
  const std::int64_t left = engine.model().max_model_len - counted.get_future().get();
  return static_cast<std::int32_t>(std::clamp<std::int64_t>(left, 1, o.max_tokens)); // none left: the engine says so
}

int run(const run_options& o) {
  if (o.raw && !o.system.empty()) throw std::invalid_argument("--system: there is no system message with --raw");
  if (!o.compare_layers.empty()) return compare_layers(o.engine, o.prompt, o.compare_layers);
  auto metrics = make_metrics(o.engine);
  const auto timeline = open_trace(o.trace_file, shape_of(o.engine));
  auto engine = start_engine(o.engine, metrics, timeline);
  generation_request request;
  request.id = 1;
  request.model = engine->model().names.front();
  request.prompts = {make_prompt(o, engine->model().has_chat_template)};
  request.max_tokens = token_limit(o, *engine, request.prompts.front());
  request.sampling.temperature = o.temperature;
  request.seed = o.seed;
  auto sink = std::make_shared<terminal_sink>();
  const auto start = std::chrono::steady_clock::now();
  engine->submit(std::move(request), sink);
  usage_report usage;
  const auto failure = sink->wait(usage);
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  engine->stop();
  if (timeline) spdlog::info("trace: {}", timeline->describe());
  if (failure) {
    std::fprintf(stderr, "troupe run: %s\n", failure->message.c_str());
    return 1;
  }
  std::fputc('\n', stdout);
  if (isatty(STDERR_FILENO)) {
    std::fprintf(stderr, "[%lld prompt + %lld generated tokens in %.2f s]\n", static_cast<long long>(usage.prompt_tokens),
                 static_cast<long long>(usage.completion_tokens), seconds);
  }
  return 0;
}

} // namespace

void add_run(CLI::App& app, int& exit_code) {
  auto options = std::make_shared<run_options>();
  CLI::App* command = app.add_subcommand("run", "Answer one prompt on the terminal");
  add_engine_flags(*command, options->engine);
  command->add_option("prompt", options->prompt, "the prompt")->required();
  command->add_option("--system", options->system, "system message of the chat");
  command->add_flag("--raw", options->raw, "continue the text instead of answering a chat message");
  command->add_option("--max-tokens", options->max_tokens, "tokens to generate at most")->check(CLI::PositiveNumber)->capture_default_str();
  command->add_option("--temperature", options->temperature, "0 is greedy")->check(CLI::Range(0.0, 100.0))->capture_default_str();
  command->add_option("--seed", options->seed, "seed of the draws (default: a random one)");
  add_trace_flag(*command, options->trace_file);
  command
      ->add_option(
          "--compare-layers", options->compare_layers,
          "instead of answering, run the prompt's tokens two ways and report the layer where they part: fused (decode steps against "
          "the GPU's plain path), prefill (one step against it) or cpu (the plain path against the CPU)")
      ->check(CLI::IsMember({"fused", "prefill", "cpu"}));
  command->callback([options, &exit_code] { exit_code = run(*options); });
}

} // namespace troupe::apps
