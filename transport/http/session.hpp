// One client connection: reads requests one after the other, writes their answers in order, notices when the client goes away.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "transport/http/api.hpp"

namespace boost::asio {
class io_context;
}

namespace troupe::http {

// What all connections of a server share. Outlives them.
struct session_context {
  boost::asio::io_context& io;
  api& routes;
  const server_limits& limits;
  std::uint64_t id_prefix; // random; makes text ids differ between processes
  std::atomic<std::uint64_t> last_id{0};
  std::atomic<std::size_t> active{0}; // requests for work whose answer is not yet written
};

class session {
 public:
  virtual ~session() = default;
  // All three may be called from any thread and only post.
  virtual void start() = 0;
  // Ends the request under way with an error and then the connection.
  virtual void shut_down() = 0;
  // Closes the connection now.
  virtual void abort() = 0;
};

// Takes over the connected, non-blocking socket `native_socket`; `on_closed` is called once, when the socket was closed. A session made
// to `refuse` answers its first request with 503.
std::shared_ptr<session> make_session(session_context& context, int native_socket, bool is_v6, bool refuse,
                                      std::function<void()> on_closed);

} // namespace troupe::http
