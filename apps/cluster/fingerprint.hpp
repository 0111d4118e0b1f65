// Whether two machines have the same model.
#pragma once

#include <string>

#include "models/checkpoint.hpp"

namespace troupe::apps {

// Of a checkpoint's configuration and of every tensor's name, type, shape and size: 16 hexadecimal digits. Weights are not read, so a file
// whose bytes alone differ is not told apart.
std::string fingerprint(const checkpoint& source);

} // namespace troupe::apps
