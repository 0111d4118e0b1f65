// A model's matrices as the CPU device reads them: the embedding as it is stored and everything else packed, one behind the other in one
// block of memory.
#pragma once

#include <cstddef>
#include <optional>
#include <vector>

#include "device/cpu/thread_pool.hpp"
#include "device/cpu/weight_block.hpp"
#include "kernels/linear.hpp"
#include "models/kept_weights.hpp"
#include "models/model.hpp"

namespace troupe {

class cpu_weights {
 public:
  struct layer {
    cpu::linear qkv, output, gate_up, down;
  };

  // Embedding and head may be empty views, or without rows. Reads `weights` to its end, unless a keeper has the block: then no matrix is
  // read. Throws std::bad_alloc, std::invalid_argument for shapes that do not fit together.
  cpu_weights(const model_weights& weights, const std::optional<keeper::access>& keep, cpu::thread_pool& pool);

  const weight_view& embedding() const { return embedding_; }
  const std::vector<layer>& layers() const { return layers_; }
  const cpu::linear* head() const { return head_ ? &*head_ : nullptr; } // null where the model's part has none

 private:
  cpu::weight_block block_;
  weight_view embedding_;
  std::vector<layer> layers_;
  std::optional<cpu::linear> head_;
};

} // namespace troupe
