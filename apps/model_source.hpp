// What the flags name of a model: its checkpoint, weights, tokenizer and chat template.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "apps/engine_options.hpp"
#include "models/checkpoint.hpp"
#include "tokenizer/chat_template.hpp"
#include "tokenizer/tokenizer.hpp"

namespace troupe::apps {

// What a checkpoint says about text. Loading it is cheap; weights are loaded where the device lives.
struct text_side {
  std::shared_ptr<const tokenizer> tokens;
  std::shared_ptr<const chat_template> templates; // null when the checkpoint has none
  std::string bos_token;
  std::string eos_token;
  std::vector<token_id> eos_tokens; // the config's, the generation config's and the tokenizer's
};

// The model that the flags name; with --load-format dummy its config and tokenizer alone will do. Throws load_error.
std::shared_ptr<const checkpoint> open_source(const engine_options& options);

// All of its weights, or with --load-format dummy the plan of random ones. Throws load_error.
std::shared_ptr<const model_weights> load_weights(const engine_options& options, const checkpoint& source);

// Dummy weights without a tokenizer's files get one of numbers (apps/number_tokenizer.hpp). Throws load_error.
text_side load_text_side(const checkpoint& source);

// The draft model that the flags name, or null. Throws load_error when its tokens are not those of `tokens`.
std::shared_ptr<const checkpoint> open_draft_model(const engine_options& options, const tokenizer& tokens);

// How the device will hold weights and KV. `weights` none: each matrix as it is stored.
struct device_types {
  std::optional<dtype> weights;
  dtype kv = dtype::bf16;
};
device_types types_on_device(const engine_options& options, const checkpoint& source);

} // namespace troupe::apps
