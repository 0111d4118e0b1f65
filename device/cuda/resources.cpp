#include "device/cuda/resources.hpp"

#include <array>
#include <atomic>
#include <cstddef>

namespace troupe::cuda {
namespace {

std::array<std::atomic<std::int64_t>, 5> made; // by detail::resource

std::int64_t made_of(detail::resource kind) { return made[static_cast<std::size_t>(kind)].load(std::memory_order_relaxed); }

} // namespace

resource_counts resources_made() {
  using detail::resource;
  return {made_of(resource::device_allocation), made_of(resource::pinned_allocation), made_of(resource::stream), made_of(resource::event),
          made_of(resource::graph)};
}

void detail::count(resource kind) { made[static_cast<std::size_t>(kind)].fetch_add(1, std::memory_order_relaxed); }

} // namespace troupe::cuda
