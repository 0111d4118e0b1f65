// The methods of str.
#include <algorithm>
#include <array>

#include "tokenizer/jinja/machine.hpp"
#include "tokenizer/jinja/parameters.hpp"
#include "tokenizer/jinja/search.hpp"
#include "tokenizer/jinja/unicode.hpp"

namespace troupe::jinja {

namespace {

std::optional<std::string> characters(const parameters& p, std::size_t index) {
  return p.has_value(index) ? std::optional(p.string(index)) : std::nullopt;
}

template <bool left, bool right>
cell strip_method(machine& m, const cell& self, const arguments& args) {
  const parameters p("strip", args, {"chars"});
  return m.text(strip(m, self.bytes(), characters(p, 0), left, right));
}

// Splitting. A negative limit is none.
std::vector<cell> split_space(machine& m, std::string_view rest, std::int64_t limit) {
  std::vector<cell> out;
  rest = unicode::trim_left(rest);
  while (!rest.empty()) {
    std::size_t end = 0;
    for (std::size_t next = 0; next < rest.size(); end = next) {
      if (unicode::is_space(unicode::decode(rest, next))) break;
    }
    if (limit-- == 0) end = rest.size();
    out.push_back(m.text(rest.substr(0, end)));
    rest = unicode::trim_left(rest.substr(end));
  }
  return out;
}

std::vector<cell> split_space_backwards(machine& m, std::string_view rest, std::int64_t limit) {
  std::vector<cell> out;
  rest = unicode::trim_right(rest);
  while (!rest.empty()) {
    std::size_t start = rest.size();
    for (std::size_t next = start; next > 0; start = next) {
      if (unicode::is_space(unicode::decode_before(rest, next))) break;
    }
    if (limit-- == 0) start = 0;
    out.push_back(m.text(rest.substr(start)));
    rest = unicode::trim_right(rest.substr(0, start));
  }
  std::reverse(out.begin(), out.end());
  return out;
}

std::vector<std::size_t> places(machine& m, std::string_view text, std::string_view separator) {
  std::vector<std::size_t> out;
  for (std::size_t at = find_text(m, text, separator, 0); at != std::string_view::npos;
       at = find_text(m, text, separator, at + separator.size())) {
    out.push_back(at);
  }
  return out;
}

std::vector<std::size_t> places_backwards(machine& m, std::string_view text, std::string_view separator, std::int64_t limit) {
  std::vector<std::size_t> out;
  for (std::size_t at = find_last(m, text, separator); at != std::string_view::npos && limit-- != 0;
       at = find_last(m, text.substr(0, at), separator)) {
    out.push_back(at);
  }
  std::reverse(out.begin(), out.end());
  return out;
}

template <bool backwards>
cell split_method(machine& m, const cell& self, const arguments& args) {
  const parameters p("split", args, {"sep", "maxsplit"});
  const std::string& text = self.bytes();
  const std::int64_t limit = p.integer(1, -1);
  m.charge_bytes(text.size());
  if (!p.has_value(0)) return make_list(backwards ? split_space_backwards(m, text, limit) : split_space(m, text, limit));
  const std::string& separator = p.string(0);
  if (separator.empty()) throw render_error("split: empty separator");
  std::vector<std::size_t> cuts = backwards && limit >= 0 ? places_backwards(m, text, separator, limit) : places(m, text, separator);
  if (!backwards && limit >= 0 && cuts.size() > static_cast<std::size_t>(limit)) cuts.resize(static_cast<std::size_t>(limit));
  std::vector<cell> out;
  std::size_t start = 0;
  for (std::size_t cut : cuts) {
    out.push_back(m.text(std::string_view(text).substr(start, cut - start)));
    start = cut + separator.size();
  }
  out.push_back(m.text(std::string_view(text).substr(start)));
  return make_list(std::move(out));
}

template <bool backwards>
cell partition_method(machine& m, const cell& self, const arguments& args) {
  const parameters p("partition", args, {"sep"}, 1);
  const std::string_view text = self.bytes();
  const std::string& separator = p.string(0);
  if (separator.empty()) throw render_error("partition: empty separator");
  const std::size_t at = backwards ? find_last(m, text, separator) : find_text(m, text, separator, 0);
  const cell nothing = cell::literal("");
  if (at == std::string_view::npos) return backwards ? make_tuple({nothing, nothing, self}) : make_tuple({self, nothing, nothing});
  return make_tuple({m.text(text.substr(0, at)), p.at(0), m.text(text.substr(at + separator.size()))});
}

cell splitlines_method(machine& m, const cell& self, const arguments& args) {
  const parameters p("splitlines", args, {"keepends"});
  m.charge_bytes(self.bytes().size());
  const std::string_view text = self.bytes();
  std::vector<cell> out;
  const auto lines = split_lines(m, text);
  for (std::size_t i = 0; i < lines.size(); ++i) {
    const std::size_t start = static_cast<std::size_t>(lines[i].data() - text.data());
    const std::size_t next = i + 1 < lines.size() ? static_cast<std::size_t>(lines[i + 1].data() - text.data()) : text.size();
    out.push_back(m.text(p.truth(0, false) ? text.substr(start, next - start) : lines[i]));
  }
  return make_list(std::move(out));
}

// The part of self between the optional character positions in parameters 1 and 2; `first`: how many characters lie before it.
// None when start lies behind the end of the text.
std::optional<std::string_view> part(machine& m, const cell& self, const parameters& p, std::int64_t& first) {
  const auto size = static_cast<std::int64_t>(self.as_text().length);
  auto position = [&](std::size_t index, std::int64_t fallback) {
    const std::int64_t at = p.has_value(index) ? p.integer(index, 0) : fallback;
    return at < 0 ? std::max<std::int64_t>(at + size, 0) : at;
  };
  first = position(1, 0);
  const std::int64_t last = std::min(position(2, size), size);
  if (first > size || last < first) return std::nullopt;
  m.charge_bytes(self.bytes().size());
  const std::size_t from = unicode::offset(self.bytes(), static_cast<std::size_t>(first));
  const std::size_t to = unicode::offset(self.bytes(), static_cast<std::size_t>(last));
  return std::string_view(self.bytes()).substr(from, to - from);
}

template <bool backwards, bool must>
cell find_method_of(machine& m, const cell& self, const arguments& args) {
  const parameters p("find", args, {"sub", "start", "end"}, 1);
  std::int64_t first = 0;
  const auto area = part(m, self, p, first);
  std::size_t at = std::string_view::npos;
  if (area) at = backwards ? find_last(m, *area, p.string(0)) : find_text(m, *area, p.string(0), 0);
  if (at != std::string_view::npos) return first + static_cast<std::int64_t>(unicode::length(area->substr(0, at)));
  if (must) throw render_error("index: substring not found");
  return -1;
}

cell count_method(machine& m, const cell& self, const arguments& args) {
  const parameters p("count", args, {"sub", "start", "end"}, 1);
  std::int64_t first = 0;
  const auto area = part(m, self, p, first);
  if (!area) return 0;
  if (p.string(0).empty()) return static_cast<std::int64_t>(unicode::length(*area)) + 1;
  return static_cast<std::int64_t>(places(m, *area, p.string(0)).size());
}

template <bool at_end>
cell affix_method(machine& m, const cell& self, const arguments& args) {
  const std::string_view name = at_end ? "endswith" : "startswith";
  const parameters p(name, args, {"prefix", "start", "end"}, 1);
  std::int64_t first = 0;
  const auto area = p.given(1) || p.given(2) ? part(m, self, p, first) : std::optional<std::string_view>(self.bytes());
  auto fits = [&](const cell& affix) {
    if (affix.is_undefined()) fail_undefined(affix);
    if (!affix.is_text())
      throw render_error(std::string(name) + " needs a string or a tuple of strings, not " + std::string(affix.type_name()));
    m.charge_bytes(affix.bytes().size());
    return area && (at_end ? area->ends_with(affix.bytes()) : area->starts_with(affix.bytes()));
  };
  if (!p.at(0).is_sequence(sequence_kind::tuple)) return fits(p.at(0));
  const auto& choices = p.at(0).as_sequence().items;
  return std::any_of(choices.begin(), choices.end(), fits);
}

template <bool at_end>
cell remove_affix_method(machine& m, const cell& self, const arguments& args) {
  const parameters p("removeprefix", args, {"affix"}, 1);
  const std::string& affix = p.string(0);
  const std::string_view text = self.bytes();
  if (at_end ? text.ends_with(affix) : text.starts_with(affix)) {
    return m.text(at_end ? text.substr(0, text.size() - affix.size()) : text.substr(affix.size()));
  }
  return self;
}

cell replace_method(machine& m, const cell& self, const arguments& args) {
  const parameters p("replace", args, {"old", "new", "count"}, 2);
  return m.text(replace_all(m, self.bytes(), p.string(0), p.string(1), p.integer(2, -1)));
}

cell join_method(machine& m, const cell& self, const arguments& args) {
  const parameters p("join", args, {"iterable"}, 1);
  std::string out;
  bool first = true;
  for (const cell& item : items_of(m, p.at(0))) {
    if (!item.is_text()) throw render_error("join: expected strings, found " + std::string(item.type_name()));
    if (!first) m.append(out, self.bytes());
    m.append(out, item.bytes());
    first = false;
  }
  return m.text(std::move(out));
}

template <std::string (*map)(machine&, std::string_view)>
cell map_method(machine& m, const cell& self, const arguments& args) {
  const parameters none("a case method", args, {});
  return m.text(map(m, self.bytes()));
}

std::string title_case(machine& m, std::string_view text) {
  m.charge_bytes(text.size());
  std::string out;
  bool inside = false;
  for (std::size_t at = 0; at < text.size();) {
    const char32_t c = unicode::decode(text, at);
    inside ? unicode::append_lower(out, c) : unicode::append_title(out, c);
    inside = unicode::is_cased(c);
  }
  return out;
}

std::string swap_case(machine& m, std::string_view text) {
  m.charge_bytes(text.size());
  std::string out;
  for (std::size_t at = 0; at < text.size();) {
    const char32_t c = unicode::decode(text, at);
    unicode::is_upper(c) ? unicode::append_lower(out, c) : unicode::append_upper(out, c);
  }
  return out;
}

template <bool (*fits)(char32_t)>
cell class_method(machine& m, const cell& self, const arguments& args) {
  const parameters none("a character test", args, {});
  m.charge_bytes(self.bytes().size());
  for (std::size_t at = 0; at < self.bytes().size();) {
    if (!fits(unicode::decode(self.bytes(), at))) return false;
  }
  return !self.bytes().empty();
}

bool is_alphanumeric(char32_t c) { return unicode::is_alphabetic(c) || unicode::is_numeric(c) || unicode::is_digit(c); }

template <bool (*fits)(std::string_view)>
cell case_test_method(machine& m, const cell& self, const arguments& args) {
  const parameters none("a case test", args, {});
  m.charge_bytes(self.bytes().size());
  return fits(self.bytes());
}

// One fill character, a blank by default.
std::string fill_character(const parameters& p, std::size_t index) {
  std::string fill = p.string(index, " ");
  if (unicode::length(fill) != 1) throw render_error("the fill character must be exactly one character");
  return fill;
}

enum class side : std::uint8_t { left, right, both };
template <side text_at>
cell justify_method(machine& m, const cell& self, const arguments& args) {
  const parameters p("justify", args, {"width", "fillchar"}, 1);
  const std::string fill = fill_character(p, 1);
  const auto length = static_cast<std::int64_t>(self.as_text().length);
  const std::int64_t width = p.integer(0, 0);
  if (width <= length) return self;
  const auto room = static_cast<std::size_t>(width - length);
  const std::size_t left = text_at == side::left    ? 0
                           : text_at == side::right ? room
                                                    : room / 2 + (room & static_cast<std::size_t>(width) & 1U);
  return m.text(pad(m, self.bytes(), left, room - left, fill));
}

cell zfill_method(machine& m, const cell& self, const arguments& args) {
  const parameters p("zfill", args, {"width"}, 1);
  const auto length = static_cast<std::int64_t>(self.as_text().length);
  const std::int64_t width = p.integer(0, 0);
  if (width <= length) return self;
  std::string_view text = self.bytes();
  const std::string sign(text.starts_with('-') || text.starts_with('+') ? text.substr(0, 1) : "");
  return m.text(sign + pad(m, text.substr(sign.size()), static_cast<std::size_t>(width - length), 0, "0"));
}

cell format_method(machine& m, const cell& self, const arguments& args) { return m.text(format_braces(m, self.bytes(), args)); }

constexpr std::array<builtin, 38> methods = {{
    {"capitalize", map_method<capitalize>},
    {"casefold", map_method<lower>},
    {"center", justify_method<side::both>},
    {"count", count_method},
    {"endswith", affix_method<true>},
    {"find", find_method_of<false, false>},
    {"format", format_method},
    {"index", find_method_of<false, true>},
    {"isalnum", class_method<is_alphanumeric>},
    {"isalpha", class_method<unicode::is_alphabetic>},
    {"isdecimal", class_method<unicode::is_decimal>},
    {"isdigit", class_method<unicode::is_digit>},
    {"islower", case_test_method<is_lower>},
    {"isnumeric", class_method<unicode::is_numeric>},
    {"isspace", class_method<unicode::is_space>},
    {"isupper", case_test_method<is_upper>},
    {"join", join_method},
    {"ljust", justify_method<side::left>},
    {"lower", map_method<lower>},
    {"lstrip", strip_method<true, false>},
    {"partition", partition_method<false>},
    {"removeprefix", remove_affix_method<false>},
    {"removesuffix", remove_affix_method<true>},
    {"replace", replace_method},
    {"rfind", find_method_of<true, false>},
    {"rindex", find_method_of<true, true>},
    {"rjust", justify_method<side::right>},
    {"rpartition", partition_method<true>},
    {"rsplit", split_method<true>},
    {"rstrip", strip_method<false, true>},
    {"split", split_method<false>},
    {"splitlines", splitlines_method},
    {"startswith", affix_method<false>},
    {"strip", strip_method<true, true>},
    {"swapcase", map_method<swap_case>},
    {"title", map_method<title_case>},
    {"upper", map_method<upper>},
    {"zfill", zfill_method},
}};

} // namespace

const builtin* find_string_method(std::string_view name) {
  auto it = std::find_if(methods.begin(), methods.end(), [&](const builtin& b) { return b.name == name; });
  return it == methods.end() ? nullptr : &*it;
}

} // namespace troupe::jinja
