// A request_handler with no model: answers with words of the prompt, one token a word, at a set pace, and honours what clients can see
// (limits, stop strings, n, logprobs, echo, cancel, refusals). For tests of the HTTP side.
#pragma once

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "core/json.hpp"
#include "core/service.hpp"

namespace troupe::testing {

// Splits behind each blank, so that the joined words are the text.
inline std::vector<std::string> words_of(const std::string& text) {
  std::vector<std::string> out;
  std::string word;
  for (char c : text) {
    word += c;
    if (c == ' ') out.push_back(std::exchange(word, ""));
  }
  if (!word.empty()) out.push_back(word);
  return out;
}

inline std::string text_of(const prompt& item) {
  if (const auto* text = std::get_if<std::string>(&item)) return *text;
  if (const auto* tokens = std::get_if<token_prompt>(&item)) {
    std::string out;
    for (token_id id : *tokens) out += "t" + std::to_string(id) + " ";
    return out;
  }
  const auto messages = json::parse(std::get<chat_prompt>(item).messages_json);
  return messages.value().as_array().back().find("content")->as_string();
}

class echo_handler : public request_handler {
 public:
  explicit echo_handler(std::chrono::milliseconds pace = std::chrono::milliseconds(0)) : pace_(pace) {
    model_.names = {"echo", "org/echo-alias"};
    model_.max_model_len = 4096;
    model_.vocab_size = 1000;
    model_.created = 1700000000;
    model_.has_chat_template = true;
  }
  ~echo_handler() override {
    stopping_ = true;
    std::vector<std::thread> threads;
    {
      const std::lock_guard guard(lock_);
      threads.swap(threads_);
    }
    for (std::thread& t : threads) t.join();
  }

  void submit(generation_request request, std::shared_ptr<token_sink> sink) override {
    auto cancelled = std::make_shared<std::atomic<bool>>(false);
    const std::lock_guard guard(lock_);
    cancelled_[request.id] = cancelled;
    threads_.emplace_back([this, cancelled, request = std::move(request), sink = std::move(sink)] { serve(request, *sink, *cancelled); });
  }
  void cancel(request_id id) override {
    const std::lock_guard guard(lock_);
    if (const auto it = cancelled_.find(id); it != cancelled_.end() && !it->second->exchange(true)) ++cancels_;
  }
  void tokenize(tokenize_request request, std::function<void(result<tokenize_reply>)> reply) override {
    tokenize_reply out;
    out.token_bytes = words_of(text_of(request.input));
    for (std::size_t i = 0; i < out.token_bytes.size(); ++i) out.tokens.push_back(static_cast<token_id>(i));
    out.max_model_len = model_.max_model_len;
    reply(std::move(out));
  }
  void detokenize(std::vector<token_id> tokens, std::function<void(result<std::string>)> reply) override { reply(text_of(prompt(tokens))); }
  service_status status() const override { return {true, true, false, ""}; }
  const served_model& model() const override { return model_; }

  int cancels() const { return cancels_; }

 private:
  struct choice {
    std::int32_t index = 0;
    std::vector<std::string> words;
    std::string text;
    std::size_t next = 0;
    bool done = false;
  };

  static position_logprobs scored(const std::string& word, const generation_request& request) {
    position_logprobs out{{1, -0.5F, word}, {}};
    for (std::int32_t i = 0; i < request.sampling.top_logprobs.value_or(0); ++i) {
      out.top.push_back({i + 1, -0.5F - static_cast<float>(i), i == 0 ? word : "other" + std::to_string(i)});
    }
    return out;
  }

  static void report_prompt(const generation_request& request, token_sink& sink, std::size_t p) {
    prompt_report report;
    report.prompt_index = static_cast<std::int32_t>(p);
    report.text = text_of(request.prompts[p]);
    report.token_bytes = words_of(report.text);
    for (std::size_t i = 0; i < report.token_bytes.size(); ++i) {
      report.tokens.push_back(static_cast<token_id>(i));
      if (!request.prompt_logprobs) continue;
      report.logprobs.push_back(i == 0 ? std::nullopt : std::optional(scored(report.token_bytes[i], request)));
    }
    sink.on_prompt(report);
  }

  // One token of one choice; the text stops before a stop string (which these words hold whole).
  static output_chunk step(choice& c, const generation_request& request) {
    output_chunk out;
    out.index = c.index;
    const std::string word = c.words[c.next % c.words.size()];
    ++c.next;
    out.text = word;
    out.tokens = {1};
    if (request.sampling.top_logprobs) out.logprobs.push_back(scored(word, request));
    for (const std::string& stop : request.stop_strings) {
      const auto at = out.text.find(stop);
      if (at == std::string::npos) continue;
      out.text.resize(request.include_stop_string ? at + stop.size() : at);
      out.finish = finish_reason::stop;
      out.stop_reason = stop;
    }
    if (!out.finish && request.max_tokens && c.next >= static_cast<std::size_t>(*request.max_tokens)) out.finish = finish_reason::length;
    if (!out.finish && !request.max_tokens && c.next >= c.words.size()) out.finish = finish_reason::stop;
    c.done = out.finish.has_value();
    return out;
  }

  // Special prompts: "!refuse" is a 400 from the serving side, "!overload" a 429, "!break" fails after three tokens.
  void serve(const generation_request& request, token_sink& sink, std::atomic<bool>& cancelled) {
    const std::string first = text_of(request.prompts[0]);
    if (first == "!refuse") return sink.on_error(invalid_request("messages", "the template says: no"));
    if (first == "!overload") return sink.on_error({error_kind::overloaded, "the queue is full", "", 7});
    usage_report usage;
    std::vector<choice> choices;
    for (std::size_t p = 0; p < request.prompts.size(); ++p) {
      if (request.echo) report_prompt(request, sink, p);
      const auto words = words_of(text_of(request.prompts[p]));
      usage.prompt_tokens += static_cast<std::int64_t>(words.size());
      for (std::int32_t i = 0; i < request.n; ++i) {
        choices.push_back(
            {static_cast<std::int32_t>(p) * request.n + i, words.empty() ? std::vector<std::string>{"? "} : words, "", 0, false});
      }
    }
    if (request.max_tokens != 0) {
      bool more = true;
      for (int round = 0; more; ++round) {
        more = false;
        if (pace_.count() > 0) std::this_thread::sleep_for(pace_);
        if (cancelled || stopping_) return sink.on_error({error_kind::cancelled, "cancelled", "", std::nullopt});
        if (first == "!break" && round == 3) return sink.on_error({error_kind::internal, "the device broke", "", std::nullopt});
        for (choice& c : choices) {
          if (c.done) continue;
          sink.on_output(step(c, request));
          ++usage.completion_tokens;
          more = more || !c.done;
        }
      }
    } else {
      for (choice& c : choices) {
        output_chunk last;
        last.index = c.index;
        last.finish = finish_reason::length;
        sink.on_output(last);
      }
    }
    sink.on_finished(usage);
  }

  const std::chrono::milliseconds pace_;
  served_model model_;
  std::atomic<bool> stopping_{false};
  std::atomic<int> cancels_{0};
  std::mutex lock_;
  std::map<request_id, std::shared_ptr<std::atomic<bool>>> cancelled_;
  std::vector<std::thread> threads_;
};

} // namespace troupe::testing
