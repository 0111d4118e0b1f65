#include "tokenizer/scored_pieces.hpp"

#include <algorithm>
#include <tuple>

#include "core/error.hpp"
#include "tokenizer/utf8.hpp"

namespace troupe {
namespace {

constexpr std::string_view word_mark = "\xE2\x96\x81"; // U+2581
constexpr std::size_t max_piece_bytes = 512;

struct scored_merge {
  merge_rule rule;
  float score;
  std::size_t left_length, right_length; // characters
};

// Appends every way to make the piece out of two others, by ascending ids.
void split_piece(token_id id, std::string_view text, float score, const text_index& index, std::vector<scored_merge>& merges) {
  const std::size_t first = merges.size();
  const std::size_t characters = utf8::length(text);
  std::size_t at = 0;
  for (std::size_t length = 1; length < characters; ++length) {
    at += utf8::read_valid(text, at).size;
    const auto left = index.find(text.substr(0, at));
    if (!left) continue;
    const auto right = index.find(text.substr(at));
    if (right) merges.push_back({{*left, *right, id}, score, length, characters - length});
  }
  std::sort(merges.begin() + static_cast<std::ptrdiff_t>(first), merges.end(), [](const scored_merge& a, const scored_merge& b) {
    return std::tuple(a.rule.left, a.rule.right) < std::tuple(b.rule.left, b.rule.right);
  });
}

// Best score first: that is what merging neighbours by score amounts to. Ties as in Hugging Face's converter: the longer left part,
// then the longer right part, first.
std::vector<merge_rule> merges_by_score(const std::vector<piece_kind>& kinds, const std::vector<float>& scores,
                                        const bpe_tokenizer_parts& parts, const std::string& where) {
  const auto& texts = parts.table.texts;
  const auto mergeable = [&](std::size_t id) {
    return kinds[id] == piece_kind::normal || kinds[id] == piece_kind::user_defined || kinds[id] == piece_kind::unused;
  };
  text_index index(kinds.size());
  for (std::size_t id = 0; id < kinds.size(); ++id) {
    if (mergeable(id)) index.insert(*texts[id], static_cast<token_id>(id));
  }
  std::vector<scored_merge> merges;
  for (std::size_t id = 0; id < kinds.size(); ++id) {
    if (!mergeable(id)) continue;
    if (texts[id]->size() > max_piece_bytes) throw load_error(where + ": token " + std::to_string(id) + " is longer than 512 bytes");
    split_piece(static_cast<token_id>(id), *texts[id], scores[id], index, merges);
  }
  std::stable_sort(merges.begin(), merges.end(), [](const scored_merge& a, const scored_merge& b) {
    return std::tuple(a.score, a.left_length, a.right_length) > std::tuple(b.score, b.left_length, b.right_length);
  });
  std::vector<merge_rule> out;
  out.reserve(merges.size());
  for (const scored_merge& merge : merges) out.push_back(merge.rule);
  return out;
}

} // namespace

void make_scored_model(const std::vector<piece_kind>& kinds, const std::vector<float>& scores, bool prefix, bpe_tokenizer_parts& parts,
                       const std::string& where) {
  parts.merges = merges_by_score(kinds, scores, parts, where);
  const auto unknown = std::find(kinds.begin(), kinds.end(), piece_kind::unknown);
  if (unknown != kinds.end()) parts.model.unk = static_cast<token_id>(unknown - kinds.begin());
  parts.model.byte_fallback = true;
  parts.model.fuse_unk = true;
  if (prefix) parts.normalizers.push_back(make_prepend(std::string(word_mark)));
  parts.normalizers.push_back(make_replace(" ", std::string(word_mark)));
  parts.table.decoder = make_sentencepiece_decoder(prefix);
}

} // namespace troupe
