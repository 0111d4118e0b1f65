#include "transport/http/request_reader.hpp"

#include <boost/asio/buffer.hpp>
#include <boost/beast/http/error.hpp>
#include <boost/beast/http/parser.hpp>
#include <boost/beast/http/string_body.hpp>
#include <optional>

namespace troupe::http {

namespace {

namespace beast_http = boost::beast::http;

// Unparsed bytes kept while a body is read: chunk extensions and trailers have no limit of their own in the parser.
constexpr std::size_t kChunkSlack = 16U << 10;

} // namespace

struct request_reader::impl {
  explicit impl(const server_limits& bounds) : limits(bounds) {}

  void start() {
    parser.emplace();
    parser->header_limit(static_cast<std::uint32_t>(std::min<std::size_t>(limits.header_bytes, UINT32_MAX)));
    parser->body_limit(limits.body_bytes);
    parser->eager(false); // stop behind the header
    started = false;
    header_seen = false;
    status = 0;
    text = {};
  }

  step fail(std::size_t consumed, int code, std::string_view reason) {
    status = code;
    text = reason;
    return {progress::failed, consumed};
  }

  step fail(std::size_t consumed, const boost::system::error_code& ec) {
    if (ec == beast_http::error::header_limit) return fail(consumed, 431, "the request's header is too large");
    if (ec == beast_http::error::body_limit) return fail(consumed, 413, "the request's body is too large");
    if (ec == beast_http::error::bad_version) return fail(consumed, 505, "only HTTP/1.0 and HTTP/1.1 are spoken here");
    return fail(consumed, 400, "not a well-formed HTTP request");
  }

  const server_limits limits;
  std::optional<beast_http::request_parser<beast_http::string_body>> parser;
  bool started = false;
  bool header_seen = false;
  int status = 0;
  std::string_view text;
};

request_reader::request_reader(const server_limits& limits) : impl_(std::make_unique<impl>(limits)) { impl_->start(); }
request_reader::~request_reader() = default;

void request_reader::reset() { impl_->start(); }

request_reader::step request_reader::feed(std::string_view bytes) {
  if (impl_->status != 0) return {progress::failed, 0};
  std::size_t consumed = 0;
  // Some clients send an empty line behind a body (RFC 9112, 2.2).
  while (!impl_->started && consumed < bytes.size() && (bytes[consumed] == '\r' || bytes[consumed] == '\n')) ++consumed;
  auto& parser = *impl_->parser;
  while (!parser.is_done()) {
    const std::string_view rest = bytes.substr(consumed);
    if (rest.empty()) return {progress::need_more, consumed};
    impl_->started = true;
    boost::system::error_code ec;
    const std::size_t used = parser.put(boost::asio::buffer(rest.data(), rest.size()), ec);
    consumed += used;
    if (ec && ec != beast_http::error::need_more) return impl_->fail(consumed, ec);
    if (parser.is_header_done() && !impl_->header_seen) {
      impl_->header_seen = true;
      // Anything else would let two readers of one connection disagree on where a request ends (RFC 9112, 6.3).
      if (const auto codings = header_count("Transfer-Encoding");
          codings != 0 && (codings != 1 || is_http_1_0() || !boost::beast::iequals(header("Transfer-Encoding"), "chunked"))) {
        return impl_->fail(consumed, 400, "the only transfer coding known here is chunked, in HTTP/1.1");
      }
      parser.eager(true);
      return {progress::header_ready, consumed};
    }
    if (ec || (used == 0 && !parser.is_done())) {
      const bool too_much = impl_->header_seen && bytes.size() - consumed > impl_->limits.header_bytes + kChunkSlack;
      return too_much ? impl_->fail(consumed, 431, "the chunk's header or the trailer is too large") : step{progress::need_more, consumed};
    }
  }
  return {progress::complete, consumed};
}

bool request_reader::started() const { return impl_->started; }
int request_reader::failure_status() const { return impl_->status; }
std::string_view request_reader::failure_text() const { return impl_->text; }

std::string_view request_reader::method() const {
  const auto text = impl_->parser->get().method_string();
  return {text.data(), text.size()};
}

std::string_view request_reader::target() const {
  const auto text = impl_->parser->get().target();
  return {text.data(), text.size()};
}

bool request_reader::is_http_1_0() const { return impl_->parser->get().version() == 10; }
bool request_reader::keep_alive() const { return impl_->parser->get().keep_alive(); }

std::string_view request_reader::header(std::string_view name) const {
  const auto range = impl_->parser->get().equal_range(boost::beast::string_view(name.data(), name.size()));
  if (range.first == range.second || std::next(range.first) != range.second) return {};
  const auto text = range.first->value();
  return {text.data(), text.size()};
}

std::size_t request_reader::header_count(std::string_view name) const {
  return impl_->parser->get().count(boost::beast::string_view(name.data(), name.size()));
}

const std::string& request_reader::body() const { return impl_->parser->get().body(); }

} // namespace troupe::http
