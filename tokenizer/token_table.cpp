#include "tokenizer/token_table.hpp"

#include <algorithm>

#include "core/error.hpp"
#include "tokenizer/text_pattern.hpp"
#include "tokenizer/utf8.hpp"

namespace troupe {

void token_table_parts::set_text(std::int64_t id, std::string text, const std::string& where) {
  constexpr std::size_t max_gaps = 65536; // padding ids and the like
  if (id < 0 || static_cast<std::uint64_t>(id) >= 2 * listed + max_gaps)
    throw load_error(where + ": token id " + std::to_string(id) + " is out of range");
  const auto at = static_cast<std::size_t>(id);
  if (at >= texts.size()) texts.resize(at + 1);
  if (texts[at] && *texts[at] != text) throw load_error(where + ": two tokens have the id " + std::to_string(id));
  texts[at] = std::move(text);
}

token_table::token_table(token_table_parts parts)
    : parts_(std::move(parts)), by_text_(parts_.texts.size()), special_(parts_.texts.size()), bytes_(parts_.texts.size()) {
  const bool joined = parts_.decoder.lead == lead_rule::joined_by_space;
  for (std::size_t id = 0; id < parts_.texts.size(); ++id) {
    if (!parts_.texts[id]) continue;
    by_text_.insert(*parts_.texts[id], static_cast<token_id>(id));
    bytes_[id] = (joined ? " " : "") + parts_.decoder.bytes_of(*parts_.texts[id]);
  }
  for (const added_token& token : parts_.added) {
    const auto id = static_cast<std::size_t>(token.id);
    if (token.normalized && !token.special) { // it comes back as the normaliser wrote it
      bytes_[id] = (joined ? " " : "") + parts_.decoder.bytes_of(token.normal_form);
    }
    if (!token.special || special_[id]) continue;
    special_[id] = true;
    special_texts_.push_back(token.content);
    bytes_[id] = (joined ? " " : "") + token.content;
  }
  std::stable_sort(special_texts_.begin(), special_texts_.end(), [](const auto& a, const auto& b) { return a.size() > b.size(); });
}

std::string token_table::token_bytes(token_id token) const {
  return known(token) ? bytes_[static_cast<std::size_t>(token)] : std::string();
}

std::string token_table::first_bytes(token_id token) const {
  if (!known(token)) return {};
  const auto at = static_cast<std::size_t>(token);
  const token_decoder& decoder = parts_.decoder;
  if (decoder.lead == lead_rule::drop_marks && !special_[at]) {
    return decoder.bytes_of(text_pattern(decoder.mark).replace_all(*parts_.texts[at], ""));
  }
  const bool strip = decoder.lead == lead_rule::strip_space || decoder.lead == lead_rule::joined_by_space;
  return strip && bytes_[at].starts_with(' ') ? bytes_[at].substr(1) : bytes_[at];
}

std::string token_table::decode(std::span<const token_id> tokens, bool skip_special) const {
  std::string bytes;
  bool begun = false; // a token contributed, even if its only blank was dropped
  for (const token_id token : tokens) {
    if (!known(token) || (skip_special && is_special(token))) continue;
    const std::string& own = bytes_[static_cast<std::size_t>(token)];
    bytes += begun ? own : first_bytes(token);
    begun = begun || !own.empty();
  }
  return utf8::is_valid(bytes) ? bytes : utf8::repair(bytes);
}

std::vector<token_id> token_table::encode(std::string_view text, encode_options options) const {
  std::vector<token_id> out;
  out.reserve(text.size() / 4 + 8);
  if (options.add_special_tokens) out = parts_.prefix;
  if (utf8::is_valid(text)) {
    encode_text(text, options, out);
  } else {
    encode_text(utf8::repair(text), options, out);
  }
  if (options.add_special_tokens) out.insert(out.end(), parts_.suffix.begin(), parts_.suffix.end());
  return out;
}

} // namespace troupe
