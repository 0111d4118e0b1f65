// How a keeper's address reaches the processes that need it: as a line of their standard input, which no other user can read.
#pragma once

#include "device/keeper/socket.hpp"

namespace troupe::apps {

// The next line of standard input, "NAME TOKEN", and not a byte more. Throws std::runtime_error when it is none.
keeper::address read_keeper_line();

} // namespace troupe::apps
