// How long a step's groups of kernels took, by events between them.
#pragma once

#include <cstddef>
#include <vector>

#include "core/step.hpp"
#include "device/cuda/stream.hpp"

namespace troupe {

class kernel_timer {
 public:
  enum class place : bool { on_stream, in_graph };

  // Room for `marks` calls of mark() between two begin(). In a graph: they are called while it is captured, and times() are those of its
  // last launch.
  explicit kernel_timer(std::size_t marks, place where = place::on_stream);

  void begin() { used_ = 0; }
  // What is put on `on` from here until the next mark belongs to `group`.
  void mark(const cuda::stream& on, kernel_group group);
  void end(const cuda::stream& on) { mark(on, kernel_group::sampling); }
  // Sums by group, in the order of kernel_group, once the stream has passed end().
  std::vector<group_time> times() const;

 private:
  place place_;
  std::vector<cuda::event> events_;
  std::vector<kernel_group> groups_;
  std::size_t used_ = 0;
};

} // namespace troupe
