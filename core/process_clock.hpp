#pragma once

#include <cstdint>

namespace troupe {

// When this process was started, on the clock of now_ns(), to a hundredth of a second; now, where the system does not tell.
std::uint64_t process_begun_ns();

} // namespace troupe
