// The character that keeps control-token text of a client from becoming a control token; encode_chat tells the whole story.
#pragma once

#include <string>
#include <string_view>

namespace troupe {

// U+FDD0, a noncharacter: never part of interchanged text.
inline constexpr char32_t plain_marker_code = 0xFDD0;
inline constexpr std::string_view plain_marker = "\xEF\xB7\x90";

// `text` without any `marker` (not empty).
inline std::string without_markers(std::string_view text, std::string_view marker = plain_marker) {
  std::string out;
  std::size_t done = 0;
  for (std::size_t at = text.find(marker); at != std::string_view::npos; at = text.find(marker, done)) {
    out += text.substr(done, at - done);
    done = at + marker.size();
  }
  return out += text.substr(done);
}

} // namespace troupe
