#include "telemetry/trace_file.hpp"

#include <fcntl.h>
#include <sys/types.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <exception>
#include <stdexcept>

#include "core/clock.hpp"
#include "core/json.hpp"

namespace troupe::telemetry {
namespace {

constexpr std::string_view kBegin = "{\"displayTimeUnit\":\"ms\",\"traceEvents\":[\n";

// Microseconds with three digits.
std::string microseconds(std::uint64_t ns) {
  std::array<char, 32> text{};
  std::snprintf(text.data(), text.size(), "%llu.%03u", static_cast<unsigned long long>(ns / 1000), static_cast<unsigned>(ns % 1000));
  return text.data();
}

constexpr std::array<const char*, 6> kTrackNames = {"prepare",
                                                    "compute",
                                                    "kernel groups of a step (sums)",
                                                    "idle between decode steps",
                                                    "deliver",
                                                    "ranks that answered later than the first of their stage"};

std::int32_t rows_of_ranks(const group_shape& shape) { return shape.ranks > 1 ? shape.ranks : 0; }

std::int32_t row_number(const group_shape& shape, trace_row row) {
  const std::int32_t each = static_cast<std::int32_t>(kTrackNames.size()) + rows_of_ranks(shape);
  return row.replica * each + static_cast<std::int32_t>(row.track) + (row.track == trace_track::rank ? row.rank : 0);
}

std::string row_name(std::int32_t number, const std::string& name) {
  const std::string id = std::to_string(number);
  return ",\n{\"ph\":\"M\",\"name\":\"thread_name\",\"pid\":1,\"tid\":" + id + ",\"args\":{\"name\":\"" + name + "\"}}" +
         ",\n{\"ph\":\"M\",\"name\":\"thread_sort_index\",\"pid\":1,\"tid\":" + id + ",\"args\":{\"sort_index\":" + id + "}}";
}

std::string row_names(const group_shape& shape) {
  std::string out = R"({"ph":"M","name":"process_name","pid":1,"args":{"name":"troupe"}})";
  for (std::int32_t replica = 0; replica < shape.replicas; ++replica) {
    const std::string whose = shape.replicas > 1 ? "replica " + std::to_string(replica) + ": " : std::string();
    for (std::size_t i = 0; i < kTrackNames.size(); ++i) {
      out += row_name(row_number(shape, {static_cast<trace_track>(i + 1), replica}), whose + kTrackNames[i]);
    }
    for (std::int32_t rank = 0; rank < rows_of_ranks(shape); ++rank) {
      out += row_name(row_number(shape, {trace_track::rank, replica, rank}), whose + "rank " + std::to_string(rank));
    }
  }
  return out;
}

bool write_all(int file, std::string_view text, std::size_t at) {
  while (!text.empty()) {
    const ssize_t n = ::pwrite(file, text.data(), text.size(), static_cast<off_t>(at));
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return false;
    text.remove_prefix(static_cast<std::size_t>(n));
    at += static_cast<std::size_t>(n);
  }
  return true;
}

} // namespace

trace_file::trace_file(const std::filesystem::path& path, std::function<std::string(std::uint64_t)> summary, trace_limits limits,
                       group_shape shape)
    : path_(path), summary_(std::move(summary)), limits_(limits), shape_(shape), origin_ns_(now_ns()) {
  file_ = ::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
  if (file_ < 0) throw std::runtime_error("--trace: " + path.string() + " cannot be written: " + std::strerror(errno));
  if (!write_all(file_, kBegin, 0)) {
    const std::string reason = std::strerror(errno);
    ::close(file_);
    throw std::runtime_error("--trace: " + path.string() + " cannot be written: " + reason);
  }
  size_ = kBegin.size();
  write_out(row_names(shape));
  writer_ = std::jthread([this] { run(); });
}

trace_file::~trace_file() {
  {
    const std::lock_guard lock(guard_);
    stop_ = true;
    wake_.notify_all();
  }
  writer_.join();
  ::close(file_);
}

void trace_file::span(trace_row row, std::string_view name, std::uint64_t begin_ns, std::uint64_t end_ns, arguments args) {
  const std::uint64_t length = end_ns > begin_ns ? end_ns - begin_ns : 0;
  add("\"ph\":\"X\",\"tid\":" + std::to_string(row_number(shape_, row)), name, begin_ns, ",\"dur\":" + microseconds(length), args);
}

void trace_file::phase(std::uint64_t id, std::string_view name, bool begins, std::uint64_t at_ns, arguments args) {
  add(begins ? "\"ph\":\"b\",\"cat\":\"request\"" : "\"ph\":\"e\",\"cat\":\"request\"", name, at_ns,
      ",\"id\":\"" + std::to_string(id) + "\"", args);
}

void trace_file::phase_mark(std::uint64_t id, std::string_view name, std::uint64_t at_ns) {
  add("\"ph\":\"n\",\"cat\":\"request\"", name, at_ns, ",\"id\":\"" + std::to_string(id) + "\"", {});
}

void trace_file::mark(std::string_view name, std::uint64_t at_ns) { add("\"ph\":\"i\",\"s\":\"p\",\"tid\":0", name, at_ns, {}, {}); }

void trace_file::add(std::string_view head, std::string_view name, std::uint64_t at_ns, std::string_view rest, arguments args) {
  std::string event = "{";
  event += head;
  event += ",\"pid\":1,\"name\":" + json::quote(name) + ",\"ts\":" + microseconds(at_ns > origin_ns_ ? at_ns - origin_ns_ : 0);
  event += rest;
  if (args.size() > 0) {
    event += ",\"args\":{";
    bool first = true;
    for (const auto& [key, number] : args) {
      event += (first ? "" : ",") + json::quote(key) + ":" + std::to_string(number);
      first = false;
    }
    event += '}';
  }
  event += '}';
  const std::lock_guard lock(guard_);
  if (pending_.size() + event.size() + 2 > limits_.pending_bytes) {
    ++dropped_;
    wake_.notify_all();
    return;
  }
  if (!pending_.empty()) pending_ += ",\n";
  pending_ += event;
  ++pending_events_;
}

// `text`: events with commas between them. They go where the file's end was, with a new end behind them, in one write.
void trace_file::write_out(std::string text) {
  const std::string end = "\n]" + (summary_ ? ",\"otherData\":" + summary_(dropped()) : std::string()) + "}\n";
  if (!text.empty() && !first_) text.insert(0, ",\n");
  const std::size_t events = text.size();
  text += end;
  if (!write_all(file_, text, size_)) {
    failed_ = true;
    std::fprintf(stderr, "troupe: the trace %s could not be written further: %s\n", path_.c_str(), std::strerror(errno));
    if (::ftruncate(file_, static_cast<off_t>(size_)) == 0) write_all(file_, end, size_); // what fitted before fits again
    return;
  }
  if (events > 0) first_ = false;
  size_ += events;
  // A summary may have become shorter.
  if (::ftruncate(file_, static_cast<off_t>(size_ + end.size())) != 0) failed_ = true;
}

// False when the text is not in the file. Memory that runs out costs these events, not the process: the file stays as it was.
bool trace_file::try_to_write_out(std::string text) {
  try {
    write_out(std::move(text));
    return !failed_;
  } catch (const std::exception&) {
    return false;
  }
}

void trace_file::run() {
  std::unique_lock lock(guard_);
  while (true) {
    wake_.wait_for(lock, limits_.interval, [&] { return stop_ || flushes_asked_ > flushes_done_; });
    const bool last = stop_;
    const std::uint64_t answered = flushes_asked_;
    std::string text = std::exchange(pending_, {});
    const std::uint64_t events = std::exchange(pending_events_, 0);
    if (!text.empty() || last) {
      lock.unlock();
      const bool fits = size_ + text.size() <= limits_.file_bytes;
      const bool wrote = !failed_ && try_to_write_out(fits ? std::move(text) : std::string());
      lock.lock();
      (fits && wrote ? written_ : dropped_) += events;
    }
    flushes_done_ = answered;
    drained_.notify_all();
    if (last) return;
  }
}

std::uint64_t trace_file::dropped() const {
  const std::lock_guard lock(guard_);
  return dropped_;
}

std::uint64_t trace_file::written() const {
  const std::lock_guard lock(guard_);
  return written_;
}

void trace_file::flush() {
  std::unique_lock lock(guard_);
  const std::uint64_t mine = ++flushes_asked_;
  wake_.notify_all();
  drained_.wait(lock, [&] { return flushes_done_ >= mine; });
}

} // namespace troupe::telemetry
