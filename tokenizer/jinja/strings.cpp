// Text operations that methods and filters share.
#include <cstring>

#include <algorithm>
#include <charconv>
#include <cmath>

#include "tokenizer/jinja/machine.hpp"
#include "tokenizer/jinja/search.hpp"
#include "tokenizer/jinja/unicode.hpp"

namespace troupe::jinja {

namespace {

template <class Map>
std::string mapped(machine& m, std::string_view text, Map map) {
  m.charge_bytes(text.size());
  std::string out;
  out.reserve(text.size());
  for (std::size_t at = 0; at < text.size();) map(out, unicode::decode(text, at));
  m.check_size(out.size());
  return out;
}

bool is_line_end(char32_t c) { return (c >= 0x0A && c <= 0x0D) || (c >= 0x1C && c <= 0x1E) || c == 0x85 || c == 0x2028 || c == 0x2029; }

// Digits with single underscores between them, as int() and float() take them: without the underscores; none where misplaced.
std::optional<std::string> without_underscores(std::string_view text) {
  std::string out;
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (text[i] != '_') {
      out += text[i];
    } else if (i == 0 || i + 1 == text.size() || std::isalnum(static_cast<unsigned char>(text[i - 1])) == 0 ||
               std::isalnum(static_cast<unsigned char>(text[i + 1])) == 0) {
      return std::nullopt;
    }
  }
  return out;
}

} // namespace

std::size_t find_text(machine& m, std::string_view text, std::string_view wanted, std::size_t from) {
  m.charge_bytes(wanted.size());
  if (from > text.size() || wanted.size() > text.size() - from) return std::string_view::npos;
  if (wanted.empty()) return from;
  // memmem is the C library's two-way search: linear, where string_view::find can take the product of the lengths.
  const void* found = memmem(text.data() + from, text.size() - from, wanted.data(), wanted.size());
  const std::size_t at =
      found == nullptr ? std::string_view::npos : static_cast<std::size_t>(static_cast<const char*>(found) - text.data());
  m.charge_bytes(std::min(at, text.size()) - from);
  return at;
}

std::size_t find_last(machine& m, std::string_view text, std::string_view wanted) {
  if (wanted.empty()) return text.size();
  std::size_t last = std::string_view::npos;
  for (std::size_t at = find_text(m, text, wanted, 0); at != std::string_view::npos; at = find_text(m, text, wanted, at + 1)) last = at;
  return last;
}

std::vector<std::string_view> split_lines(machine& m, std::string_view text) {
  std::vector<std::string_view> lines;
  std::size_t start = 0;
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t end = at;
    const char32_t c = unicode::decode(text, at);
    if (!is_line_end(c)) continue;
    m.charge();
    lines.push_back(text.substr(start, end - start));
    if (c == '\r' && at < text.size() && text[at] == '\n') ++at;
    start = at;
  }
  if (start < text.size()) lines.push_back(text.substr(start));
  return lines;
}

std::string replace_all(machine& m, std::string_view text, std::string_view from, std::string_view to, std::int64_t limit) {
  std::string out;
  std::size_t done = 0;
  std::size_t left = limit < 0 ? SIZE_MAX : static_cast<std::size_t>(limit);
  if (from.empty()) { // before every character, and at the end
    for (; left > 0; --left) {
      m.append(out, to);
      if (done == text.size()) break;
      const std::size_t start = done;
      unicode::decode(text, done);
      out += text.substr(start, done - start);
    }
  } else {
    for (; left > 0; --left) {
      const std::size_t at = find_text(m, text, from, done);
      if (at == std::string_view::npos) break;
      m.append(out, text.substr(done, at - done));
      m.append(out, to);
      done = at + from.size();
    }
  }
  m.append(out, text.substr(done));
  return out;
}

std::string_view strip(machine& m, std::string_view text, const std::optional<std::string>& characters, bool left, bool right) {
  m.charge_bytes(text.size());
  if (!characters) {
    if (left) text = unicode::trim_left(text);
    return right ? unicode::trim_right(text) : text;
  }
  std::u32string set;
  for (std::size_t at = 0; at < characters->size();) set += unicode::decode(*characters, at);
  std::sort(set.begin(), set.end());
  m.charge(set.size());
  auto listed = [&](char32_t c) { return std::binary_search(set.begin(), set.end(), c); };
  for (std::size_t at = 0; left && at < text.size() && listed(unicode::decode(text, at)); at = 0) text.remove_prefix(at);
  for (std::size_t at = text.size(); right && at > 0 && listed(unicode::decode_before(text, at)); at = text.size())
    text.remove_suffix(text.size() - at);
  return text;
}

