// Which compilation this program is.
#pragma once

#include <string>

namespace troupe::apps {

// The linker's build id, a hash of the program's contents, in hexadecimal; "unknown" where the linker wrote none. Stripping keeps it.
std::string build_id();

} // namespace troupe::apps
