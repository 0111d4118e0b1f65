// http://host[:port][/prefix], as a benchmark's target.
#pragma once

#include <string>
#include <string_view>

namespace troupe::bench {

struct server_url {
  std::string host; // without the brackets of an IPv6 address
  std::string port = "80";
  std::string prefix;      // of every path, without a slash at its end; a "/v1" at its end is left out, as clients' base URLs have it
  std::string host_header; // as the Host field wants it
};

struct url_or_error {
  server_url value;
  std::string failure; // empty when the URL was good
};

url_or_error parse_url(std::string_view text);

} // namespace troupe::bench
