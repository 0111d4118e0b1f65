// Byte-pair encoding of one word: start from characters (or bytes), then apply the merge of lowest rank, leftmost first, until none
// applies. Long words take O(n log n).
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <string_view>
#include <vector>

#include "core/ids.hpp"
#include "tokenizer/vocabulary.hpp"

namespace troupe {

struct merge_rule { // its rank is its index
  token_id left = 0;
  token_id right = 0;
  token_id merged = 0;
};

struct bpe_options {
  bool bytes = false;          // words are bytes, and index texts are bytes; else both are UTF-8 characters
  bool byte_fallback = false;  // an unknown character becomes its bytes' tokens "<0xHH>", when all are there
  bool fuse_unk = false;       // neighbouring unknown characters become one unknown token
  bool ignore_merges = false;  // a word that is a token is that token
  std::optional<token_id> unk; // none: unknown characters vanish
};

// Pair of ids -> (rank, merged id).
class merge_table {
 public:
  explicit merge_table(const std::vector<merge_rule>& merges);

  struct rule {
    std::uint32_t rank = no_rank;
    token_id merged = 0;
  };
  static constexpr std::uint32_t no_rank = UINT32_MAX;
  rule find(token_id left, token_id right) const;

 private:
  struct slot {
    std::uint64_t key = no_key;
    rule value;
  };
  static constexpr std::uint64_t no_key = UINT64_MAX;
  static std::size_t hash_of(std::uint64_t key);

  std::vector<slot> slots_; // power of two, at most half full
};

class bpe_model {
 public:
  // `index` finds token texts and outlives this. Later rules for the same pair replace earlier ones, as in Hugging Face's loader.
  bpe_model(const text_index& index, const std::vector<merge_rule>& merges, const bpe_options& options);

  struct workspace;
  // Working memory for one encode call: reused between words, one thread at a time.
  static std::shared_ptr<workspace> make_workspace();

  // Appends the word's tokens.
  void encode(std::string_view word, workspace& work, std::vector<token_id>& out) const;

 private:
  void first_symbols(std::string_view word, std::vector<token_id>& symbols) const;
  bool push_fallback(std::string_view character, std::vector<token_id>& symbols) const;
  void merge_short(std::vector<token_id>& symbols, workspace& work) const;
  void merge_long(std::vector<token_id>& symbols, workspace& work) const;

  const text_index& index_;
  merge_table merges_;
  bpe_options options_;
  static constexpr token_id none = -1;
  std::array<token_id, 256> byte_ids_{};  // of one byte (bytes) or of "<0xHH>" (byte_fallback)
  std::array<token_id, 128> ascii_ids_{}; // of one ASCII character
};

} // namespace troupe
