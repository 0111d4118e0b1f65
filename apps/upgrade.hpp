// `troupe upgrade`, from the server's side: what may be asked of a running server, and who does it.
#pragma once

#include <memory>
#include <string>

#include "actors/serving.hpp"
#include "apps/admin/admin_socket.hpp"

namespace troupe::apps {

// Listens for `troupe upgrade` on behalf of `engine`, which must outlive what is returned; null, with a line in the log, where the name
// is taken. `program`: the path of this server's own program, which is what an upgrade takes unless it names another.
std::unique_ptr<admin_socket> listen_for_upgrades(actors::serving& engine, std::string program);

// Where this process's program lay when it was called. To be asked before the file can have been replaced.
std::string program_path();

} // namespace troupe::apps
