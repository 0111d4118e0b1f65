// What a step must move and multiply at least, from a model's shapes. Pure.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>

#include "core/dtype.hpp"
#include "models/checkpoint.hpp"

namespace troupe::bench {

class model_cost {
 public:
  // Weights as `weight_type` and KV as `kv_type` on the device. For a checkpoint with tensors, `weight_type` none means as stored.
  model_cost(const checkpoint& source, std::optional<dtype> weight_type, dtype kv_type);

  // Bytes that every step streams: all layers, the final norm and the head once. Of the embedding only the rows of the step's tokens are
  // read, which is left out; a tied head is the embedding.
  std::size_t weight_bytes() const { return weight_bytes_; }
  // Bytes of K and V that one row at position `position` (from 0) reads, its own included; sliding layers read their window.
  std::size_t kv_bytes(std::int64_t position) const;
  // Multiplications and additions of a prompt of `tokens`, whose last row alone goes through the head: products with weights, then
  // attention's own (causal: a row with itself and those before).
  double linear_flops(std::int64_t tokens) const;
  double attention_flops(std::int64_t tokens) const;

 private:
  model_config config_;
  dtype kv_type_;
  std::size_t weight_bytes_ = 0;
};

} // namespace troupe::bench
