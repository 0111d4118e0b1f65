// One request's answer on its way from the serving side's threads to the connection that asked.
#pragma once

#include <cstddef>
#include <functional>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>

#include "core/error.hpp"

namespace troupe::http {

struct reply {
  int status = 200;
  std::string_view content_type = "application/json";
  std::string body;
  std::string header_lines; // further ones, each ended by CRLF; made of server text and numbers only
  bool close = false;       // the connection ends with this reply
};

reply error_reply(const error& failure, int status);
reply error_reply(const error& failure); // with the status of its kind

// The producer's calls may come from any thread and never wait for the network; the first one that ends the answer wins, and what
// comes after it, or after detach(), is ignored. Events are bytes of a server-sent event stream.
class reply_channel {
 public:
  // A stream's client may leave `unsent_limit` bytes unread; the next event after that makes the channel overflow.
  explicit reply_channel(std::size_t unsent_limit) : unsent_limit_(unsent_limit) {}

  // --- producer ---
  bool is_open() const; // false: nobody waits for more
  void answer(reply whole);
  void stream(std::string_view events);
  void end_stream(std::string_view last_events);
  void fail(const error& failure); // an error reply, or the stream's last event once that has begun

  // --- the connection ---
  struct output {
    std::optional<reply> whole;
    std::string events; // new since the last take()
    bool streaming = false;
    bool ended = false;  // nothing follows `events`
    bool failed = false; // ended by fail()
    bool overflowed = false;
  };
  // `wake` is called under the channel's lock when there is something to take, and once more at the overflow; it must only post.
  void attach(std::function<void()> wake);
  void detach();
  output take();
  void sent(std::size_t event_bytes);
  bool has_ended() const;
  bool has_overflowed() const;

 private:
  void append(std::string_view events); // with the lock held
  void wake();                          // with the lock held

  const std::size_t unsent_limit_;
  mutable std::mutex lock_;
  std::function<void()> wake_;
  std::optional<reply> whole_;
  std::string events_;
  std::size_t unsent_ = 0; // event bytes not yet given to the kernel
  bool woken_ = false;     // a wake is under way
  bool streaming_ = false;
  bool ended_ = false;
  bool failed_ = false;
  bool overflowed_ = false;
  bool detached_ = false;
};

} // namespace troupe::http
