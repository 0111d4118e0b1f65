// y = x W^T for many rows on the GPU by cuBLASLt, with the algorithm of each shape chosen by measurement. kernels/linear_gpu.hpp has the
// products of few rows; both read the same row-major W.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <span>
#include <string>

#include "core/dtype.hpp"
#include "device/cuda/memory.hpp"
#include "device/cuda/stream.hpp"

namespace troupe::gpu {

// Sums are in f32 and rounded once, after bias and residual; but where y is the residual itself, cuBLASLt rounds the product first and then
// adds it. Strides count elements and are, like the columns and out_rows, multiples of 8.
struct matmul_args {
  dtype type = dtype::bf16;     // of W, x, bias and residual: bf16 or f16
  dtype y_type = dtype::bf16;   // `type`, or f32 (logits): then without bias and residual
  const void* weight = nullptr; // W: [out_rows][columns], row-major
  std::int64_t out_rows = 0;
  std::int64_t columns = 0;
  const void* x = nullptr; // [rows][columns]
  std::int64_t x_stride = 0;
  std::int32_t rows = 0;
  const void* bias = nullptr;     // [out_rows] or null
  const void* residual = nullptr; // or null; shape and stride of y, may be y: y = residual + x W^T + bias
  void* y = nullptr;              // [rows][out_rows]
  std::int64_t y_stride = 0;
};

// Owns a workspace and the chosen algorithms. All products of one object go to one stream (they share the workspace). After construction
// nothing is allocated on the device; run() can be captured in a graph.
class matmul {
 public:
  using log_line = std::function<void(const std::string&)>;

  // `cache_file`: algorithms chosen by earlier runs on such a device with this CUDA and cuBLAS; empty: none is kept. One that cannot be
  // used is passed over with a line to `log`.
  matmul(cuda::caching_allocator& memory, std::filesystem::path cache_file, log_line log);
  ~matmul();
  matmul(const matmul&) = delete;
  matmul& operator=(const matmul&) = delete;

  // Chooses the algorithms of `product` for each of `row_counts` rows, by the cache or by timing what cuBLASLt proposes, and waits.
  // Products with up to that many rows then use them. `weights`: matrices of the product's shape (all layers'), taken in turn so that
  // caches are cold. Overwrites product.x (with random numbers) and product.y, which have room for the largest count.
  void tune(const cuda::stream& on, const matmul_args& product, std::span<const void* const> weights,
            std::span<const std::int32_t> row_counts);
  // Writes the cache file when tune() has measured anything since it was read; a failure is a line to the log.
  void save();

  // Throws std::invalid_argument for what cannot be computed, device_error for what cuBLASLt refuses.
  void run(cuda::stream_handle on, const matmul_args& args);

 private:
  struct impl;
  std::unique_ptr<impl> impl_;
};

} // namespace troupe::gpu
