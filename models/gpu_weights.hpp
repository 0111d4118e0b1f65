// A model's weights on the device: one row-major copy of each matrix in bf16 or f16, in one block of memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "core/dtype.hpp"
#include "device/cuda/stream.hpp"
#include "models/model.hpp"
#include "models/shard.hpp"

namespace troupe {

// Device memory; null where the model has no such parameter. Queries and keys are in the order in which rotary pairs are halves of a head.
struct gpu_layer_weights {
  const void* attention_norm = nullptr; // [hidden]
  const void* qkv = nullptr;            // [(heads + 2 kv_heads) * head_dim][hidden]: queries, keys, values
  const void* qkv_bias = nullptr;       // likewise
  const void* query_norm = nullptr;     // [head_dim]
  const void* key_norm = nullptr;       // [head_dim]
  const void* output = nullptr;         // [hidden][heads * head_dim]
  const void* output_bias = nullptr;    // [hidden]
  const void* mlp_norm = nullptr;       // [hidden]
  const void* gate_up = nullptr;        // [2 * intermediate][hidden]: gates, then ups
  const void* down = nullptr;           // [hidden][intermediate]
};

struct gpu_weights {
  dtype type = dtype::bf16;        // of everything
  const void* embedding = nullptr; // [vocab][hidden]
  std::vector<gpu_layer_weights> layers;
  const void* final_norm = nullptr; // [hidden]
  const void* head = nullptr;       // [head places][hidden], rows of no id undefined; rows of the embedding when tied
};

// The ids whose rows of the head a GPU holds, of `size` GPUs. Their places are aligned as cuBLASLt would have the outputs of a product.
inline vocab_slice head_of_gpu(const model_config& config, int rank = 0, int size = 1) {
  return slice_of_vocab(config.vocab_size, rank, size, 64);
}

// What all functions below take, of a GPU's share: layers as `config` says, the embedding whole, of the head what `head` says.
std::size_t gpu_weight_bytes(const model_config& config, const vocab_slice& head);
// What lies where in it, line by line: memory of equal lines that was filled with the same checkpoint's weights holds the same.
std::string gpu_weight_layout(const model_config& config, const vocab_slice& head, dtype type);
// The weights in memory that one of the functions below has filled.
gpu_weights filled_weights(const model_config& config, const vocab_slice& head, dtype type, std::byte* memory);

// Widens or narrows every parameter into `memory` (gpu_weight_bytes() of the device, aligned to 256) and waits until it is there.
// `threads` read the checkpoint, each through pinned memory of its own. `weights` have the GPU's rows of the head alone. Throws load_error
// for a value that `type` cannot hold.
gpu_weights upload_weights(const model_weights& weights, const vocab_slice& head, dtype type, std::byte* memory, const cuda::stream& on,
                           std::int32_t device, std::int32_t threads);

// Random weights, made on the device: matrices of standard deviation 1 / sqrt(columns), norms about 1, biases about 0.
gpu_weights make_dummy_gpu_weights(const model_config& config, const vocab_slice& head, dtype type, std::byte* memory,
                                   const cuda::stream& on, std::uint64_t seed);

} // namespace troupe