std::string upper(machine& m, std::string_view text) { return mapped(m, text, unicode::append_upper); }
std::string lower(machine& m, std::string_view text) { return mapped(m, text, unicode::append_lower); }

std::string capitalize(machine& m, std::string_view text) {
  return mapped(m, text, [](std::string& out, char32_t c) { out.empty() ? unicode::append_title(out, c) : unicode::append_lower(out, c); });
}

std::string pad(machine& m, std::string_view text, std::size_t left, std::size_t right, std::string_view fill) {
  std::size_t size = 0;
  if (__builtin_add_overflow(left, right, &size) || __builtin_mul_overflow(size, fill.size(), &size) ||
      __builtin_add_overflow(size, text.size(), &size)) {
    size = SIZE_MAX;
  }
  m.check_size(size);
  m.charge_bytes(size);
  std::string out;
  out.reserve(size);
  for (; left > 0; --left) out += fill;
  out += text;
  for (; right > 0; --right) out += fill;
  return out;
}

bool is_upper(std::string_view text) {
  bool any = false;
  for (std::size_t at = 0; at < text.size();) {
    const char32_t c = unicode::decode(text, at);
    if (unicode::is_cased(c) && !unicode::is_upper(c)) return false;
    any = any || unicode::is_upper(c);
  }
  return any;
}

bool is_lower(std::string_view text) {
  bool any = false;
  for (std::size_t at = 0; at < text.size();) {
    const char32_t c = unicode::decode(text, at);
    if (unicode::is_cased(c) && !unicode::is_lower(c)) return false;
    any = any || unicode::is_lower(c);
  }
  return any;
}

std::optional<cell> parse_int(std::string_view text, int base) {
  text = unicode::trim(text);
  const bool minus = text.starts_with('-');
  if (minus || text.starts_with('+')) text.remove_prefix(1);
  if (text.size() > 2 && text[0] == '0') {
    const char mark = static_cast<char>(text[1] | 0x20);
    const int marked = mark == 'x' ? 16 : mark == 'o' ? 8 : mark == 'b' ? 2 : 0;
    if (marked != 0 && (base == marked || base == 0)) {
      base = marked;
      text.remove_prefix(text[2] == '_' ? 3 : 2);
    }
  }
  if (base == 0) {
    if (text.size() > 1 && text[0] == '0' && text.find_first_not_of("0_") != std::string_view::npos) return std::nullopt;
    base = 10;
  }
  if (text.empty() || text[0] == '-') return std::nullopt;
  auto digits = without_underscores(text);
  if (!digits) return std::nullopt;
  if (minus) digits->insert(digits->begin(), '-');
  std::int64_t value = 0;
  const auto [end, code] = std::from_chars(digits->data(), digits->data() + digits->size(), value, base);
  if (end != digits->data() + digits->size() || code == std::errc::invalid_argument) return std::nullopt;
  if (code != std::errc()) throw render_error("an integer is out of range");
  return value;
}

std::optional<double> parse_float(std::string_view text) {
  text = unicode::trim(text);
  const bool minus = text.starts_with('-');
  if (minus || text.starts_with('+')) text.remove_prefix(1);
  auto digits = without_underscores(text);
  if (!digits || digits->empty() || (*digits)[0] == '-') return std::nullopt;
  std::transform(digits->begin(), digits->end(), digits->begin(),
                 [](char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c | 0x20) : c; });
  double value = 0;
  if (*digits == "inf" || *digits == "infinity") {
    value = INFINITY;
  } else if (*digits == "nan") {
    value = NAN;
  } else {
    if (digits->find_first_not_of("0123456789.e+-") != std::string::npos) return std::nullopt;
    const auto [end, code] = std::from_chars(digits->data(), digits->data() + digits->size(), value);
    if (end != digits->data() + digits->size() || code == std::errc::invalid_argument) return std::nullopt;
    if (code == std::errc::result_out_of_range) value = digits->find("e-") != std::string::npos ? 0 : INFINITY;
  }
  return minus ? -value : value;
}

} // namespace troupe::jinja
