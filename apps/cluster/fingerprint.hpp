// Whether two machines have the same model.
#pragma once

#include <string>

#include "apps/engine_options.hpp"
#include "models/checkpoint.hpp"

namespace troupe::apps {

// Of the configuration of a checkpoint, and of the draft model that `options` name, and of every tensor's name, type, shape and size: 16
// hexadecimal digits. Weights are not read, so a file whose bytes alone differ is not told apart. Throws load_error.
std::string fingerprint(const engine_options& options, const checkpoint& source);

} // namespace troupe::apps
