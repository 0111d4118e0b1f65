#include "transport/cluster/gate.hpp"

#include <atomic>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/experimental/awaitable_operators.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/steady_timer.hpp>
#include <charconv>
#include <mutex>
#include <set>
#include <stdexcept>
#include <thread>

#include "transport/cluster/connection.hpp"

namespace troupe::cluster {

namespace {

constexpr int most_on_their_way = 64;

std::string name_of(const tcp::socket& socket) {
  error_code failure;
  const auto peer = socket.remote_endpoint(failure);
  return failure ? std::string("somebody who has left") : peer.address().to_string() + ":" + std::to_string(peer.port());
}

} // namespace

struct gate::impl {
  explicit impl(gate_options o) : options(std::move(o)), tls(make_tls(options.who)), listener(io) {
    error_code failure;
    const auto address = asio::ip::make_address(options.address, failure);
    if (failure) throw std::invalid_argument("'" + options.address + "' is no numeric address");
    const tcp::endpoint at(address, options.port);
    try {
      listener.open(at.protocol());
      listener.set_option(tcp::acceptor::reuse_address(true));
      listener.bind(at);
      listener.listen();
    } catch (const boost::system::system_error& e) {
      throw std::runtime_error("cannot listen at " + options.address + ":" + std::to_string(options.port) + ": " + e.code().message());
    }
    bound = listener.local_endpoint().port();
    asio::co_spawn(io, accept(), asio::detached);
    thread = std::thread([this] { io.run(); });
  }
  ~impl() {
    io.stop();
    thread.join();
  }

  asio::awaitable<void> accept();
  asio::awaitable<void> receive(std::shared_ptr<connection> peer);
  struct verdict {
    std::uint16_t port = 0; // 0: nothing more is said
    std::string reason;     // why not; empty: let in
  };
  asio::awaitable<verdict> let_in(connection& peer);
  asio::awaitable<verdict> judge_line(connection& peer, const std::string& nonce, std::string line);
  void refuse(const std::string& name, const std::string& reason);
  // The local port that a purpose leads to; 0: none.
  std::uint16_t port_of(const std::string& purpose);

  const gate_options options;
  const std::unique_ptr<asio::ssl::context> tls;
  asio::io_context io{1};
  tcp::acceptor listener;
  std::uint16_t bound = 0;
  int on_their_way = 0;
  std::chrono::steady_clock::time_point last_line{};
  std::mutex guard; // of the next two
  std::uint16_t join_port = 0;
  std::set<std::uint16_t> worker_ports;
  std::thread thread;
};

asio::awaitable<void> gate::impl::accept() {
  asio::steady_timer pause(io);
  while (true) {
    auto [failure, socket] = co_await listener.async_accept(as_result);
    if (failure || on_their_way >= most_on_their_way) { // out of files, or somebody floods the port
      pause.expires_after(std::chrono::milliseconds(failure ? 50 : 0));
      co_await pause.async_wait(as_result);
      continue;
    }
    ++on_their_way;
    asio::co_spawn(io, receive(std::make_shared<connection>(std::move(socket), tls.get())), asio::detached);
  }
}

asio::awaitable<void> gate::impl::receive(std::shared_ptr<connection> peer) {
  using namespace asio::experimental::awaitable_operators;
  const std::string name = name_of(peer->socket());
  asio::steady_timer limit(io, handshake_deadline);
  verdict found{0, "said nothing that counts within " + std::to_string(handshake_deadline.count()) + " s"};
  auto outcome = co_await (let_in(*peer) || limit.async_wait(as_result)); // neither throws: that would make this wait for the other
  if (outcome.index() == 0) found = std::get<0>(std::move(outcome));
  --on_their_way;
  if (!found.reason.empty()) refuse(name, found.reason);
  if (found.port == 0) {
    peer->close();
    co_return;
  }
  tcp::socket near(io);
  const auto [failure] = co_await near.async_connect({asio::ip::address_v4::loopback(), found.port}, as_result);
  if (failure) {
    peer->close();
    co_return;
  }
  co_await relay(std::move(peer), std::move(near));
}

asio::awaitable<gate::impl::verdict> gate::impl::let_in(connection& peer) {
  const error_code unsafe = co_await peer.secure(asio::ssl::stream_base::server);
  if (unsafe) co_return verdict{0, "TLS: " + unsafe.message()};
  const std::string nonce = random_nonce();
  const error_code unsaid = co_await peer.write(head_line(nonce));
  if (unsaid) co_return verdict{0, unsaid.message()};
  auto [unheard, line] = co_await peer.read_line();
  if (unheard) co_return verdict{0, unheard.message()};
  verdict found = co_await judge_line(peer, nonce, std::move(line));
  if (!found.reason.empty()) co_await peer.write(refusal_line(found.reason));
  co_return found;
}

asio::awaitable<gate::impl::verdict> gate::impl::judge_line(connection& peer, const std::string& nonce, std::string line) {
  const auto parsed = parse_peer_line(line);
  if (const auto* wrong = std::get_if<parse_error>(&parsed)) co_return verdict{0, wrong->reason};
  const auto& said = std::get<peer_statement>(parsed);
  verdict found{0, judge(said, options.who.token, nonce, options.program, options.any_build)};
  if (!found.reason.empty()) co_return found;
  if (said.purpose != probe_purpose) {
    found.port = port_of(said.purpose);
    if (found.port == 0) co_return verdict{0, "nobody is expected there now"};
  }
  const error_code broken = co_await peer.write(welcome_line(prove_head(options.who.token, nonce, said)));
  if (broken) co_return verdict{0, broken.message()};
  co_return found;
}

std::uint16_t gate::impl::port_of(const std::string& purpose) {
  const std::lock_guard lock(guard);
  if (purpose == join_purpose) return join_port;
  std::uint16_t port = 0;
  const auto [end, failed] = std::from_chars(purpose.data(), purpose.data() + purpose.size(), port);
  const bool whole = failed == std::errc() && end == purpose.data() + purpose.size();
  return whole && worker_ports.contains(port) ? port : std::uint16_t{0};
}

void gate::impl::refuse(const std::string& name, const std::string& reason) {
  if (options.refused) options.refused();
  const auto now = std::chrono::steady_clock::now();
  if (!options.log || now - last_line < std::chrono::seconds(1)) return;
  last_line = now;
  options.log("cluster: refused " + name + ": " + reason);
}

gate::gate(gate_options options) {
  check_credentials(options.who);
  impl_ = std::make_unique<impl>(std::move(options));
}
gate::~gate() = default;

std::uint16_t gate::port() const { return impl_->bound; }

void gate::lead_join_to(std::uint16_t local_port) {
  const std::lock_guard lock(impl_->guard);
  impl_->join_port = local_port;
}

void gate::open(std::uint16_t local_port) {
  const std::lock_guard lock(impl_->guard);
  impl_->worker_ports.insert(local_port);
}

void gate::close(std::uint16_t local_port) {
  const std::lock_guard lock(impl_->guard);
  impl_->worker_ports.erase(local_port);
}

} // namespace troupe::cluster
