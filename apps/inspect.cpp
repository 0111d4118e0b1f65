// troupe inspect: what a checkpoint holds and what memory it needs. Reads headers only.
#include "models/inspect.hpp"

#include <CLI/CLI.hpp>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <string>

#include "apps/commands.hpp"
#include "apps/engine_options.hpp"
#include "core/json.hpp"
#include "models/checkpoint.hpp"

namespace troupe::apps {

namespace {

struct options {
  std::filesystem::path model;
  inspect_options shown;
  std::string kv_type = "f16";
  bool as_json = false;
};

int inspect(options& o) {
  o.shown.kv_type = parse_type(o.kv_type);
  const auto source = open_checkpoint(o.model);
  const std::string text =
      o.as_json ? json::dump(describe_checkpoint_json(*source, o.shown)) + "\n" : describe_checkpoint(*source, o.shown);
  std::fputs(text.c_str(), stdout);
  return 0;
}

} // namespace

void add_inspect(CLI::App& app, int& exit_code) {
  auto o = std::make_shared<options>();
  CLI::App* command = app.add_subcommand("inspect", "Say what a checkpoint holds and what memory it needs");
  command->add_option("model", o->model, "Hugging Face folder or .gguf file")->required()->check(CLI::ExistingPath);
  command->add_option("--max-model-len", o->shown.context, "context to plan for (default: the model's)")->check(CLI::PositiveNumber);
  command->add_option("--max-num-seqs", o->shown.sequences, "sequences to plan for")->check(CLI::PositiveNumber)->capture_default_str();
  command->add_option("--kv-cache-dtype", o->kv_type, "f32, f16 or bf16")
      ->check(CLI::IsMember({"f32", "f16", "bf16"}))
      ->capture_default_str();
  command->add_flag("--tensors", o->shown.list_tensors, "list every stored tensor");
  command->add_flag("--json", o->as_json, "print JSON");
  command->callback([o, &exit_code] { exit_code = inspect(*o); });
}

} // namespace troupe::apps
