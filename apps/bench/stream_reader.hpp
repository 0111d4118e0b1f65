// Turns the events of one streamed answer into a request_record. Pure: the caller brings the time.
#pragma once

#include <cstdint>
#include <string_view>

#include "apps/bench/statistics.hpp"

namespace troupe::bench {

class stream_reader {
 public:
  // `record.sent` is set; `record` outlives the reader.
  explicit stream_reader(request_record& record) : record_(record) {}

  // One event's data at `now` seconds. What follows a failure or [DONE] is ignored.
  void event(std::string_view data, double now);
  // The body has ended. A stream without its [DONE] was cut off.
  void end(double now);
  bool over() const { return done_ || !record_.failure.empty(); }
  std::int64_t outputs() const { return outputs_; } // events with output

 private:
  void output(double now);

  request_record& record_;
  std::int64_t outputs_ = 0;
  bool counted_ = false; // the server told its own counts
  bool done_ = false;
};

// "message" of an OpenAI error body, or the beginning of the text as printable ASCII. At most 200 bytes.
std::string error_message(std::string_view body);

} // namespace troupe::bench
