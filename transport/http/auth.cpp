#include "transport/http/auth.hpp"

#include <algorithm>
#include <cstddef>

namespace troupe::http {

namespace {

constexpr std::string_view kScheme = "bearer ";

char lower(char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c; }

// 1 when equal, else 0; no branch depends on the bytes.
unsigned equal(std::string_view given, std::string_view key) {
  volatile unsigned difference = given.size() == key.size() ? 0U : 1U;
  for (std::size_t i = 0; i < key.size(); ++i) {
    const unsigned char other = given.empty() ? 0 : static_cast<unsigned char>(given[i % given.size()]);
    difference = difference | (static_cast<unsigned char>(key[i]) ^ other);
  }
  return difference == 0 ? 1U : 0U;
}

} // namespace

bool is_authorized(std::string_view authorization, const std::vector<std::string>& keys) {
  if (keys.empty()) return true;
  if (authorization.size() < kScheme.size() ||
      !std::equal(kScheme.begin(), kScheme.end(), authorization.begin(), [](char a, char b) { return a == lower(b); })) {
    return false;
  }
  std::string_view given = authorization.substr(kScheme.size());
  given.remove_prefix(std::min(given.find_first_not_of(' '), given.size()));
  unsigned matches = 0;
  for (const std::string& key : keys) matches |= equal(given, key);
  return matches != 0 && !given.empty();
}

} // namespace troupe::http
