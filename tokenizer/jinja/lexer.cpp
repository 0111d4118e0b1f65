#include "tokenizer/jinja/lexer.hpp"

#include <algorithm>
#include <array>
#include <charconv>
#include <limits>

#include "tokenizer/jinja/unicode.hpp"
#include "tokenizer/utf8.hpp"

namespace troupe::jinja {

namespace {

bool is_digit(char c) { return c >= '0' && c <= '9'; }
bool is_name_part(char32_t c) {
  if (c < 0x80) return c == '_' || is_digit(static_cast<char>(c)) || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
  return unicode::is_alphabetic(c) || unicode::is_digit(c);
}
int digit_value(char c) {
  if (is_digit(c)) return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  if (c >= 'A' && c <= 'F') return c - 'A' + 10;
  return 99;
}

// Every kind of line end becomes \n, and one at the very end goes away.
std::string normalized_lines(std::string_view source) {
  std::string out;
  out.reserve(source.size());
  for (std::size_t i = 0; i < source.size(); ++i) {
    if (source[i] != '\r') {
      out += source[i];
    } else {
      out += '\n';
      if (i + 1 < source.size() && source[i + 1] == '\n') ++i;
    }
  }
  if (!out.empty() && out.back() == '\n') out.pop_back();
  return out;
}

// The value of a string literal's inside: Python's escapes.
class unescaper {
 public:
  unescaper(std::string_view text, std::uint32_t line) : text_(text), line_(line) {}

  std::string run() {
    while (at_ < text_.size()) {
      if (text_[at_] != '\\') {
        out_ += text_[at_++];
      } else {
        ++at_; // the lexer made sure that a character follows
        escape(text_[at_++]);
      }
    }
    return std::move(out_);
  }

 private:
  void escape(char c) {
    static constexpr std::string_view from = "\\'\"abfnrtv", to = "\\'\"\a\b\f\n\r\t\v";
    if (auto simple = from.find(c); simple != std::string_view::npos) {
      out_ += to[simple];
    } else if (c >= '0' && c <= '7') {
      --at_;
      utf8::append(out_, number(8, 1, 3));
    } else if (c == 'x' || c == 'u' || c == 'U') {
      const std::size_t count = c == 'x' ? 2 : c == 'u' ? 4 : 8;
      const char32_t value = number(16, count, count);
      if (value > 0x10FFFF) throw syntax_error(line_, "string escape beyond U+10FFFF");
      utf8::append(out_, value >= 0xD800 && value < 0xE000 ? U'\uFFFD' : value);
    } else if (c == 'N') {
      throw syntax_error(line_, "character names (\\N) in strings are not supported");
    } else if (c != '\n') {
      out_ += '\\';
      out_ += c;
    }
  }

  char32_t number(int base, std::size_t least, std::size_t most) {
    char32_t value = 0;
    std::size_t count = 0;
    for (; count < most && at_ < text_.size() && digit_value(text_[at_]) < base; ++count) {
      value = value * static_cast<char32_t>(base) + static_cast<char32_t>(digit_value(text_[at_++]));
    }
    if (count < least) throw syntax_error(line_, "truncated escape in a string");
    return value;
  }

  std::string_view text_;
  std::uint32_t line_;
  std::size_t at_ = 0;
  std::string out_;
};

class lexer {
 public:
  explicit lexer(std::string_view source) : source_(normalized_lines(source)), rest_(source_) {}

  std::vector<token> run() {
    while (at_ < rest_.size()) root();
    emit(token_kind::end);
    return std::move(tokens_);
  }

 private:
  [[noreturn]] void fail(const std::string& reason) const { throw syntax_error(line_, reason); }
  bool starts(std::string_view text, std::size_t from) const { return rest_.substr(std::min(from, rest_.size())).starts_with(text); }
  bool starts(std::string_view text) const { return starts(text, at_); }
  token& emit(token_kind kind, std::string_view text = {}) {
    tokens_.push_back({kind, line_, std::string(text), 0, 0});
    return tokens_.back();
  }
  void move_to(std::size_t end) {
    line_ += static_cast<std::uint32_t>(
        std::count(rest_.begin() + static_cast<std::ptrdiff_t>(at_), rest_.begin() + static_cast<std::ptrdiff_t>(end), '\n'));
    at_ = end;
  }
  std::size_t skip_space(std::size_t from) const { return rest_.size() - unicode::trim_left(rest_.substr(from)).size(); }

