#include "tokenizer/added_tokens.hpp"

#include <algorithm>

#include "tokenizer/unicode.hpp"
#include "tokenizer/utf8.hpp"

namespace troupe {
namespace {

bool word_before(std::string_view text, std::size_t at) {
  return at > 0 && unicode::is_word(utf8::read_valid(text, utf8::previous(text, at)).code);
}

bool word_behind(std::string_view text, std::size_t at) { return at < text.size() && unicode::is_word(utf8::read_valid(text, at).code); }

std::size_t skip_blanks_left(std::string_view text, std::size_t at, std::size_t limit) {
  while (at > limit) {
    const std::size_t before = utf8::previous(text, at);
    if (!unicode::is_white_space(utf8::read_valid(text, before).code)) break;
    at = before;
  }
  return at;
}

std::size_t skip_blanks_right(std::string_view text, std::size_t at) {
  while (at < text.size()) {
    const utf8::character next = utf8::read_valid(text, at);
    if (!unicode::is_white_space(next.code)) break;
    at += next.size;
  }
  return at;
}

} // namespace

std::uint32_t added_token_finder::child(std::uint32_t from, unsigned char byte) const {
  const auto& children = nodes_[from].children;
  const auto found = std::lower_bound(children.begin(), children.end(), byte, [](const auto& c, unsigned char b) { return c.first < b; });
  return found != children.end() && found->first == byte ? found->second : 0;
}

void added_token_finder::add(std::string_view pattern, const added_token& token) {
  if (pattern.empty()) return;
  if (nodes_.empty()) nodes_.emplace_back();
  std::uint32_t at = 0;
  for (const char c : pattern) {
    const auto byte = static_cast<unsigned char>(c);
    std::uint32_t next = child(at, byte);
    if (next == 0) {
      next = static_cast<std::uint32_t>(nodes_.size());
      nodes_.emplace_back();
      auto& children = nodes_[at].children;
      children.insert(std::upper_bound(children.begin(), children.end(), std::pair(byte, next)), {byte, next});
      if (at == 0) first_[byte] = next;
    }
    at = next;
  }
  if (nodes_[at].token == nullptr) nodes_[at].token = &token;
}

std::pair<const added_token*, std::size_t> added_token_finder::longest_at(std::string_view text, std::size_t at) const {
  std::pair<const added_token*, std::size_t> best{nullptr, at};
  std::uint32_t state = first_[static_cast<unsigned char>(text[at])];
  for (std::size_t end = at + 1; state != 0; ++end) {
    if (nodes_[state].token != nullptr) best = {nodes_[state].token, end};
    if (end == text.size()) break;
    state = child(state, static_cast<unsigned char>(text[end]));
  }
  return best;
}

std::vector<text_part> added_token_finder::find(std::string_view text, bool parse_special) const {
  std::vector<text_part> parts;
  std::size_t done = 0;
  for (std::size_t at = 0; !nodes_.empty() && at < text.size();) {
    const auto [token, end] = longest_at(text, at);
    if (token == nullptr) {
      ++at;
      continue;
    }
    const std::size_t begin = at;
    at = end; // whatever becomes of this match, the next one lies behind it
    if (token->special && !parse_special) continue;
    if (token->single_word && (word_before(text, begin) || word_behind(text, end))) continue;
    const std::size_t from = token->lstrip ? std::max(skip_blanks_left(text, begin, std::min(begin, done)), done) : begin;
    const std::size_t to = token->rstrip ? skip_blanks_right(text, end) : end;
    if (done < from) parts.push_back({nullptr, done, from});
    parts.push_back({token, from, to});
    done = to;
  }
  if (done < text.size()) parts.push_back({nullptr, done, text.size()});
  return parts;
}

} // namespace troupe
