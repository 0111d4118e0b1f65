// Looks up rows of the embedding matrix.
#pragma once

#include <cstdint>

#include "core/ids.hpp"
#include "core/weight_view.hpp"
#include "device/cpu/thread_pool.hpp"

namespace troupe {

struct embedding_args {
  weight_view table;                // [vocab, hidden], any stored type
  const token_id* tokens = nullptr; // [count], each in 0 .. vocab-1
  std::int64_t count = 0;
  float* y = nullptr; // [count][hidden]
  std::int64_t y_stride = 0;
};

namespace cpu {
void embedding(thread_pool& pool, const embedding_args& args);
}

} // namespace troupe
