// The routes: what each request means and what answers it. Knows no sockets.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "core/service.hpp"
#include "transport/http/openai_request.hpp"
#include "transport/http/reply_channel.hpp"
#include "transport/http/router.hpp"
#include "transport/http/server.hpp"

namespace troupe::http {

// A request's header, as far as routes care. Views live as long as the request.
struct request_head {
  std::string_view method;
  std::string_view target;
  std::string_view authorization;
  std::string_view content_type;
  std::string_view content_encoding;
  std::string_view expect;
  bool lacks_host = false;       // HTTP/1.1 without exactly one Host field
  std::size_t content_types = 0; // fields of that name
  bool from_page = false;        // has an Origin: a browser sends it on behalf of some page
};

class api {
 public:
  api(const server_options& options, request_handler& handler, const server_hooks& hooks);

  // What can be refused before the body is read: keys, unknown routes, wrong methods, media types, a drain.
  std::optional<reply> refuse(const request_head& head, const route_match& where) const;

  struct call {
    route_match where;
    std::string_view body;
    std::uint64_t arrival_ns = 0;
    std::string text_id; // for ids in bodies
    std::shared_ptr<reply_channel> channel;
  };
  // Starts the work; everything that comes of it goes to the channel. Returns the request's id when it can be cancelled, else nothing.
  // Never throws.
  std::optional<request_id> start(call request) noexcept;
  void cancel(request_id id) noexcept;

  void drain() noexcept { draining_ = true; }
  bool is_draining() const noexcept { return draining_; }

  // Hooks, made safe.
  void request_done(std::string_view route, int status) const noexcept;
  void slow_reader_dropped() const noexcept;

 private:
  std::optional<request_id> dispatch(call& request);
  std::optional<request_id> generate(call& request);
  void tokenize(call& request);
  void detokenize(call& request);
  reply read_only(const route_match& where) const;
  reply health(bool must_be_ready) const;
  reply metrics() const;

  const server_options& options_;
  request_handler& handler_;
  const server_hooks& hooks_;
  std::atomic<bool> draining_{false};
  std::atomic<request_id> last_id_{0};
};

} // namespace troupe::http
