// A word of device memory by which a peer says that what it copied here before has come.
#pragma once

#include <cstdint>

#include "device/cuda/handles.hpp"

namespace troupe::gpu {

struct awaited_word {
  const volatile std::uint32_t* word = nullptr; // device memory
  std::uint32_t value = 0;
  const volatile std::uint32_t* given_up = nullptr; // pinned host memory: not 0 ends the wait
};

// What follows on the stream begins when `word` holds `value`, or when somebody gives up. Takes one thread of the device meanwhile.
void await_word(cuda::stream_handle on, const awaited_word& awaited);

} // namespace troupe::gpu
