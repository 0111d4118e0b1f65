#include "transport/cluster/connection.hpp"

#include <netinet/tcp.h>

#include <array>
#include <boost/asio/experimental/awaitable_operators.hpp>
#include <boost/asio/write.hpp>
#include <stdexcept>

#include "transport/cluster/handshake.hpp"

namespace troupe::cluster {

namespace {

constexpr std::size_t relay_bytes = 64U << 10; // carried at once
constexpr int unacknowledged_ms = 5'000;       // a network that takes no bytes for so long has lost the connection

using user_timeout = asio::detail::socket_option::integer<IPPROTO_TCP, TCP_USER_TIMEOUT>;

void set_up(tcp::socket& socket) {
  error_code ignored; // a socket that has just broken says so when it is read
  socket.set_option(tcp::no_delay(true), ignored);
  socket.set_option(user_timeout(unacknowledged_ms), ignored);
}

void check(const error_code& failure, const std::string& what) {
  if (failure) throw std::invalid_argument(what + ": " + failure.message());
}

} // namespace

std::unique_ptr<asio::ssl::context> make_tls(const credentials& who) {
  if (!who.tls()) return nullptr;
  auto tls = std::make_unique<asio::ssl::context>(asio::ssl::context::tls);
  error_code failure;
  if (SSL_CTX_set_min_proto_version(tls->native_handle(), TLS1_3_VERSION) != 1) throw std::invalid_argument("TLS 1.3 is not to be had");
  check(tls->use_certificate_chain_file(who.certificate.string(), failure), "--cluster-cert " + who.certificate.string());
  check(tls->use_private_key_file(who.key.string(), asio::ssl::context::pem, failure), "--cluster-key " + who.key.string());
  check(tls->load_verify_file(who.authority.string(), failure), "--cluster-ca " + who.authority.string());
  if (SSL_CTX_check_private_key(tls->native_handle()) != 1) {
    throw std::invalid_argument("--cluster-key " + who.key.string() + " is not the key of " + who.certificate.string());
  }
  check(tls->set_verify_mode(asio::ssl::verify_peer | asio::ssl::verify_fail_if_no_peer_cert, failure), "TLS");
  SSL_CTX_set_num_tickets(tls->native_handle(), 0); // each connection proves itself anew
  return tls;
}

connection::connection(tcp::socket socket, asio::ssl::context* tls) : socket_(std::move(socket)) {
  if (tls != nullptr) tls_.emplace(socket_, *tls);
  set_up(socket_);
}

void connection::close() {
  error_code ignored;
  socket_.close(ignored);
}

asio::awaitable<error_code> connection::secure(asio::ssl::stream_base::handshake_type side) {
  if (!tls_) co_return error_code{};
  const auto [failure] = co_await tls_->async_handshake(side, as_result);
  co_return failure;
}

asio::awaitable<std::pair<error_code, std::size_t>> connection::read_some(std::span<char> into) {
  const auto buffer = asio::buffer(into.data(), into.size());
  if (tls_) {
    const auto [failure, count] = co_await tls_->async_read_some(buffer, as_result);
    co_return std::pair(failure, count);
  }
  const auto [failure, count] = co_await socket_.async_read_some(buffer, as_result);
  co_return std::pair(failure, count);
}

asio::awaitable<error_code> connection::write(std::string_view bytes) {
  const auto buffer = asio::buffer(bytes.data(), bytes.size());
  if (tls_) {
    const auto [failure, count] = co_await asio::async_write(*tls_, buffer, as_result);
    co_return failure;
  }
  const auto [failure, count] = co_await asio::async_write(socket_, buffer, as_result);
  co_return failure;
}

asio::awaitable<std::pair<error_code, std::string>> connection::read_line() {
  std::array<char, max_line> bytes{};
  std::size_t end = rest_.find('\n');
  while (end == std::string::npos) {
    if (rest_.size() >= max_line) co_return std::pair(error_code(asio::error::message_size), std::string());
    const auto [failure, count] = co_await read_some(bytes);
    if (failure) co_return std::pair(failure, std::string());
    rest_.append(bytes.data(), count);
    end = rest_.find('\n');
  }
  std::string line = rest_.substr(0, end);
  rest_.erase(0, end + 1);
  co_return std::pair(error_code{}, std::move(line));
}

namespace {

asio::awaitable<void> carry_in(connection& far, tcp::socket& near) {
  std::vector<char> bytes(relay_bytes);
  const std::string first = far.take_rest();
  if (!first.empty()) {
    const auto [failure, count] = co_await asio::async_write(near, asio::buffer(first), as_result);
    if (failure) co_return;
  }
  while (true) {
    const auto [failure, count] = co_await far.read_some(bytes);
    if (failure) co_return;
    const auto [broken, written] = co_await asio::async_write(near, asio::buffer(bytes.data(), count), as_result);
    if (broken) co_return;
  }
}

asio::awaitable<void> carry_out(tcp::socket& near, connection& far) {
  std::vector<char> bytes(relay_bytes);
  while (true) {
    const auto [failure, count] = co_await near.async_read_some(asio::buffer(bytes), as_result);
    if (failure) co_return;
    const error_code broken = co_await far.write({bytes.data(), count});
    if (broken) co_return;
  }
}

} // namespace

asio::awaitable<void> relay(std::shared_ptr<connection> far, tcp::socket near) {
  using namespace asio::experimental::awaitable_operators;
  error_code ignored;
  near.set_option(tcp::no_delay(true), ignored);
  co_await (carry_in(*far, near) || carry_out(near, *far));
  near.close(ignored);
  far->close();
}

} // namespace troupe::cluster
