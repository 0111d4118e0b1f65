// A recorded piece of a stream's work that is launched as one.
#pragma once

#include <functional>
#include <utility>

#include "device/cuda/stream.hpp"

namespace troupe::cuda {

class graph {
 public:
  // Records what `work` puts on `on`; nothing of it runs yet. When `work` throws, the recording ends and the stream stays usable.
  static graph capture(const stream& on, const std::function<void()>& work);
  ~graph();
  graph(graph&& other) noexcept : handle_(std::exchange(other.handle_, nullptr)) {}
  graph& operator=(graph&& other) noexcept;

  void launch(const stream& on) const;

 private:
  explicit graph(graph_exec_handle handle) : handle_(handle) {}
  graph_exec_handle handle_ = nullptr;
};

} // namespace troupe::cuda