  // Text up to the next tag, then the tag. `line_starting_`: the last match ended with a line end.
  void root() {
    std::size_t tag = at_;
    while (tag < rest_.size() &&
           !(rest_[tag] == '{' && tag + 1 < rest_.size() && (rest_[tag + 1] == '{' || rest_[tag + 1] == '%' || rest_[tag + 1] == '#')))
      ++tag;
    if (tag >= rest_.size()) {
      text(rest_.substr(at_), 0, false);
      return move_to(rest_.size());
    }
    const char kind = rest_[tag + 1];
    const char sign = tag + 2 < rest_.size() && (rest_[tag + 2] == '-' || rest_[tag + 2] == '+') ? rest_[tag + 2] : '\0';
    text(rest_.substr(at_, tag - at_), sign, kind != '{');
    move_to(tag);
    const std::size_t after = tag + (sign != 0 ? 3 : 2);
    if (kind == '#') return comment(after);
    if (kind == '%' && raw(after)) return;
    emit(kind == '{' ? token_kind::variable_begin : token_kind::block_begin);
    move_to(after);
    kind == '{' ? inside(token_kind::variable_end, "}}", false) : inside(token_kind::block_end, "%}", true);
  }

  // Literal text before a tag with `sign`; `block`: the tag is one of those that lstrip_blocks is for.
  void text(std::string_view data, char sign, bool block) {
    if (sign == '-') {
      data = unicode::trim_right(data);
    } else if (sign != '+' && block) {
      const std::size_t newline = data.rfind('\n');
      const std::size_t start = newline == std::string_view::npos ? 0 : newline + 1;
      if ((start > 0 || line_starting_) && unicode::trim(data.substr(start)).empty()) data = data.substr(0, start);
    }
    if (!data.empty()) emit(token_kind::data, data);
  }

  // Moves behind a closing delimiter of `size` bytes at `at`, and what it swallows: all white space, a line end, or nothing.
  void close(std::size_t at, std::size_t size, char sign, bool trim_newline) {
    std::size_t end = at + size;
    if (sign == '-') {
      end = skip_space(end);
    } else if (sign != '+' && trim_newline && end < rest_.size() && rest_[end] == '\n') {
      ++end;
    }
    line_starting_ = rest_[end - 1] == '\n';
    move_to(end);
  }

  void comment(std::size_t from) {
    const std::size_t end = rest_.find("#}", from);
    if (end == std::string_view::npos) fail("comment without an end");
    const char sign = end > from && (rest_[end - 1] == '-' || rest_[end - 1] == '+') ? rest_[end - 1] : '\0';
    close(end, 2, sign, true);
  }

  // A {% raw %} block whose tag's inside starts at `from`; false when it is another tag.
  bool raw(std::size_t from) {
    std::size_t end = skip_space(from);
    if (!starts("raw", end)) return false;
    end = skip_space(end + 3);
    const bool strip = starts("-%}", end);
    if (!strip && !starts("%}", end)) return false;
    close(end, strip ? 3 : 2, strip ? '-' : '\0', false);
    for (std::size_t tag = rest_.find("{%", at_); tag != std::string_view::npos; tag = rest_.find("{%", tag + 1)) {
      const char sign = tag + 2 < rest_.size() && (rest_[tag + 2] == '-' || rest_[tag + 2] == '+') ? rest_[tag + 2] : '\0';
      end = skip_space(tag + (sign != 0 ? 3 : 2));
      if (!starts("endraw", end)) continue;
      end = skip_space(end + 6);
      const char tail = starts("-%}", end) ? '-' : starts("+%}", end) ? '+' : '\0';
      if (tail == 0 && !starts("%}", end)) continue;
      text(rest_.substr(at_, tag - at_), sign, true);
      close(end, tail != 0 ? 3 : 2, tail, true);
      return true;
    }
    fail("raw block without an end");
  }

  // Tokens of a tag, up to `end` outside all brackets.
  void inside(token_kind end_kind, std::string_view end, bool block) {
    std::string open; // the closing brackets that are due
    while (true) {
      if (at_ >= rest_.size()) fail("tag without an end");
      if (open.empty()) {
        const char sign = rest_[at_] == '-' || (block && rest_[at_] == '+') ? rest_[at_] : '\0';
        if (starts(end, at_ + (sign != 0 ? 1 : 0))) {
          emit(end_kind);
          return close(at_, sign != 0 ? 3 : 2, sign, block);
        }
      }
      if (std::size_t next = skip_space(at_); next > at_) {
        move_to(next);
      } else if (!number() && !name() && !string()) {
        symbol(open);
      }
    }
  }

  bool name() {
    std::size_t end = at_;
    for (std::size_t next = at_; next < rest_.size(); end = next) {
      if (!is_name_part(unicode::decode(rest_, next))) break;
    }
    if (end == at_) return false;
    emit(token_kind::name, rest_.substr(at_, end - at_));
    at_ = end;
    return true;
  }

