// strftime, for strftime_now.
#include <time.h>

#include "tokenizer/jinja/machine.hpp"

namespace troupe::jinja {

std::string format_time(std::string_view format, std::int64_t unix_seconds) {
  const auto seconds = static_cast<time_t>(unix_seconds);
  struct tm utc = {};
  if (gmtime_r(&seconds, &utc) == nullptr) throw render_error("strftime_now: the time is out of range");
  std::string out;
  for (std::size_t i = 0; i < format.size(); ++i) {
    if (format[i] != '%') {
      out += format[i];
      continue;
    }
    std::string directive = "%";
    while (++i < format.size() && std::string_view("-_0^#").find(format[i]) != std::string_view::npos) directive += format[i];
    if (i >= format.size() || directive.size() > 4 ||
        std::string_view("aAbBcCdDeFgGhHIjklmMnpPrRsStTuUVwWxXyYzZ%").find(format[i]) == std::string_view::npos) {
      throw render_error("strftime_now: unknown directive");
    }
    directive += format[i];
    char buffer[128];
    out.append(buffer, strftime(buffer, sizeof buffer, directive.c_str(), &utc));
  }
  return out;
}

} // namespace troupe::jinja
