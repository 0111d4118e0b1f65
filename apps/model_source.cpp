#include "apps/model_source.hpp"

#include <spdlog/spdlog.h>

#include <algorithm>
#include <filesystem>

#include "apps/device_choice.hpp"
#include "apps/number_tokenizer.hpp"
#include "core/error.hpp"

namespace troupe::apps {

namespace {

// Of dummy weights, which may come as a config alone.
bool lacks_text(const checkpoint& source) {
  if (source.format() == checkpoint_format::gguf) return false;
  const auto has = [&](const char* file) { return std::filesystem::exists(source.path() / file); };
  return source.tensors().empty() && !has("tokenizer.json") && !has("tokenizer.model");
}

std::shared_ptr<const checkpoint> open_model(const engine_options& options, const std::filesystem::path& path) {
  return options.load_format == "dummy" ? open_checkpoint_without_weights(path) : open_checkpoint(path);
}

std::shared_ptr<const tokenizer> load_tokens(const checkpoint& source) {
  if (lacks_text(source)) return std::make_shared<const number_tokenizer>(source.config().vocab_size);
  const bool gguf = source.format() == checkpoint_format::gguf;
  return gguf ? tokenizer_from_gguf(source.metadata(), source.path().string()) : load_tokenizer(source.path());
}

// Drafts are token ids: they must mean the same to both models.
void check_same_vocabulary(const std::string& draft, const tokenizer& its, const tokenizer& targets) {
  const std::string what = "--speculative-draft-model " + draft + ": ";
  if (its.vocab_size() != targets.vocab_size()) {
    throw load_error(what + "its vocabulary has " + std::to_string(its.vocab_size()) + " tokens and the model's " +
                     std::to_string(targets.vocab_size()));
  }
  for (token_id id = 0; id < its.vocab_size(); ++id) {
    if (its.token_bytes(id) != targets.token_bytes(id)) {
      throw load_error(what + "token " + std::to_string(id) + " is \"" + its.token_bytes(id) + "\" and the model's is \"" +
                       targets.token_bytes(id) + "\"");
    }
  }
}

} // namespace

device_types types_on_device(const engine_options& options, const checkpoint& source) {
  dtype stored = parse_type(options.dummy_type);
  if (options.load_format != "dummy") {
    const auto is_query = [](const stored_tensor& t) { // of the first layer, in either format
      return t.name == "model.layers.0.self_attn.q_proj.weight" || t.name == "blk.0.attn_q.weight";
    };
    const auto query = std::find_if(source.tensors().begin(), source.tensors().end(), is_query);
    stored = query != source.tensors().end() && query->type ? *query->type : dtype::bf16;
  }
  device_types types;
  if (choose_device(options, source.config()).gpu) { // one type for all that it holds
    const std::string& asked = options.dtype != "auto" ? options.dtype : options.kv_cache_dtype;
    const bool dummy = options.load_format == "dummy"; // made on the device, as bf16 unless asked otherwise
    types.kv = asked != "auto" ? parse_type(asked) : stored == dtype::f16 && !dummy ? dtype::f16 : dtype::bf16;
    types.weights = types.kv;
    return types;
  }
  if (options.load_format == "dummy") types.weights = stored;
  types.kv = stored == dtype::f32 || stored == dtype::bf16 ? stored : dtype::f16;
  if (options.kv_cache_dtype != "auto") types.kv = parse_type(options.kv_cache_dtype);
  return types;
}

std::shared_ptr<const checkpoint> open_source(const engine_options& options) { return open_model(options, options.model); }

std::shared_ptr<const checkpoint> open_draft_model(const engine_options& options, const tokenizer& tokens) {
  if (options.draft_model.empty()) return nullptr;
  auto draft = open_model(options, options.draft_model);
  check_same_vocabulary(options.draft_model.string(), *load_tokens(*draft), tokens);
  if (draft->config().vocab_size < tokens.vocab_size()) {
    throw load_error(options.draft_model.string() + ": scores " + std::to_string(draft->config().vocab_size) + " ids, the tokenizer has " +
                     std::to_string(tokens.vocab_size()));
  }
  return draft;
}

text_side load_text_side(const checkpoint& source) {
  const bool gguf = source.format() == checkpoint_format::gguf;
  const std::string name = source.path().string();
  text_side side;
  side.tokens = load_tokens(source);
  if (lacks_text(source)) {
    spdlog::warn("{}: no tokenizer; texts of dummy weights are numbers", name);
    side.eos_tokens = source.config().eos_tokens;
    return side;
  }
  if (auto found = gguf ? find_chat_template(source.metadata()) : find_chat_template(source.path())) {
    side.templates = std::make_shared<const chat_template>(found->text, name + ": chat template");
    side.bos_token = found->bos_token;
    side.eos_token = found->eos_token;
  }
  side.eos_tokens = source.config().eos_tokens;
  for (token_id id : side.tokens->eos()) {
    if (std::find(side.eos_tokens.begin(), side.eos_tokens.end(), id) == side.eos_tokens.end()) side.eos_tokens.push_back(id);
  }
  return side;
}

std::shared_ptr<const model_weights> load_weights(const engine_options& options, const checkpoint& source) {
  return std::make_shared<const model_weights>(
      options.load_format == "dummy" ? plan_dummy_weights(source.config(), parse_type(options.dummy_type), 1) : source.load());
}

} // namespace troupe::apps
