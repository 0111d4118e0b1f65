// Keeps control-token text inside a client's strings plain text.
//
// Before rendering, a marker (a Unicode noncharacter) goes behind the first character of every control-token text in the
// client's strings, and behind a string that ends with the beginning of one, so that two strings side by side cannot make one
// either. Letters count whatever their ASCII case, for templates write in lower and upper case. No part of such a string that a template
// cuts out holds a whole control-token text, so what the template prints can only match where the template itself wrote it. Not
// covered: a template that removes or replaces characters inside a client's string (replace, split and join, letters beyond ASCII
// that change into ASCII ones) and so spells a control token from text that spelt none. The tokenizer drops the markers from plain text
// (encode_options::plain_marker).
#include <algorithm>
#include <array>

#include "tokenizer/chat_template.hpp"
#include "tokenizer/jinja/unicode.hpp"
#include "tokenizer/plain_marker.hpp"

namespace troupe {

namespace {

char fold(char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c; }

// Variables that the checkpoint gives, not the client.
constexpr std::array<std::string_view, 2> kTokenNames = {"bos_token", "eos_token"};

class guard {
 public:
  explicit guard(std::vector<std::string> control_texts) : texts_(std::move(control_texts)) {
    std::erase(texts_, "");
    for (std::string& text : texts_) std::transform(text.begin(), text.end(), text.begin(), fold);
    std::sort(texts_.begin(), texts_.end());
    for (const std::string& text : texts_) first_[static_cast<unsigned char>(text[0])] = true;
  }

  value guarded(const value& item) const {
    if (item.is_string()) return guarded(item.as_string());
    if (item.is_array()) {
      value_array out;
      out.reserve(item.as_array().size());
      for (const value& i : item.as_array()) out.push_back(guarded(i));
      return out;
    }
    if (item.is_object()) {
      value_object out;
      for (const auto& [key, member] : item.as_object().entries()) out.set(guarded(key), guarded(member));
      return out;
    }
    return item;
  }

 private:
  enum class match : std::uint8_t { none, whole, cut_off };

  // Whether a control text begins at `at`: wholly, or cut off by the end of the text.
  match look(std::string_view text, std::size_t at) const {
    auto low = texts_.begin(), high = texts_.end(); // those that begin with text[at, at + length)
    for (std::size_t length = 0; at + length < text.size(); ++length) {
      const char next = fold(text[at + length]);
      auto before = [length](const std::string& t, char c) {
        return t.size() <= length || static_cast<unsigned char>(t[length]) < static_cast<unsigned char>(c);
      };
      auto after = [length](char c, const std::string& t) {
        return t.size() > length && static_cast<unsigned char>(t[length]) > static_cast<unsigned char>(c);
      };
      low = std::lower_bound(low, high, next, before);
      high = std::upper_bound(low, high, next, after);
      if (low == high) return match::none;
      if (low->size() == length + 1) return match::whole;
    }
    return match::cut_off;
  }

  std::string guarded(const std::string& given) const {
    const std::string text = without_markers(given);
    std::string out;
    bool open_end = false;
    std::size_t done = 0;
    for (std::size_t at = 0; at < text.size(); ++at) {
      const match found = first_[static_cast<unsigned char>(fold(text[at]))] ? look(text, at) : match::none;
      open_end = open_end || found == match::cut_off;
      if (found != match::whole) continue;
      std::size_t behind = at;
      jinja::unicode::decode(text, behind);
      out.append(text, done, behind - done);
      out += plain_marker;
      done = behind;
    }
    out.append(text, done);
    if (open_end) out += plain_marker;
    return out;
  }

  std::vector<std::string> texts_; // folded, sorted by bytes
  std::array<bool, 256> first_{};
};

} // namespace

result<std::vector<token_id>> encode_chat(const chat_template& source, const tokenizer& tokens, const value& variables, std::int64_t now) {
  if (!variables.is_object()) return error{error_kind::internal, "the variables of a chat template must be an object", "", std::nullopt};
  const guard client(tokens.special_texts());
  value_object guarded;
  for (const auto& [name, item] : variables.as_object().entries()) {
    const bool own = std::find(kTokenNames.begin(), kTokenNames.end(), name) != kTokenNames.end();
    guarded.set(name, own ? item : client.guarded(item));
  }
  auto text = source.render(guarded, now);
  if (!text) return text.failure();
  return tokens.encode(*text, {.add_special_tokens = false, .parse_special = true, .plain_marker = plain_marker});
}

} // namespace troupe
