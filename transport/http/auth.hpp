// API keys.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace troupe::http {

// True when `authorization` is "Bearer KEY" with one of `keys`, or when there are none. The time it takes depends on the lengths of the
// keys and of the header alone: every key is compared to its end, whatever matched before.
bool is_authorized(std::string_view authorization, const std::vector<std::string>& keys);

} // namespace troupe::http
