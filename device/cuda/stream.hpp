// Streams and events. All streams are non-blocking: nothing ever waits for, or is waited for by, the default stream.
#pragma once

#include <string>
#include <utility>

#include "device/cuda/handles.hpp"

namespace troupe::cuda {

class stream;

// A point in a stream's work.
class event {
 public:
  enum class timing : bool { off, on };

  explicit event(timing kind = timing::off);
  ~event();
  event(event&& other) noexcept : handle_(std::exchange(other.handle_, nullptr)) {}
  event& operator=(event&& other) noexcept;

  event_handle handle() const { return handle_; }
  void record(const stream& on);
  // While a graph is being captured from `on`: each launch of the graph records it, and a later launch anew.
  void record_in_graph(const stream& on);
  bool reached() const; // what was recorded last is done; true when nothing was
  void wait() const;    // blocks this thread until then

 private:
  event_handle handle_ = nullptr;
};

// Milliseconds from `begin` to `end`, both made with timing::on and reached.
float elapsed_ms(const event& begin, const event& end);

class stream {
 public:
  // `first`: when both could go on, the blocks of its kernels are begun before those of `in_turn`.
  enum class priority : bool { in_turn, first };

  explicit stream(priority rank = priority::in_turn);
  ~stream();
  stream(stream&& other) noexcept : handle_(std::exchange(other.handle_, nullptr)) {}
  stream& operator=(stream&& other) noexcept;

  stream_handle handle() const { return handle_; }
  void wait_for(const event& point) const; // later work of this stream starts after `point`; does not block the caller
  void synchronize() const;                // blocks this thread until the stream's work so far is done

 private:
  stream_handle handle_ = nullptr;
};

// One device's streams, made once at start-up.
struct stream_pool {
  stream compute, copy_in, copy_out;
  stream communication{stream::priority::first}; // others wait for what it brings
  stream draft;
};

// GPUs that this process can use; 0 where there is no driver.
int device_count();
// As the driver calls it, with its compute capability: "NVIDIA H200 (9.0)". Throws device_error when there is none such.
std::string device_name(int device);
// Compute capability 9.0 (H100, H200). Throws device_error when there is none such.
bool is_hopper(int device);
// Makes `device` this thread's. Throws device_error when there is none such.
void use_device(int device);

} // namespace troupe::cuda
