// y = x W^T without any trick, for any number of rows and any shape: the other products' oracle.
#pragma once

#include <cstdint>

#include "core/dtype.hpp"
#include "device/cuda/handles.hpp"

namespace troupe::gpu {

struct plain_linear_args {
  dtype type = dtype::bf16;     // of x, W, bias and residual
  const void* weight = nullptr; // [out_rows][columns]
  std::int64_t out_rows = 0;
  std::int64_t columns = 0;
  const void* x = nullptr;    // [rows][columns], stride x_stride
  std::int64_t x_stride = 0;
  std::int32_t rows = 0;
  const void* bias = nullptr;     // [out_rows] or null
  const void* residual = nullptr; // of y's shape and stride, may be y; or null
  void* y = nullptr;              // [rows][out_rows], stride y_stride
  std::int64_t y_stride = 0;
  bool to_f32 = false; // y is f32, and there is no residual
};
void plain_linear(cuda::stream_handle on, const plain_linear_args& args);

} // namespace troupe::gpu
