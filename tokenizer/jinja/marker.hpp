// The character that keeps control-token text of a client from becoming a control token; see encode_chat.
#pragma once

#include <string>
#include <string_view>

namespace troupe::jinja {

// A Unicode noncharacter: never part of interchanged text. It passes through escaping filters unchanged and is dropped by the tokenizer.
constexpr char32_t kPlainMarker = 0xFDD0;
constexpr std::string_view kPlainMarkerText = "\xEF\xB7\x90";

inline std::string without_markers(std::string_view text) {
  std::string out;
  std::size_t done = 0;
  for (std::size_t at = text.find(kPlainMarkerText); at != std::string_view::npos; at = text.find(kPlainMarkerText, done)) {
    out += text.substr(done, at - done);
    done = at + kPlainMarkerText.size();
  }
  return out += text.substr(done);
}

} // namespace troupe::jinja
