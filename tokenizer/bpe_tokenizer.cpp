#include "tokenizer/bpe_tokenizer.hpp"

#include <algorithm>
#include <bit>
#include <functional>
#include <optional>

#include "tokenizer/byte_alphabet.hpp"
#include "tokenizer/plain_marker.hpp"

namespace troupe {
namespace {

constexpr std::string_view word_mark = "\xE2\x96\x81"; // U+2581

// Words seen in this call and where their tokens lie in its output. Direct-mapped: a collision forgets the older word.
class word_cache {
 public:
  explicit word_cache(std::size_t text_size) {
    if (text_size >= 512) slots_.resize(std::clamp<std::size_t>(std::bit_ceil(text_size / 32), 64, 1U << 14));
  }

  struct slot {
    std::string_view word;
    std::uint32_t begin = 0;
    std::uint32_t count = 0;
  };

  // The word's slot: taken by it, or free to take. Null: do not cache.
  slot* at(std::string_view word) {
    if (slots_.empty() || word.size() > 48) return nullptr;
    return &slots_[std::hash<std::string_view>{}(word) & (slots_.size() - 1)];
  }

 private:
  std::vector<slot> slots_;
};

// Control tokens must not come out of merges: only from their own text, and only when that is asked for.
std::vector<merge_rule> ordinary_merges(const bpe_tokenizer_parts& parts) {
  std::vector<merge_rule> merges = parts.merges;
  std::vector<bool> special(parts.table.texts.size());
  for (const added_token& token : parts.table.added) {
    if (token.special) special[static_cast<std::size_t>(token.id)] = true;
  }
  for (merge_rule& rule : merges) {
    // Ranks stay as they are: a dropped rule becomes one that no pair matches.
    if (special[static_cast<std::size_t>(rule.merged)]) rule = {-2, -2, -2};
  }
  return merges;
}

bool no_mark_inside(std::string_view text) {
  for (std::size_t at = text.find(word_mark, 1); at != std::string_view::npos; at = text.find(word_mark, at + 1)) {
    if (at < word_mark.size() || text.substr(at - word_mark.size(), word_mark.size()) != word_mark) return false;
  }
  return true;
}

} // namespace

struct bpe_tokenizer::model_part {
  std::deque<std::string> texts; // the model's own tokens, as bytes where words are bytes; `index` points here
  text_index index;
  std::optional<bpe_model> bpe;
  bool cut_at_marks = false; // no token goes on behind a "\u2581" inside it: long words may be cut there, with the same result

