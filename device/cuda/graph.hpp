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
  graph(graph&& other) noexcept
      : recorded_(std::exchange(other.recorded_, nullptr)),
        first_(std::exchange(other.first_, nullptr)),
        handle_(std::exchange(other.handle_, nullptr)) {}
  graph& operator=(graph&& other) noexcept;

  void launch(const stream& on) const;
  // The same with another argument, from now on, for the kernel that `work` began with, which takes no other: of the type that it was
  // recorded with. Throws device_error where not exactly one kernel waits for nothing.
  template <class Argument>
  void launch(const stream& on, const Argument& of_first_kernel) const {
    change_first(&of_first_kernel);
    launch(on);
  }

 private:
  graph(graph_handle recorded, graph_node_handle first, graph_exec_handle handle) : recorded_(recorded), first_(first), handle_(handle) {}
  void change_first(const void* argument) const;

  graph_handle recorded_ = nullptr; // whose nodes the instance's go by
  graph_node_handle first_ = nullptr;
  graph_exec_handle handle_ = nullptr;
};

} // namespace troupe::cuda
