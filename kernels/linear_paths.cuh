// The four ways to a product, each in its own file, behind the ops of linear_gpu.hpp.
#pragma once

#include "kernels/launch.cuh"
#include "kernels/linear_epilogues.cuh"

namespace troupe::gpu {

constexpr std::int32_t stream_rows = 8; // most rows of the path that takes W through shared memory for a warp's matrix instruction
constexpr std::int32_t tile_rows = 32;  // most rows of the path of W in tiles for warp groups
constexpr std::int32_t wide_rows = 128; // most rows of the one with larger tiles

// `pairs`: how many pairs of output rows there are; `distance`: see linear_epilogues.cuh.
struct row_pairs {
  std::int32_t pairs;
  std::int32_t distance; // a multiple of 8
};

// What gemv_takes: few rows, and not too many columns (linear_gemv_gpu.cu).
bool gemv_takes(const linear_args& args);
// How many warps finish outputs of a row there.
std::int32_t gemv_finishers(const linear_args& args, row_pairs outputs);
template <class T, class Epilogue>
void start_gemv(cuda::stream_handle on, const linear_args& args, row_pairs outputs, const Epilogue& epilogue);
// At most stream_rows rows (linear_stream_gpu.cu).
template <class T, class Epilogue>
void start_stream(cuda::stream_handle on, const linear_args& args, row_pairs outputs, const Epilogue& epilogue);
// At most tile_rows rows, without a norm (linear_wgmma_gpu.cu).
template <class T, class Epilogue>
void start_wgmma(cuda::stream_handle on, const linear_args& args, row_pairs outputs, const Epilogue& epilogue);
// Without a norm (linear_wide_gpu.cu): at most wide_rows rows, or any number with batch_invariant.
template <class T, class Epilogue>
void start_wide(cuda::stream_handle on, const linear_args& args, row_pairs outputs, const Epilogue& epilogue);

// Whether the largest tiles of that path occupy nine tenths of the multiprocessors in all rounds: then it is the faster one from 9 rows on.
bool wide_fills(row_pairs outputs);

int multiprocessors(); // of the current device
// How many clusters of so many blocks of a kernel run at once.
std::int32_t resident_clusters(const void* kernel, int cluster, int threads, std::size_t shared_bytes);

} // namespace troupe::gpu
