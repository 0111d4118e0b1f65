#include "transport/cluster/links.hpp"

#include <boost/asio/co_spawn.hpp>
#include <boost/asio/connect.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/experimental/awaitable_operators.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/use_future.hpp>
#include <thread>

#include "transport/cluster/connection.hpp"

namespace troupe::cluster {

namespace {

constexpr std::chrono::seconds caller_deadline{60}; // for the one connection of an open port

bool hopeless(const error_code& failure) { return failure.category() == asio::error::get_ssl_category(); }

} // namespace

struct links::impl {
  explicit impl(link_options o) : options(std::move(o)), tls(make_tls(options.who)), thread([this] { io.run(); }) {}
  ~impl() {
    io.stop();
    thread.join();
  }

  std::string head() const { return options.host + ":" + std::to_string(options.port); }
  asio::awaitable<std::shared_ptr<connection>> connect(std::string purpose);
  template <class T>
  struct attempt {
    T made{};
    std::exception_ptr failure; // null: it was made
  };
  asio::awaitable<attempt<std::shared_ptr<connection>>> try_to_connect(std::string purpose);
  asio::awaitable<std::shared_ptr<connection>> connect_and_prove(std::string purpose);
  asio::awaitable<void> prove(connection& to, std::string purpose);
  asio::awaitable<attempt<route>> probe();
  asio::awaitable<void> lead(std::shared_ptr<tcp::acceptor> listener, std::string purpose);

  const link_options options;
  const std::unique_ptr<asio::ssl::context> tls;
  asio::io_context io{1};
  asio::executor_work_guard<asio::io_context::executor_type> work{io.get_executor()};
  std::thread thread;
};

asio::awaitable<std::shared_ptr<connection>> links::impl::connect_and_prove(std::string purpose) {
  tcp::resolver resolver(io);
  const auto [unknown, addresses] = co_await resolver.async_resolve(options.host, std::to_string(options.port), as_result);
  if (unknown) throw std::runtime_error("cannot find " + options.host + ": " + unknown.message());
  tcp::socket socket(io);
  const auto [failure, peer] = co_await asio::async_connect(socket, addresses, as_result);
  if (failure) throw std::runtime_error("cannot reach " + head() + ": " + failure.message());
  auto to = std::make_shared<connection>(std::move(socket), tls.get());
  co_await prove(*to, std::move(purpose));
  co_return to;
}

asio::awaitable<links::impl::attempt<std::shared_ptr<connection>>> links::impl::try_to_connect(std::string purpose) {
  attempt<std::shared_ptr<connection>> one;
  try {
    one.made = co_await connect_and_prove(std::move(purpose));
  } catch (...) {
    one.failure = std::current_exception();
  }
  co_return one;
}

constexpr const char* tls_hint = " (does one side use TLS, and the other not?)";

asio::awaitable<std::shared_ptr<connection>> links::impl::connect(std::string purpose) {
  using namespace asio::experimental::awaitable_operators;
  asio::steady_timer limit(io, handshake_deadline);
  // Neither throws: an exception on one side would make this wait for the other.
  auto outcome = co_await (try_to_connect(std::move(purpose)) || limit.async_wait(as_result));
  if (outcome.index() == 0) {
    auto one = std::get<0>(std::move(outcome));
    if (one.failure) std::rethrow_exception(one.failure);
    co_return one.made;
  }
  throw std::runtime_error(head() + " did not answer within " + std::to_string(handshake_deadline.count()) + " s" + tls_hint);
}

asio::awaitable<void> links::impl::prove(connection& to, std::string purpose) {
  const error_code unsafe = co_await to.secure(asio::ssl::stream_base::client);
  if (unsafe && hopeless(unsafe)) throw refused("TLS with " + head() + ": " + unsafe.message());
  if (unsafe) throw std::runtime_error("TLS with " + head() + ": " + unsafe.message());
  const auto [unheard, greeting] = co_await to.read_line();
  if (unheard && hopeless(unheard)) throw refused("TLS with " + head() + ": " + unheard.message());
  // Each side waits for the other's first word where only one uses TLS; whose patience ends first is chance.
  if (unheard) throw std::runtime_error(head() + " hung up before it said a word: " + unheard.message() + tls_hint);
  const auto nonce = parse_head_line(greeting);
  if (const auto* wrong = std::get_if<parse_error>(&nonce)) throw refused(head() + ": " + wrong->reason);
  peer_statement said{options.program, std::move(purpose), random_nonce(), {}};
  said.proof = prove_peer(options.who.token, std::get<std::string>(nonce), said);
  const error_code unsaid = co_await to.write(peer_line(said));
  if (unsaid) throw std::runtime_error(head() + " hung up: " + unsaid.message());
  const auto [silent, answer] = co_await to.read_line();
  if (silent && hopeless(silent)) throw refused("TLS with " + head() + ": " + silent.message());
  if (silent) throw std::runtime_error(head() + " hung up: " + silent.message());
  const auto proof = parse_answer(answer);
  if (const auto* no = std::get_if<parse_error>(&proof)) throw refused(no->reason);
  if (!same_proof(std::get<std::string>(proof), prove_head(options.who.token, std::get<std::string>(nonce), said))) {
    throw refused(head() + " does not know the token of its cluster");
  }
}

// A failure is handed to the caller's thread as a value: thrown through the future it would belong to both threads, and either might be the
// one that frees it.
asio::awaitable<links::impl::attempt<links::route>> links::impl::probe() {
  attempt<route> one;
  try {
    const auto to = co_await connect(std::string(probe_purpose));
    one.made = {to->socket().local_endpoint().address().to_string(), to->socket().remote_endpoint().address().to_string()};
  } catch (...) {
    one.failure = std::current_exception();
  }
  co_return one;
}

asio::awaitable<void> links::impl::lead(std::shared_ptr<tcp::acceptor> listener, std::string purpose) {
  using namespace asio::experimental::awaitable_operators;
  try {
    asio::steady_timer limit(io, caller_deadline);
    auto outcome = co_await (listener->async_accept(as_result) || limit.async_wait(as_result));
    listener->close();
    if (outcome.index() == 1) co_return;
    auto [failure, near] = std::get<0>(std::move(outcome));
    if (failure) co_return;
    auto far = co_await connect(std::move(purpose));
    co_await relay(std::move(far), std::move(near));
  } catch (const std::exception&) { // the caller sees his connection close
  }
}

links::links(link_options options) {
  check_credentials(options.who);
  impl_ = std::make_unique<impl>(std::move(options));
}
links::~links() = default;

links::route links::probe() {
  auto one = asio::co_spawn(impl_->io, impl_->probe(), asio::use_future).get();
  if (one.failure) std::rethrow_exception(std::move(one.failure));
  return std::move(one.made);
}

std::uint16_t links::open(const std::string& purpose) {
  auto listener = std::make_shared<tcp::acceptor>(impl_->io, tcp::endpoint(asio::ip::address_v4::loopback(), 0));
  const std::uint16_t port = listener->local_endpoint().port();
  asio::co_spawn(impl_->io, impl_->lead(std::move(listener), purpose), asio::detached);
  return port;
}

} // namespace troupe::cluster
