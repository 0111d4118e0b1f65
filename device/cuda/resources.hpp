// How often this process asked CUDA for something that belongs to start-up: a test reads the counts before and after steps.
#pragma once

#include <cstdint>

namespace troupe::cuda {

struct resource_counts {
  std::int64_t device_allocations = 0;
  std::int64_t pinned_allocations = 0;
  std::int64_t streams = 0;
  std::int64_t events = 0;
  std::int64_t graphs = 0;

  friend bool operator==(const resource_counts&, const resource_counts&) = default;
};

// Made so far by this process, whatever has been given back since.
resource_counts resources_made();

namespace detail {
enum class resource : std::uint8_t { device_allocation, pinned_allocation, stream, event, graph };
void count(resource kind);
} // namespace detail

} // namespace troupe::cuda
