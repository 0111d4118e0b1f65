// Oniguruma's Ruby syntax -> PCRE2's. What means the same passes; what differs is rewritten or refused, never guessed.
// Sources: Oniguruma doc/RE and doc/SYNTAX.md; man pcre2pattern.
#include <array>
#include <cstdint>
#include <limits>

#include "core/error.hpp"
#include "tokenizer/regex.hpp"
#include "tokenizer/utf8.hpp"

namespace troupe {
namespace {

// Oniguruma's \s is White_Space (PCRE2's takes U+180E as well); its \w is wider than PCRE2's letters, digits and underscore.
constexpr std::string_view space_set = "\\p{White_Space}";
constexpr std::string_view not_space_set = "\\P{White_Space}";
constexpr std::string_view word_set = "\\p{Alphabetic}\\p{M}\\p{Nd}\\p{Pc}";

bool is_ascii_letter(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); }
bool is_ascii_digit(char c) { return c >= '0' && c <= '9'; }

class translator {
 public:
  translator(std::string_view pattern, const std::string& where) : in_(pattern), where_(where) {
    if (!utf8::is_valid(pattern)) fail("the pattern is not UTF-8");
  }

  std::string run() {
    while (at_ < in_.size()) item();
    return std::move(out_);
  }

 private:
  [[noreturn]] void fail(const std::string& reason) const { throw load_error(where_ + ": bad pattern: " + reason); }
  bool more(std::size_t ahead = 0) const { return at_ + ahead < in_.size(); }
  bool next_is(std::string_view text) const { return in_.substr(at_, text.size()) == text; }

  void begin_atom() { atom_ = out_.size(); }

  void item() {
    switch (in_[at_]) {
      case '\\':
        begin_atom();
        escape(false);
        break;
      case '[':
        begin_atom();
        character_class();
        break;
      case '(':
        open_group();
        break;
      case ')':
        if (depth_ == 0) fail("unmatched )");
        atom_ = groups_[--depth_];
        copy(1);
        break;
      case '*':
      case '+':
      case '?':
        copy(1);
        quantifier_suffix();
        break;
      case '{':
        interval();
        break;
      case '|':
      case '^':
      case '$':
        begin_atom();
        copy(1);
        break;
      default:
        begin_atom();
        copy(utf8::read_valid(in_, at_).size);
    }
  }

  void copy(std::size_t count) {
    out_ += in_.substr(at_, count);
    at_ += count;
  }

  // Lazy and possessive marks mean the same behind *, + and ?.
  void quantifier_suffix() {
    if (more() && (in_[at_] == '?' || in_[at_] == '+')) copy(1);
  }

  // {n}, {n,}, {n,m}, {,m}. A literal brace must be escaped here, so that no engine's leniency matters.
  void interval() {
    const std::size_t close = in_.find('}', at_);
    const std::string_view body = close == std::string_view::npos ? "" : in_.substr(at_ + 1, close - at_ - 1);
    const std::size_t comma = body.find(',');
    const std::string_view low = body.substr(0, comma);
    const std::string_view high = comma == std::string_view::npos ? "" : body.substr(comma + 1);
    const auto digits = [](std::string_view text) {
      return text.find_first_not_of("0123456789") == std::string_view::npos && text.size() < 6;
    };
    if (!digits(low) || !digits(high) || (low.empty() && high.empty())) fail("{ must be escaped or begin a repeat count");
    out_ += '{';
    out_ += low.empty() ? "0" : low;
    if (comma != std::string_view::npos) out_.append(",").append(high);
    out_ += '}';
    at_ = close + 1;
    if (!more() || (in_[at_] != '+' && in_[at_] != '?')) return;
    if (in_[at_] == '+') { // Ruby: a repeat of the repeat, not a possessive one
      out_.insert(atom_, "(?:");
      out_ += ")+";
      ++at_;
    } else if (comma == std::string_view::npos) {
      fail("{n}? means different things to different engines");
    } else {
      copy(1);
    }
  }

  void open_group() {
    if (depth_ == groups_.size()) fail("groups are nested too deeply");
    groups_[depth_++] = out_.size();
    static constexpr std::array<std::string_view, 6> plain = {"(?:", "(?=", "(?!", "(?<=", "(?<!", "(?>"};
    for (const std::string_view open : plain) {
      if (next_is(open)) return copy(open.size());
    }
    if (next_is("(?i:")) return copy(4);
    if (at_ == 0 && next_is("(?i)")) { // elsewhere its reach over | differs
      --depth_;
      return copy(4);
    }
    if (next_is("(?") || next_is("(*")) fail("unsupported group");
    out_ += "(?:"; // captures are never used
    ++at_;
  }

