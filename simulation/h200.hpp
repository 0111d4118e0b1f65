// A table for NVIDIA's H200 from its roofline: ceilings that were measured on the device, and the bytes and operations of a model.
// It is a floor with known overheads, not a measurement of Troupe: `troupe bench calibrate` replaces it where there is a device.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "simulation/device_table.hpp"
#include "simulation/gpu_rates.hpp"

namespace troupe::simulation {

struct model_shape {
  std::string name;
  double read_parameters = 0; // that a step reads: all but the input embedding
  double all_parameters = 0;
  std::int32_t layers = 0;
  std::int32_t hidden = 0;
  std::int32_t heads = 0;
  std::int32_t kv_heads = 0;
  std::int32_t head_dim = 0;
  std::int32_t vocab_size = 0;
  std::int32_t max_model_len = 0;
};

// "llama-3.1-8b" or "llama-3.1-70b".
std::optional<model_shape> find_model_shape(std::string_view name);
std::vector<std::string> model_shape_names();

struct layout {
  std::int32_t tensor_parallel = 1;
  std::int32_t pipeline_parallel = 1;
  bool across_nodes = false; // pipeline stages talk over sockets rather than NVLink

  std::int32_t gpus() const { return tensor_parallel * pipeline_parallel; }
};

// bf16 weights and KV. A pipeline of P stages is P lanes that take turns on its stages: the table describes one lane, with 1/P of the
// slots and of the KV pool and the latency of the whole pipeline. None when the weights do not fit the GPUs.
std::optional<device_table> h200_table(const model_shape& model, const layout& parallel, std::int32_t max_num_seqs,
                                       std::int32_t max_batched_tokens, const gpu_rates& rates = {});

} // namespace troupe::simulation
