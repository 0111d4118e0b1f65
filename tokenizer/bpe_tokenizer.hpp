// Normalise, find added tokens, pre-tokenize, merge: the pipeline of tokenizer.json, and of GGUF vocabularies put into its terms.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "tokenizer/bpe.hpp"
#include "tokenizer/normalizer.hpp"
#include "tokenizer/pre_tokenizer.hpp"
#include "tokenizer/token_table.hpp"

namespace troupe {

struct bpe_tokenizer_parts {
  token_table_parts table;
  std::vector<bool> in_model; // by id: an ordinary token of the model (added ones are not, control tokens never)
  normalizer_list normalizers;
  pre_tokenizer_list pre_tokenizers;
  std::vector<merge_rule> merges;
  bpe_options model; // `bytes` is set from pre_tokenizers
};

class bpe_tokenizer final : public token_table {
 public:
  explicit bpe_tokenizer(bpe_tokenizer_parts parts);

 private:
  struct model_part;
  struct encode_state;
  bpe_tokenizer(std::shared_ptr<const model_part> model, bpe_tokenizer_parts&& parts);
  static std::shared_ptr<const model_part> build_model(const bpe_tokenizer_parts& parts);

  void encode_text(std::string_view text, const encode_options& options, std::vector<token_id>& out) const override;
  void encode_segment(std::string_view segment, bool first, encode_state& state) const;
  void encode_plain(const piece& text, encode_state& state) const;
  void encode_word(std::string_view word, encode_state& state) const;
  void encode_whole_word(std::string_view word, encode_state& state) const;

  normalizer_list normalizers_;
  pre_tokenizer_list pre_tokenizers_;
  std::shared_ptr<const model_part> model_;
  added_token_finder raw_finder_;        // in the text as it came
  added_token_finder normalized_finder_; // in normalised text
};

} // namespace troupe