  void escape(bool in_class) {
    if (!more(1)) fail("ends with a backslash");
    const char c = in_[at_ + 1];
    switch (c) {
      case 's':
        replace(2, space_set);
        return;
      case 'S':
        replace(2, not_space_set);
        return;
      case 'd':
        replace(2, "\\p{Nd}");
        return;
      case 'D':
        replace(2, "\\P{Nd}");
        return;
      case 'w':
        replace(2, in_class ? std::string(word_set) : "[" + std::string(word_set) + "]");
        return;
      case 'W':
        if (in_class) fail("\\W inside a class");
        return replace(2, "[^" + std::string(word_set) + "]");
      case 'b': {
        if (in_class) return replace(2, "\\x08");
        const std::string word = "[" + std::string(word_set) + "]";
        return replace(2, "(?:(?<=" + word + ")(?!" + word + ")|(?<!" + word + ")(?=" + word + "))");
      }
      case 'p':
      case 'P':
        property();
        return;
      case 'x':
      case 'u':
        code_point();
        return;
      case 'v':
        replace(2, "\\x0B");
        return; // PCRE2's \v is a class
      case 'r':
      case 'n':
      case 't':
      case 'f':
      case 'e':
      case 'a':
        copy(2);
        return;
      case 'A':
      case 'z':
        if (in_class) fail("an anchor inside a class");
        copy(2);
        return;
      default:
        break;
    }
    if (is_ascii_letter(c) || is_ascii_digit(c)) fail(std::string("unsupported escape \\") + c);
    if (static_cast<unsigned char>(c) >= 0x80) { // an escaped letter stands for itself
      ++at_;
      return copy(utf8::read_valid(in_, at_).size);
    }
    copy(2);
  }

  void replace(std::size_t count, std::string_view with) {
    at_ += count;
    out_ += with;
  }

  // \p{L}, \P{Lu}, \p{^L}: general categories. Other names are scripts: Oniguruma means the Script property, PCRE2 would take
  // Script_Extensions.
  void property() {
    bool negated = in_[at_ + 1] == 'P';
    const std::size_t close = in_.find('}', at_);
    if (!more(2) || in_[at_ + 2] != '{' || close == std::string_view::npos) fail("\\p needs a name in braces");
    std::string_view name = in_.substr(at_ + 3, close - at_ - 3);
    if (!name.empty() && name.front() == '^') {
      negated = !negated;
      name.remove_prefix(1);
    }
    if (name.empty() || name.size() > 40) fail("\\p needs a name in braces");
    for (const char c : name) {
      if (!is_ascii_letter(c) && c != '_') fail("unsupported property name");
    }
    out_ += negated ? "\\P{" : "\\p{";
    if (name.size() > 2 && name != "Alphabetic" && name != "White_Space") out_ += "sc:";
    out_.append(name).append("}");
    at_ = close + 1;
  }

  // \xHH, \x{H..}, \uHHHH
  void code_point() {
    const bool braces = next_is("\\x{");
    const std::size_t begin = at_ + (braces ? 3 : 2);
    const std::size_t limit = braces ? 6 : (in_[at_ + 1] == 'u' ? 4 : 2);
    std::size_t end = begin;
    std::uint32_t code = 0;
    const auto hex = [](char c) {
      return is_ascii_digit(c) ? c - '0' : (c | 0x20) >= 'a' && (c | 0x20) <= 'f' ? (c | 0x20) - 'a' + 10 : -1;
    };
    while (end < in_.size() && end - begin < limit && hex(in_[end]) >= 0) code = code * 16 + static_cast<std::uint32_t>(hex(in_[end++]));
    if (end == begin || (braces ? end == in_.size() || in_[end] != '}' : end - begin != limit)) fail("malformed \\x or \\u");
    if (code > 0x10FFFF || (code >= 0xD800 && code < 0xE000)) fail("\\x or \\u is no character");
    if (!braces && in_[at_ + 1] == 'x' && code >= 0x80) fail("\\xHH above 7F is a raw byte in one engine and a character in the other");
    static constexpr char digits[] = "0123456789ABCDEF";
    out_ += "\\x{";
    for (int shift = 20; shift >= 0; shift -= 4) out_ += digits[code >> shift & 0xF];
    out_ += '}';
    at_ = end + (braces ? 1 : 0);
  }

  void character_class() {
    copy(1);
    if (more() && in_[at_] == '^') copy(1);
    if (more() && in_[at_] == ']') fail("an empty class");
    while (more() && in_[at_] != ']') {
      if (in_[at_] == '[' || next_is("&&")) fail("nested classes and intersections are not supported");
      if (in_[at_] == '\\') {
        escape(true);
      } else {
        copy(utf8::read_valid(in_, at_).size);
      }
    }
    if (!more()) fail("an unfinished class");
    copy(1);
  }

  std::string_view in_;
  const std::string& where_;
  std::size_t at_ = 0;
  std::string out_;
  std::size_t atom_ = 0;                 // where the last atom begins in out_
  std::array<std::size_t, 64> groups_{}; // where open groups begin in out_
  std::size_t depth_ = 0;
};

} // namespace

std::string translate_regex(std::string_view pattern, const std::string& where) { return translator(pattern, where).run(); }

} // namespace troupe
