#include "models/load_check.hpp"

#include "core/error.hpp"

namespace troupe {

std::optional<std::size_t> element_count(std::span<const std::int64_t> shape) {
  std::optional<std::size_t> count = 1;
  bool empty = false;
  for (std::int64_t dimension : shape) {
    if (dimension < 0) return std::nullopt;
    if (dimension == 0) {
      empty = true; // but the other dimensions must still be sane
      continue;
    }
    count = checked_multiply(*count, static_cast<std::size_t>(dimension));
    if (!count) return std::nullopt;
  }
  return empty ? 0 : count;
}

std::string shape_text(std::span<const std::int64_t> shape) {
  std::string text = "[";
  for (std::size_t i = 0; i < shape.size(); ++i) text += (i == 0 ? "" : ", ") + std::to_string(shape[i]);
  return text + "]";
}

std::string printable(std::string_view text) {
  constexpr std::size_t longest = 96;
  std::string out;
  for (char c : text.substr(0, longest)) out += c >= 0x20 && c < 0x7f ? c : '?';
  if (text.size() > longest) out += "...";
  return out;
}

void fail_load(std::string_view file, std::string_view item, std::string_view reason) {
  std::string line(file);
  line += ": ";
  if (!item.empty()) line += printable(item) + ": ";
  line += reason;
  throw load_error(line);
}

} // namespace troupe
