// printf into a string, for tables: lines up to 255 bytes.
#pragma once

#include <array>
#include <cstdarg>
#include <cstdio>
#include <string>

namespace troupe::bench {

[[gnu::format(printf, 1, 2)]] inline std::string format(const char* pattern, ...) {
  std::array<char, 256> text{};
  std::va_list arguments;
  va_start(arguments, pattern);
  std::vsnprintf(text.data(), text.size(), pattern, arguments);
  va_end(arguments);
  return text.data();
}

} // namespace troupe::bench
