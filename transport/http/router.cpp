#include "transport/http/router.hpp"

#include <algorithm>
#include <array>
#include <charconv>

namespace troupe::http {

namespace {

constexpr std::string_view kRead = "GET, HEAD";
constexpr std::string_view kWrite = "POST";
constexpr std::string_view kModelPrefix = "/v1/models/";

struct known_route {
  std::string_view path;
  route target;
  std::string_view allow;
};

constexpr std::array<known_route, 10> kRoutes = {{
    {"/v1/models", route::models, kRead},
    {"/v1/completions", route::completions, kWrite},
    {"/v1/chat/completions", route::chat_completions, kWrite},
    {"/tokenize", route::tokenize, kWrite},
    {"/detokenize", route::detokenize, kWrite},
    {"/version", route::version, kRead},
    {"/livez", route::livez, kRead},
    {"/readyz", route::readyz, kRead},
    {"/health", route::health, kRead},
    {"/metrics", route::metrics, kRead},
}};

bool allows(std::string_view allow, std::string_view method) {
  return allow == kRead ? method == "GET" || method == "HEAD" : method == kWrite;
}

// "http://host/path?query" and "/path?query" -> "/path".
std::string_view path_of(std::string_view target) {
  for (std::string_view scheme : {"http://", "https://"}) {
    if (!target.starts_with(scheme)) continue;
    const auto slash = target.find('/', scheme.size());
    target = slash == std::string_view::npos ? std::string_view("/") : target.substr(slash);
    break;
  }
  return target.substr(0, target.find_first_of("?#"));
}

// A '%' that does not begin two hex digits stays as it is: such a name matches no model.
std::string percent_decoded(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  for (std::size_t i = 0; i < text.size(); ++i) {
    unsigned byte = 0;
    const char* digits = text.data() + i + 1;
    if (text[i] == '%' && text.size() - i > 2 && std::from_chars(digits, digits + 2, byte, 16).ptr == digits + 2) {
      out += static_cast<char>(byte);
      i += 2;
    } else {
      out += text[i];
    }
  }
  return out;
}

} // namespace

route_match find_route(std::string_view method, std::string_view target) {
  const std::string_view path = path_of(target);
  const auto known = std::find_if(kRoutes.begin(), kRoutes.end(), [&](const known_route& r) { return r.path == path; });
  if (known != kRoutes.end()) return {known->target, known->path, known->allow, allows(known->allow, method), ""};
  if (path.size() > kModelPrefix.size() && path.starts_with(kModelPrefix)) {
    return {route::model, "/v1/models/{id}", kRead, allows(kRead, method), percent_decoded(path.substr(kModelPrefix.size()))};
  }
  return {};
}

bool takes_work(route target) {
  return target == route::completions || target == route::chat_completions || target == route::tokenize || target == route::detokenize;
}

bool is_open_to_all(route target) { return target == route::livez || target == route::readyz; }

} // namespace troupe::http
