// A local collective works in memory that the group had before: one rank that ran out of it would leave the others with its buffers.
#include <cstdlib>
#include <new>

#include "tests/transport/collective/group_testing.hpp"
#include "transport/collective/local_group.hpp"

namespace {
thread_local bool memory_is_out = false;
}

void* operator new(std::size_t size) {
  void* const made = memory_is_out ? nullptr : std::malloc(size);
  if (made == nullptr) throw std::bad_alloc();
  return made;
}
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }

namespace troupe {
namespace {

TEST(local_memory, collectives_need_none) {
  for (const std::size_t count : {3UL, 100'000UL}) { // one rank does the work of all; each does its slice
    auto group = make_local_group(3, kAmple);
    expect_success(run_ranks(group, [&](communicator& me) {
      std::vector<float> data(count, 1), all(3 * count);
      bool failed = false;
      memory_is_out = true;
      try {
        me.all_reduce(buffer_of(data, dtype::f32));
        me.all_gather(buffer_of(data, dtype::f32), buffer_of(all, dtype::f32));
        me.broadcast(buffer_of(data, dtype::f32), 1);
      } catch (const std::bad_alloc&) {
        failed = true;
      }
      memory_is_out = false;
      EXPECT_FALSE(failed);
      EXPECT_EQ(data[count - 1], 3);
      EXPECT_EQ(all[3 * count - 1], 3);
    }));
  }
}

} // namespace
} // namespace troupe