  bool string() {
    const char quote = rest_[at_];
    if (quote != '\'' && quote != '"') return false;
    std::size_t end = at_ + 1;
    while (end < rest_.size() && rest_[end] != quote) end += rest_[end] == '\\' ? 2 : 1;
    if (end >= rest_.size()) fail("string without an end");
    emit(token_kind::string, unescaper(rest_.substr(at_ + 1, end - at_ - 1), line_).run());
    move_to(end + 1);
    return true;
  }

  // Digits of `base` from `from`, single underscores between them; the end, or `from` when there is none.
  std::size_t digits(std::size_t from, int base) const {
    std::size_t end = from;
    while (end < rest_.size()) {
      std::size_t next = end + (rest_[end] == '_' && end > from ? 1 : 0);
      if (next >= rest_.size() || digit_value(rest_[next]) >= base) break;
      end = next + 1;
    }
    return end;
  }

  bool number() {
    if (!is_digit(rest_[at_])) return false;
    std::size_t end = digits(at_, 10);
    const std::size_t whole = end;
    if (at_ == 0 || rest_[at_ - 1] != '.') {
      if (end < rest_.size() && rest_[end] == '.') end = std::max(end, fraction(end));
      if (end < rest_.size() && (rest_[end] == 'e' || rest_[end] == 'E')) {
        const std::size_t sign = end + 1 < rest_.size() && (rest_[end + 1] == '+' || rest_[end + 1] == '-') ? 1 : 0;
        const std::size_t exponent = digits(end + 1 + sign, 10);
        if (exponent > end + 1 + sign) end = exponent;
      }
    }
    end > whole ? floating(end) : integer(whole);
    return true;
  }

  std::size_t fraction(std::size_t dot) const {
    const std::size_t end = digits(dot + 1, 10);
    return end > dot + 1 ? end : dot;
  }

  std::string without_underscores(std::size_t from, std::size_t end) const {
    std::string text(rest_.substr(from, end - from));
    std::erase(text, '_');
    return text;
  }

  void floating(std::size_t end) {
    const std::string text = without_underscores(at_, end);
    double value = 0;
    if (std::from_chars(text.data(), text.data() + text.size(), value).ec == std::errc::result_out_of_range) {
      value = text.find("e-") != std::string::npos || text.find("E-") != std::string::npos ? 0 : std::numeric_limits<double>::infinity();
    }
    emit(token_kind::floating).floating = value;
    at_ = end;
  }

  void integer(std::size_t end) {
    std::size_t from = at_;
    int base = 10;
    if (rest_[at_] == '0' && at_ + 2 < rest_.size()) {
      const char mark = static_cast<char>(rest_[at_ + 1] | 0x20);
      const int other = mark == 'x' ? 16 : mark == 'o' ? 8 : mark == 'b' ? 2 : 10;
      const std::size_t start = at_ + 2 + (rest_[at_ + 2] == '_' ? 1 : 0);
      if (other != 10 && digits(start, other) > start) {
        base = other;
        from = start;
        end = digits(start, other);
      }
    }
    const std::string text = without_underscores(from, end);
    if (base == 10 && text.size() > 1 && text[0] == '0' && text.find_first_not_of('0') != std::string::npos)
      fail("number with a leading zero");
    std::int64_t value = 0;
    if (std::from_chars(text.data(), text.data() + text.size(), value, base).ec != std::errc()) fail("integer too large");
    emit(token_kind::integer).integer = value;
    at_ = end;
  }

  void symbol(std::string& open) {
    static constexpr std::array<std::string_view, 28> symbols = {"//", "**", "==", "!=", ">=", "<=", "+", "-", "/", "*", "%", "~", "[", "]",
                                                                 "(",  ")",  "{",  "}",  ">",  "<",  "=", ".", ":", "|", ",", ";", "",  ""};
    for (std::string_view candidate : symbols) {
      if (candidate.empty() || !starts(candidate)) continue;
      const char c = candidate[0];
      if (c == '(') open += ')';
      if (c == '[') open += ']';
      if (c == '{') open += '}';
      if (c == ')' || c == ']' || c == '}') {
        if (open.empty() || open.back() != c) fail("unexpected '" + std::string(1, c) + "'");
        open.pop_back();
      }
      emit(token_kind::symbol, candidate);
      at_ += candidate.size();
      return;
    }
    fail("unexpected character in a tag");
  }

  const std::string source_;
  std::string_view rest_; // all of source_
  std::size_t at_ = 0;
  std::uint32_t line_ = 1;
  bool line_starting_ = true;
  std::vector<token> tokens_;
};

} // namespace

std::vector<token> tokenize(std::string_view source) { return lexer(source).run(); }

} // namespace troupe::jinja
