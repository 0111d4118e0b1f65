#include "apps/bench/url.hpp"

#include <algorithm>
#include <charconv>
#include <system_error>

namespace troupe::bench {
namespace {

bool is_plain(std::string_view text) {
  return std::all_of(text.begin(), text.end(), [](unsigned char c) { return c > 0x20 && c < 0x7f && c != '?' && c != '#' && c != '@'; });
}

bool is_port(std::string_view text) {
  unsigned parsed = 0;
  const auto [end, failure] = std::from_chars(text.data(), text.data() + text.size(), parsed);
  return failure == std::errc{} && end == text.data() + text.size() && parsed >= 1 && parsed <= 65535;
}

} // namespace

url_or_error parse_url(std::string_view text) {
  url_or_error out;
  const auto fail = [&](std::string_view reason) {
    out.failure = "the URL cannot be used: " + std::string(reason);
    return out;
  };
  constexpr std::string_view scheme = "http://";
  if (text.starts_with("https://")) return fail("https is not spoken here, use the server's plain port");
  if (!text.starts_with(scheme)) return fail("it has to begin with http://");
  auto rest = text.substr(scheme.size());
  if (!is_plain(rest)) return fail("blanks, '?', '#' and '@' are not allowed");
  auto authority = rest.substr(0, rest.find('/'));
  auto path = rest.substr(authority.size());
  while (path.ends_with('/')) path.remove_suffix(1);
  if (path.ends_with("/v1")) path.remove_suffix(3);
  out.value.prefix = path;
  out.value.host_header = authority;
  if (authority.starts_with('[')) {
    const auto close = authority.find(']');
    if (close == std::string_view::npos) return fail("']' is missing");
    out.value.host = authority.substr(1, close - 1);
    authority.remove_prefix(close + 1);
  } else {
    out.value.host = authority.substr(0, authority.find(':'));
    authority.remove_prefix(out.value.host.size());
  }
  if (out.value.host.empty()) return fail("the host is missing");
  if (authority.empty()) return out;
  if (authority.front() != ':' || !is_port(authority.substr(1))) return fail("the port is no number within 1 to 65535");
  out.value.port = authority.substr(1);
  return out;
}

} // namespace troupe::bench
