#include "transport/http/server.hpp"

#include <algorithm>
#include <atomic>
#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/ip/v6_only.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/strand.hpp>
#include <condition_variable>
#include <map>
#include <mutex>
#include <random>
#include <stdexcept>
#include <thread>

#include "transport/http/api.hpp"
#include "transport/http/session.hpp"

namespace troupe::http {

namespace {

namespace asio = boost::asio;
using asio::ip::tcp;
using boost::system::error_code;

constexpr std::size_t kRefusing = 64;                  // connections over the limit that are answered 503; more are closed at once
constexpr std::chrono::milliseconds kAcceptPause{100}; // when accepting fails, as without free descriptors
constexpr std::chrono::seconds kFarewell{2};           // stop(): for last events to reach the clients
constexpr std::chrono::seconds kClosing{2};            // stop(): for what is left to close

tcp::endpoint endpoint_of(asio::io_context& io, const std::string& host, std::uint16_t port) {
  error_code ec;
  const auto address = asio::ip::make_address(host, ec);
  if (!ec) return {address, port};
  tcp::resolver resolver(io);
  return resolver.resolve(host, std::to_string(port), tcp::resolver::passive)->endpoint();
}

tcp::acceptor listen(asio::io_context& io, const server_options& options) {
  try {
    const auto endpoint = endpoint_of(io, options.host, options.port);
    tcp::acceptor acceptor(asio::make_strand(io));
    acceptor.open(endpoint.protocol());
    acceptor.set_option(asio::socket_base::reuse_address(true));
    if (endpoint.address().is_v6()) acceptor.set_option(asio::ip::v6_only(false));
    acceptor.bind(endpoint);
    acceptor.listen(asio::socket_base::max_listen_connections);
    return acceptor;
  } catch (const boost::system::system_error& e) {
    throw std::runtime_error("cannot listen on " + options.host + ":" + std::to_string(options.port) + ": " + e.code().message());
  }
}

std::uint64_t random_prefix() {
  std::random_device device;
  return (std::uint64_t{device()} << 32U) | device();
}

} // namespace

struct server::impl {
  impl(server_options given, request_handler& handler, server_hooks given_hooks)
      : options(std::move(given)),
        hooks(std::move(given_hooks)),
        routes(options, handler, hooks),
        io(std::max(options.threads, 1)),
        acceptor(listen(io, options)),
        pause(acceptor.get_executor()),
        context{io, routes, options.limits, random_prefix()},
        port(acceptor.local_endpoint().port()),
        is_v6(acceptor.local_endpoint().address().is_v6()) {
    asio::post(acceptor.get_executor(), [this] { accept(); });
    for (int i = 0; i < std::max(options.threads, 1); ++i) threads.emplace_back([this] { run(); });
  }

  void run() {
    for (;;) {
      try {
        io.run();
        return;
      } catch (...) { // handlers let nothing out; should one do so after all, the others go on
      }
    }
  }

  // --- on the acceptor's strand ---

  void accept() {
    if (routes.is_draining()) return;
    acceptor.async_accept(io, [this](error_code ec, tcp::socket socket) {
      if (routes.is_draining()) return;
      if (ec) return accept_later();
      try {
        open(std::move(socket));
      } catch (const std::exception&) { // this connection is lost, the next may be luckier
      }
      accept();
    });
  }

  void accept_later() {
    pause.expires_after(kAcceptPause);
    pause.async_wait([this](error_code ec) {
      if (!ec) accept();
    });
  }

  void open(tcp::socket socket) {
    const std::size_t now = open_sessions();
    if (now >= options.limits.connections + kRefusing) return;
    const int descriptor = socket.release();
    const auto key = ++last_key;
    auto made = make_session(context, descriptor, is_v6, now >= options.limits.connections, [this, key] { forget(key); });
    {
      const std::lock_guard guard(lock);
      if (stopping) return;
      sessions.emplace(key, made);
    }
    made->start();
  }

  // --- any thread ---

  std::size_t open_sessions() {
    const std::lock_guard guard(lock);
    return sessions.size();
  }

  void forget(std::uint64_t key) {
    std::shared_ptr<session> last; // released without the lock
    const std::lock_guard guard(lock);
    if (const auto it = sessions.find(key); it != sessions.end()) {
      last = std::move(it->second);
      sessions.erase(it);
    }
    if (sessions.empty()) all_closed.notify_all();
  }

  void drain() {
    if (drained.exchange(true)) return;
    routes.drain();
    asio::post(acceptor.get_executor(), [this] {
      error_code ignored;
      acceptor.close(ignored);
      pause.cancel();
    });
  }

  std::vector<std::shared_ptr<session>> snapshot() {
    const std::lock_guard guard(lock);
    stopping = true;
    std::vector<std::shared_ptr<session>> out;
    for (const auto& [key, open] : sessions) out.push_back(open);
    return out;
  }

  void wait_closed(std::chrono::seconds limit) {
    std::unique_lock guard(lock);
    all_closed.wait_for(guard, limit, [this] { return sessions.empty(); });
  }

  void stop() {
    const std::lock_guard once(stop_lock);
    if (threads.empty()) return;
    drain();
    for (const auto& open : snapshot()) open->shut_down();
    wait_closed(kFarewell);
    for (const auto& open : snapshot()) open->abort();
    wait_closed(kClosing);
    work.reset();
    io.stop();
    for (std::thread& thread : threads) thread.join();
    threads.clear();
    std::map<std::uint64_t, std::shared_ptr<session>> rest;
    {
      const std::lock_guard guard(lock);
      rest.swap(sessions); // only where a handler blocked its thread
    }
  }

  // Before `io`, so that they outlive every handler left in it.
  std::mutex lock; // of the three below
  std::map<std::uint64_t, std::shared_ptr<session>> sessions;
  std::condition_variable all_closed;
  bool stopping = false; // no session may be added

  const server_options options;
  const server_hooks hooks;
  api routes;
  asio::io_context io;
  asio::executor_work_guard<asio::io_context::executor_type> work{io.get_executor()};
  tcp::acceptor acceptor;
  asio::steady_timer pause;
  session_context context;
  const std::uint16_t port;
  const bool is_v6;

  std::uint64_t last_key = 0; // on the acceptor's strand
  std::atomic<bool> drained{false};
  std::mutex stop_lock;
  std::vector<std::thread> threads;
};

server::server(server_options options, request_handler& handler, server_hooks hooks)
    : impl_(std::make_unique<impl>(std::move(options), handler, std::move(hooks))) {}

server::~server() { stop(); }

std::uint16_t server::port() const { return impl_->port; }
void server::drain() { impl_->drain(); }
std::size_t server::active_requests() const { return impl_->context.active; }
void server::stop() { impl_->stop(); }

} // namespace troupe::http
