// Server-sent events, as far as a streamed completion needs them: the data of each event.
// https://html.spec.whatwg.org/multipage/server-sent-events.html#event-stream-interpretation
#pragma once

#include <cstddef>
#include <functional>
#include <string>
#include <string_view>

namespace troupe::bench {

class sse_parser {
 public:
  using event_function = std::function<void(std::string_view data)>;

  explicit sse_parser(event_function on_event, std::size_t max_event_bytes = 16U << 20)
      : on_event_(std::move(on_event)), max_event_bytes_(max_event_bytes) {}

  // Any split of the stream gives the same events. An event that the stream's end cuts off is dropped, as the standard asks.
  // False, and from then on always, when one event is larger than the limit.
  bool feed(std::string_view bytes);

 private:
  void end_line();

  event_function on_event_;
  std::size_t max_event_bytes_;
  std::string line_;
  std::string data_;
  bool has_data_ = false;
  bool after_cr_ = false; // a LF that follows a CR ends no second line
  bool at_start_ = true;  // a byte order mark may come first
  bool overflow_ = false;
};

} // namespace troupe::bench