  explicit model_part(std::size_t size) : index(size) {}
};

struct bpe_tokenizer::encode_state {
  const encode_options& options;
  std::vector<token_id>& out;
  text_arena arena; // keeps every word alive until the call ends: the cache points at them
  word_cache cache;
  std::shared_ptr<bpe_model::workspace> work = bpe_model::make_workspace();
};

std::shared_ptr<const bpe_tokenizer::model_part> bpe_tokenizer::build_model(const bpe_tokenizer_parts& parts) {
  auto model = std::make_shared<model_part>(parts.table.texts.size());
  bpe_options options = parts.model;
  options.bytes = parts.pre_tokenizers.byte_level;
  for (std::size_t id = 0; id < parts.table.texts.size(); ++id) {
    if (!parts.in_model[id]) continue;
    std::optional<std::string> text = parts.table.texts[id];
    // A text with characters outside the alphabet cannot come up when words consist of bytes.
    if (options.bytes) text = byte_alphabet::decode(*text);
    if (text) model->index.insert(model->texts.emplace_back(std::move(*text)), static_cast<token_id>(id));
  }
  const std::vector<merge_rule> merges = ordinary_merges(parts);
  model->bpe.emplace(model->index, merges, options);
  model->cut_at_marks = !options.bytes && !options.ignore_merges && model->index.find(word_mark) &&
                        std::all_of(merges.begin(), merges.end(), [&](const merge_rule& rule) {
                          return rule.merged < 0 || no_mark_inside(*parts.table.texts[static_cast<std::size_t>(rule.merged)]);
                        });
  return model;
}

bpe_tokenizer::bpe_tokenizer(bpe_tokenizer_parts given) : bpe_tokenizer(build_model(given), std::move(given)) {}

bpe_tokenizer::bpe_tokenizer(std::shared_ptr<const model_part> model, bpe_tokenizer_parts&& given)
    : token_table(std::move(given.table)),
      normalizers_(std::move(given.normalizers)),
      pre_tokenizers_(std::move(given.pre_tokenizers)),
      model_(std::move(model)) {
  for (const bool special : {true, false}) {
    for (const added_token& token : parts().added) {
      if (token.special != special) continue;
      if (token.normalized) {
        normalized_finder_.add(token.normal_form, token);
      } else {
        raw_finder_.add(token.content, token);
      }
    }
  }
}

void bpe_tokenizer::encode_text(std::string_view text, const encode_options& options, std::vector<token_id>& out) const {
  encode_state state{.options = options, .out = out, .arena = {}, .cache = word_cache(text.size())};
  for (const text_part& part : raw_finder_.find(text, options.parse_special)) {
    if (part.token != nullptr) {
      out.push_back(part.token->id);
    } else {
      encode_segment(text.substr(part.begin, part.end - part.begin), part.begin == 0, state);
    }
  }
}

void bpe_tokenizer::encode_segment(std::string_view segment, bool first, encode_state& state) const {
  const auto normal_form = [&](std::string_view text) {
    return normalizers_.empty() ? text : std::string_view(state.arena.emplace_back(normalize(normalizers_, std::string(text))));
  };
  const std::string_view marker = state.options.plain_marker;
  const bool marked = !marker.empty() && segment.find(marker) != std::string_view::npos;
  const std::string_view normal = normal_form(segment);
  const std::vector<text_part> parts = normalized_finder_.find(normal, state.options.parse_special);
  const bool plain = std::none_of(parts.begin(), parts.end(), [](const text_part& part) { return part.token != nullptr; });
  if (marked && plain) { // the usual case: normalised as if the markers had never been there
    const std::string_view unmarked = state.arena.emplace_back(without_markers(segment, marker));
    if (!unmarked.empty()) encode_plain({normal_form(unmarked), first}, state);
    return;
  }
  for (const text_part& part : parts) {
    if (part.token != nullptr) {
      state.out.push_back(part.token->id);
      continue;
    }
    std::string_view text = normal.substr(part.begin, part.end - part.begin);
    if (marked) text = state.arena.emplace_back(without_markers(text, marker));
    encode_plain({text, first && part.begin == 0}, state);
  }
}

void bpe_tokenizer::encode_plain(const piece& text, encode_state& state) const {
  for (const piece& word : pre_tokenize(pre_tokenizers_, text, state.arena)) encode_word(word.text, state);
}

void bpe_tokenizer::encode_word(std::string_view word, encode_state& state) const {
  while (model_->cut_at_marks) {                                // one word per beginning mark
    const std::size_t body = word.find_first_not_of(word_mark); // any byte of the mark will do: words are UTF-8
    const std::size_t next = body == std::string_view::npos ? body : word.find(word_mark, body);
    if (next == std::string_view::npos) break;
    encode_whole_word(word.substr(0, next), state);
    word.remove_prefix(next);
  }
  encode_whole_word(word, state);
}

void bpe_tokenizer::encode_whole_word(std::string_view word, encode_state& state) const {
  word_cache::slot* known = state.cache.at(word);
  if (known != nullptr && known->count != 0 && known->word == word) {
    for (std::uint32_t i = 0; i < known->count; ++i) state.out.push_back(state.out[known->begin + i]);
    return;
  }
  const std::size_t begin = state.out.size();
  model_->bpe->encode(word, *state.work, state.out);
  if (known != nullptr && state.out.size() < UINT32_MAX) {
    *known = {word, static_cast<std::uint32_t>(begin), static_cast<std::uint32_t>(state.out.size() - begin)};
  }
}

} // namespace troupe
