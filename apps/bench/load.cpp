#include "apps/bench/load.hpp"

#include <boost/asio/awaitable.hpp>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/redirect_error.hpp>
#include <boost/asio/signal_set.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/core/tcp_stream.hpp>
#include <boost/beast/http.hpp>

#include <algorithm>
#include <array>
#include <csignal>
#include <exception>
#include <memory>
#include <utility>

#include "apps/bench/sse_parser.hpp"
#include "apps/bench/stream_reader.hpp"

namespace troupe::bench {
namespace {

namespace asio = boost::asio;
namespace beast = boost::beast;
namespace http = beast::http;
using asio::ip::tcp;
using clock = std::chrono::steady_clock;
using boost::system::error_code;

constexpr std::size_t max_error_body = 64U << 10;

http::request<http::string_body> make_request(const connection_options& connection, http::verb verb, std::string_view path,
                                              std::string body) {
  http::request<http::string_body> request(verb, connection.url.prefix + std::string(path), 11);
  request.set(http::field::host, connection.url.host_header);
  request.set(http::field::user_agent, "troupe-bench");
  if (!connection.api_key.empty()) request.set(http::field::authorization, "Bearer " + connection.api_key);
  if (verb == http::verb::post) request.set(http::field::content_type, "application/json");
  request.body() = std::move(body);
  request.prepare_payload();
  return request;
}

error unreachable(const server_url& url, const error_code& failure) {
  return {error_kind::unavailable, "cannot reach " + url.host_header + ": " + failure.message(), "", std::nullopt};
}

class load {
 public:
  load(const load_options& options, const std::vector<planned_request>& requests, tcp::resolver::results_type addresses)
      : options_(options), requests_(requests), addresses_(std::move(addresses)), records_(requests.size()) {}

  load_result run();

 private:
  struct connection {
    explicit connection(asio::io_context& io) : stream(io) {}
    beast::tcp_stream stream;
    beast::flat_buffer buffer;
  };

  double now() const { return std::chrono::duration<double>(clock::now() - start_).count(); }
  void interrupt();
  void ended(std::size_t index);
  asio::awaitable<void> launch();
  asio::awaitable<void> report();
  asio::awaitable<void> send(std::size_t index);
  asio::awaitable<error_code> open(connection& to, request_record& record);
  // Sends and reads the header; on a kept connection that the server closed meanwhile, once more on a new one.
  asio::awaitable<error_code> exchange(std::shared_ptr<connection>& to, std::size_t index,
                                       http::response_parser<http::buffer_body>& parser);
  asio::awaitable<error_code> read_body(connection& from, request_record& record, http::response_parser<http::buffer_body>& parser);

