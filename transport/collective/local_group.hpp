// A group whose ranks are threads of one process.
#pragma once

#include <chrono>
#include <memory>
#include <vector>

#include "transport/collective/communicator.hpp"

namespace troupe {

// One communicator for each rank, in their order. `deadline` bounds every call. A rank whose communicator is destroyed has left: who waits
// for it then gets peer_lost. A send returns at once while less than 64 MiB wait for the receiver.
std::vector<std::unique_ptr<communicator>> make_local_group(int size, std::chrono::milliseconds deadline);

} // namespace troupe
