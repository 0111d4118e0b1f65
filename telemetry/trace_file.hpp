// Events as Chrome's trace event format, JSON object form, which Perfetto (ui.perfetto.dev) and chrome://tracing open:
// https://docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU
// A thread of its own writes every 100 ms, each time with the text that ends the file, so that it is whole however the process ends.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <initializer_list>
#include <mutex>
#include <string>
#include <string_view>
#include <thread>
#include <utility>

#include "telemetry/group_shape.hpp"

namespace troupe::telemetry {

// Rows of the picture, from the top; each replica has its own. Where a replica has several ranks, each has a row behind them.
enum class trace_track : std::uint8_t { prepare = 1, compute, groups, idle, deliver, late, rank };

struct trace_row {
  trace_track track = trace_track::prepare;
  std::int32_t replica = 0;
  std::int32_t rank = 0; // of trace_track::rank
};

struct trace_limits {
  std::size_t pending_bytes = std::size_t{4} << 20; // not written yet
  std::size_t file_bytes = std::size_t{1} << 30;
  std::chrono::milliseconds interval{100};
};

// Thread-safe. Times are steady-clock nanoseconds; the file counts from its making. Names may hold any bytes. What a limit leaves no room
// for is dropped and counted, as is everything after the file could not be written. So is what there is no memory to write.
class trace_file {
 public:
  using argument = std::pair<std::string_view, std::int64_t>;
  using arguments = std::initializer_list<argument>;

  // `summary` is asked for a JSON object at each writing, put at the file's end as "otherData"; it may be empty. Its argument is the
  // number of events dropped.
  // Throws std::runtime_error when the file cannot be made.
  explicit trace_file(const std::filesystem::path& path, std::function<std::string(std::uint64_t)> summary = {}, trace_limits limits = {},
                      group_shape shape = {});
  ~trace_file();
  trace_file(const trace_file&) = delete;
  trace_file& operator=(const trace_file&) = delete;

  void span(trace_row row, std::string_view name, std::uint64_t begin_ns, std::uint64_t end_ns, arguments args = {});
  // Phases of request `id`, nested in each other by their times; `begins` false ends the innermost of that name.
  void phase(std::uint64_t id, std::string_view name, bool begins, std::uint64_t at_ns, arguments args = {});
  void phase_mark(std::uint64_t id, std::string_view name, std::uint64_t at_ns);
  // Something that concerns the whole process.
  void mark(std::string_view name, std::uint64_t at_ns);

  std::uint64_t dropped() const;
  std::uint64_t written() const; // events
  void flush();                  // returns once what was added before is in the file

 private:
  void add(std::string_view head, std::string_view name, std::uint64_t at_ns, std::string_view rest, arguments args);
  void write_out(std::string text);
  bool try_to_write_out(std::string text);
  void run();

  const std::filesystem::path path_;
  const std::function<std::string(std::uint64_t)> summary_;
  const trace_limits limits_;
  const group_shape shape_;
  const std::uint64_t origin_ns_;
  int file_ = -1;
  std::size_t size_ = 0; // of the file without its end; the writer's
  bool failed_ = false;  // the writer's
  bool first_ = true;    // the writer's

  mutable std::mutex guard_;
  std::condition_variable wake_, drained_;
  std::string pending_;
  std::uint64_t pending_events_ = 0, written_ = 0, dropped_ = 0;
  std::uint64_t flushes_asked_ = 0, flushes_done_ = 0;
  bool stop_ = false;
  std::jthread writer_;
};

} // namespace troupe::telemetry
