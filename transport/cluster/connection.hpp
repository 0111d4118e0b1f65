// One connection between two machines of a cluster, with or without TLS, and what carries its bytes on to a local socket. Part of gate and
// links; everything here runs on their one thread.
#pragma once

#include <boost/asio/as_tuple.hpp>
#include <boost/asio/awaitable.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/ssl/context.hpp>
#include <boost/asio/ssl/stream.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <chrono>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>

#include "transport/cluster/credentials.hpp"

namespace troupe::cluster {

namespace asio = boost::asio;
using asio::ip::tcp;
using boost::system::error_code;

inline constexpr auto as_result = asio::as_tuple(asio::use_awaitable);
inline constexpr std::chrono::seconds handshake_deadline{5};

// Both sides show a certificate, judged by the authority; TLS 1.3 alone. Null without certificates. Throws std::invalid_argument naming the
// file that will not do.
std::unique_ptr<asio::ssl::context> make_tls(const credentials& who);

class connection {
 public:
  // `tls` may be null; it outlives the connection.
  connection(tcp::socket socket, asio::ssl::context* tls);

  tcp::socket& socket() { return socket_; }
  void close();

  // The TLS handshake, where there is one.
  asio::awaitable<error_code> secure(asio::ssl::stream_base::handshake_type side);
  asio::awaitable<std::pair<error_code, std::size_t>> read_some(std::span<char> into);
  asio::awaitable<error_code> write(std::string_view bytes);
  // Without its end. Fails with message_size where no line ends within max_line bytes.
  asio::awaitable<std::pair<error_code, std::string>> read_line();
  // What was read behind the last line.
  std::string take_rest() { return std::exchange(rest_, {}); }

 private:
  tcp::socket socket_;
  std::optional<asio::ssl::stream<tcp::socket&>> tls_;
  std::string rest_;
};

// Carries bytes in both directions until either side ends, then closes both.
asio::awaitable<void> relay(std::shared_ptr<connection> far, tcp::socket near);

} // namespace troupe::cluster