  const load_options& options_;
  const std::vector<planned_request>& requests_;
  tcp::resolver::results_type addresses_;
  std::vector<request_record> records_;
  asio::io_context io_{1};
  asio::steady_timer next_{io_}; // the launcher waits on it for the next arrival or for a free place
  asio::steady_timer tick_{io_};
  asio::signal_set signals_{io_};
  std::vector<std::shared_ptr<connection>> idle_;
  std::vector<std::shared_ptr<connection>> busy_;
  clock::time_point start_;
  progress seen_;
  std::size_t sent_ = 0;
  bool interrupted_ = false;
};

std::string_view failure_kind(const error_code& failure) {
  if (failure == beast::error::timeout) return "timeout";
  if (failure == http::error::end_of_stream || failure == http::error::partial_message) return "disconnected";
  static const auto& http_category = http::make_error_code(http::error::bad_version).category();
  return failure.category() == http_category ? "malformed answer" : "disconnected";
}

asio::awaitable<error_code> load::open(connection& to, request_record& record) {
  error_code failure;
  co_await to.stream.async_connect(addresses_, asio::redirect_error(asio::use_awaitable, failure));
  if (failure) {
    record.failure = failure == beast::error::timeout ? "timeout" : "connect";
    record.detail = failure.message();
    co_return failure;
  }
  to.stream.socket().set_option(tcp::no_delay(true), failure);
  co_return error_code{};
}

asio::awaitable<error_code> load::exchange(std::shared_ptr<connection>& to, std::size_t index,
                                           http::response_parser<http::buffer_body>& parser) {
  auto& record = records_[index];
  const auto request = make_request(options_.connection, http::verb::post, requests_[index].path, requests_[index].body);
  bool kept = to != nullptr;
  for (;;) {
    error_code failure;
    if (!kept) {
      to = std::make_shared<connection>(io_);
      busy_.push_back(to);
      to->stream.expires_after(options_.connection.timeout);
      failure = co_await open(*to, record);
      if (failure) co_return failure;
    } else {
      to->stream.expires_after(options_.connection.timeout);
    }
    co_await http::async_write(to->stream, request, asio::redirect_error(asio::use_awaitable, failure));
    if (!failure) co_await http::async_read_header(to->stream, to->buffer, parser, asio::redirect_error(asio::use_awaitable, failure));
    if (failure && kept && failure != beast::error::timeout && !parser.got_some() && !interrupted_) {
      std::erase(busy_, to);
      kept = false;
      continue;
    }
    if (failure) {
      record.failure = failure_kind(failure);
      record.detail = failure.message();
    }
    co_return failure;
  }
}

asio::awaitable<error_code> load::read_body(connection& from, request_record& record, http::response_parser<http::buffer_body>& parser) {
  const auto status = parser.get().result_int();
  std::string error_body;
  stream_reader reader(record);
  sse_parser events([&](std::string_view data) {
    const auto before = reader.outputs();
    reader.event(data, now());
    seen_.outputs += reader.outputs() - before;
  });
  std::array<char, 16384> chunk;
  error_code failure;
  while (!parser.is_done() && !failure) {
    parser.get().body().data = chunk.data();
    parser.get().body().size = chunk.size();
    co_await http::async_read_some(from.stream, from.buffer, parser, asio::redirect_error(asio::use_awaitable, failure));
    if (failure == http::error::need_buffer) failure = {};
    const std::string_view got(chunk.data(), chunk.size() - parser.get().body().size);
    if (status != 200) {
      error_body += got.substr(0, max_error_body - std::min(max_error_body, error_body.size()));
    } else if (!events.feed(got) && record.failure.empty()) {
      record.failure = "malformed event";
      record.detail = "an event is too large";
      failure = http::error::body_limit;
    }
  }
  if (status != 200) {
    record.failure = "http " + std::to_string(status);
    record.detail = error_message(error_body);
    record.ended = now();
  } else if (failure && record.failure.empty() && !reader.over()) {
    record.failure = failure_kind(failure);
    record.detail = failure.message();
  }
  if (status == 200) reader.end(now());
  co_return failure;
}

asio::awaitable<void> load::send(std::size_t index) {
  auto& record = records_[index];
  record.prompt_tokens = requests_[index].prompt_tokens;
  std::shared_ptr<connection> via;
  if (!idle_.empty()) {
    via = std::move(idle_.back());
    idle_.pop_back();
    busy_.push_back(via);
  }
  try {
    http::response_parser<http::buffer_body> parser;
    parser.body_limit(boost::none);
    parser.eager(true);
    auto failure = co_await exchange(via, index, parser);
    if (!failure) failure = co_await read_body(*via, record, parser);
    if (!failure && parser.is_done() && parser.keep_alive() && via->buffer.size() == 0) {
      via->stream.expires_never();
      idle_.push_back(via);
    }
  } catch (const std::exception& unexpected) {
    record.failure = "client";
    record.detail = unexpected.what();
  }
  if (record.ended == 0) record.ended = now();
  if (via) std::erase(busy_, via);
  ended(index);
}

void load::ended(std::size_t index) {
  --seen_.running;
  ++seen_.finished;
  if (!records_[index].failure.empty()) ++seen_.failed;
  next_.cancel(); // a place is free; the launcher looks again
  if (seen_.finished == requests_.size() || (interrupted_ && seen_.running == 0)) {
    tick_.cancel();
    signals_.cancel();
  }
}

asio::awaitable<void> load::launch() {
  error_code ignored;
  while (sent_ < requests_.size() && !interrupted_) {
    const auto due = start_ + std::chrono::duration_cast<clock::duration>(std::chrono::duration<double>(options_.due[sent_]));
    const bool full = seen_.running >= options_.max_concurrency;
    if (full || clock::now() < due) {
      next_.expires_at(full ? clock::time_point::max() : due);
      co_await next_.async_wait(asio::redirect_error(asio::use_awaitable, ignored));
      continue;
    }
    records_[sent_].due = options_.due[sent_];
    records_[sent_].sent = now();
    ++seen_.running;
    asio::co_spawn(io_, send(sent_++), asio::detached);
  }
}

asio::awaitable<void> load::report() {
  error_code failure;
  while (!failure) {
    seen_.elapsed = now();
    options_.on_progress(seen_);
    tick_.expires_after(std::chrono::milliseconds(100));
    co_await tick_.async_wait(asio::redirect_error(asio::use_awaitable, failure));
  }
  seen_.elapsed = now();
  options_.on_progress(seen_);
}

void load::interrupt() {
  interrupted_ = true;
  next_.cancel();
  tick_.cancel();
  for (const auto& each : busy_) each->stream.close();
}

load_result load::run() {
  signals_.add(SIGINT);
  signals_.async_wait([this](const error_code& failure, int) {
    if (!failure) interrupt();
  });
  start_ = clock::now();
  asio::co_spawn(io_, launch(), asio::detached);
  if (options_.on_progress) asio::co_spawn(io_, report(), asio::detached);
  io_.run();
  load_result out;
  out.interrupted = interrupted_;
  for (std::size_t i = 0; i < sent_; ++i) {
    if (interrupted_ && !records_[i].failure.empty()) continue;
    out.records.push_back(std::move(records_[i]));
  }
  return out;
}

} // namespace

result<std::string> get(const connection_options& connection, std::string_view path) {
  error_code failure;
  asio::io_context io;
  const auto addresses = tcp::resolver(io).resolve(connection.url.host, connection.url.port, failure);
  if (failure) return unreachable(connection.url, failure);
  beast::tcp_stream stream(io);
  beast::flat_buffer buffer;
  http::response_parser<http::string_body> parser;
  const auto request = make_request(connection, http::verb::get, path, {});
  asio::co_spawn(
      io,
      [&]() -> asio::awaitable<void> {
        stream.expires_after(connection.timeout);
        co_await stream.async_connect(addresses, asio::redirect_error(asio::use_awaitable, failure));
        if (!failure) co_await http::async_write(stream, request, asio::redirect_error(asio::use_awaitable, failure));
        if (!failure) co_await http::async_read(stream, buffer, parser, asio::redirect_error(asio::use_awaitable, failure));
      },
      asio::detached);
  io.run();
  if (failure) return unreachable(connection.url, failure);
  const auto status = parser.get().result_int();
  if (status == 200) return std::move(parser.get().body());
  return error{error_kind::unavailable,
               std::string(path) + " answered " + std::to_string(status) + ": " + error_message(parser.get().body()), "", std::nullopt};
}

result<load_result> run_load(const load_options& options, const std::vector<planned_request>& requests) {
  if (requests.empty()) return load_result{};
  error_code failure;
  asio::io_context io;
  auto addresses = tcp::resolver(io).resolve(options.connection.url.host, options.connection.url.port, failure);
  if (failure) return unreachable(options.connection.url, failure);
  return load(options, requests, std::move(addresses)).run();
}

} // namespace troupe::bench
