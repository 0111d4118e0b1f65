#include <initializer_list>

#include "kernels/elementwise_gpu.hpp"
#include "kernels/launch.cuh"
#include "kernels/linear_paths.cuh"

namespace troupe::gpu {
namespace {

constexpr const char* op = "linear";

// args with x normalised in the workspace.
linear_args normed(cuda::stream_handle on, const linear_args& args) {
  if (args.norm_weight == nullptr) return args;
  require(args.workspace != nullptr, op, "more than 8 rows with a norm need a workspace");
  norm_args norm;
  norm.type = args.type;
  norm.x = args.x;
  norm.stride = args.x_stride;
  norm.y = args.workspace;
  norm.y_stride = norm.columns = args.columns;
  norm.rows = args.rows;
  norm.weight = args.norm_weight;
  norm.epsilon = args.epsilon;
  norm.overlaps = args.overlaps;
  rms_norm(on, norm);
  linear_args out = args;
  out.norm_weight = nullptr;
  out.x = args.workspace;
  out.x_stride = args.columns;
  return out;
}

void check_shape(const linear_args& args) {
  require(args.rows >= 1 && (args.rows <= wide_rows || args.batch_invariant), op, "1 to 128 rows");
  require(args.columns > 0 && args.columns % 8 == 0 && args.x_stride % 8 == 0, op, "columns and x_stride are multiples of 8");
  require(args.out_rows > 0 && args.columns < (1 << 20) && args.out_rows < (1 << 30), op, "the shape is out of range");
}

template <class T, class Epilogue>
void start(cuda::stream_handle on, const linear_args& args, row_pairs outputs, const Epilogue& epilogue) {
  check_shape(args);
  require(!args.holds_next || !args.batch_invariant, op, "a batch-invariant product does not hold the next kernel");
  if (args.batch_invariant) {
    require(args.norm_weight == nullptr, op, "a batch-invariant product comes without a norm");
    return start_wide<T>(on, args, outputs, epilogue);
  }
  if (gemv_takes(args)) return start_gemv<T>(on, args, outputs, epilogue);
  if (args.holds_next) {
    linear_args alone = args;
    alone.overlaps = alone.holds_next = false;
    return start<T>(on, alone, outputs, epilogue);
  }
  if (args.rows <= stream_rows) return start_stream<T>(on, args, outputs, epilogue);
  if (args.rows <= tile_rows && !wide_fills(outputs)) return start_wgmma<T>(on, normed(on, args), outputs, epilogue);
  start_wide<T>(on, normed(on, args), outputs, epilogue);
}

// Whether two neighbours of each row can be reached in one access of twice `element` bytes.
bool in_twos(std::int64_t stride, std::size_t element, std::initializer_list<const void*> pointers) {
  for (const void* p : pointers) {
    if (reinterpret_cast<std::uintptr_t>(p) % (2 * element) != 0) return false;
  }
  return stride % 2 == 0;
}

row_pairs plain_pairs(const linear_args& args) { return {static_cast<std::int32_t>((args.out_rows + 15) / 16 * 8), 8}; }

template <class T, class Out>
void start_store(cuda::stream_handle on, const linear_args& args, const void* residual) {
  start<T>(on, args, plain_pairs(args),
           store_epilogue<T, Out>{static_cast<Out*>(args.y), args.y_stride, static_cast<std::int32_t>(args.out_rows),
                                  static_cast<const T*>(args.bias), static_cast<const T*>(residual),
                                  in_twos(args.y_stride, sizeof(Out), {args.y, residual})});
}

} // namespace

std::size_t linear_workspace(std::int32_t rows, std::int64_t columns) {
  if (rows <= stream_rows) return 0;
  return static_cast<std::size_t>(rows) * static_cast<std::size_t>(columns) * 2;
}

int multiprocessors() {
  int device = 0, count = 0;
  cuda::check(cudaGetDevice(&device), "cudaGetDevice");
  cuda::check(cudaDeviceGetAttribute(&count, cudaDevAttrMultiProcessorCount, device), "cudaDeviceGetAttribute");
  return count;
}

std::int32_t resident_clusters(const void* kernel, int cluster, int threads, std::size_t shared_bytes) {
  cuda::check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(shared_bytes)),
              "cudaFuncSetAttribute");
  cudaLaunchAttribute attribute{};
  attribute.id = cudaLaunchAttributeClusterDimension;
  attribute.val.clusterDim = {static_cast<unsigned>(cluster), 1, 1};
  cudaLaunchConfig_t config{};
  config.gridDim = static_cast<unsigned>(cluster);
  config.blockDim = static_cast<unsigned>(threads);
  config.dynamicSmemBytes = shared_bytes;
  config.attrs = &attribute;
  config.numAttrs = 1;
  int count = 0;
  cuda::check(cudaOccupancyMaxActiveClusters(&count, kernel, &config), "cudaOccupancyMaxActiveClusters");
  return count;
}

void linear(cuda::stream_handle on, const linear_args& args) {
  with_half_type(args.type, op, [&]<class T>() { start_store<T, T>(on, args, nullptr); });
}

void linear_to_f32(cuda::stream_handle on, const linear_args& args) {
  with_half_type(args.type, op, [&]<class T>() { start_store<T, float>(on, args, nullptr); });
}

std::int32_t linear_to_logits(cuda::stream_handle on, const linear_args& args, std::int32_t vocab, logit_top* tops) {
  const row_pairs outputs = plain_pairs(args);
  if (args.batch_invariant || !gemv_takes(args) || gemv_finishers(args, outputs) > most_logit_tops) {
    linear_to_f32(on, args);
    return 0;
  }
  require(args.bias == nullptr && vocab >= 1 && vocab <= args.out_rows, op, "logits have no bias, and a vocabulary of at most their rows");
  check_shape(args);
  const logits_epilogue epilogue{static_cast<float*>(args.y), args.y_stride, static_cast<std::int32_t>(args.out_rows), vocab, tops};
  with_half_type(args.type, op, [&]<class T>() { start_gemv<T>(on, args, outputs, epilogue); });
  return gemv_finishers(args, outputs);
}

void linear_residual(cuda::stream_handle on, const linear_args& args, const void* residual) {
  with_half_type(args.type, op, [&]<class T>() { start_store<T, T>(on, args, residual); });
}

void linear_swiglu(cuda::stream_handle on, const linear_args& args) {
  require(args.bias == nullptr && args.out_rows % 16 == 0, op, "SwiGLU takes no bias, and a multiple of 8 gates");
  const auto gates = static_cast<std::int32_t>(args.out_rows / 2);
  with_half_type(args.type, op, [&]<class T>() {
    start<T>(on, args, {gates, gates},
             swiglu_epilogue<T>{static_cast<T*>(args.y), args.y_stride, gates, in_twos(args.y_stride, sizeof(T), {args.y})});
  });
}

void linear_qkv(cuda::stream_handle on, const linear_args& args, const qkv_args& qkv) {
  const kv_layout& layout = qkv.kv.layout;
  require(layout.type == args.type, op, "the KV cache has the type of x");
  require(layout.head_dim > 0 && layout.head_dim % 16 == 0, op, "head_dim is a multiple of 16");
  require(args.out_rows == std::int64_t{qkv.heads + 2 * layout.kv_heads} * layout.head_dim, op, "rows of queries, keys and values");
  with_half_type(args.type, op, [&]<class T>() {
    start<T>(on, args, {static_cast<std::int32_t>(args.out_rows / 2), layout.head_dim / 2},
             qkv_epilogue<T>{static_cast<T*>(args.y), args.y_stride, static_cast<const T*>(args.bias), qkv.places, qkv.table,
                             reinterpret_cast<T*>(qkv.kv.data), qkv.heads, layout.kv_heads, layout.head_dim, layout.block_size,
                             in_twos(args.y_stride, sizeof(T), {args.y, qkv.kv.data}), qkv.tables, divider(layout.head_dim / 2),
                             divider(layout.block_size)});
  });
}

} // namespace troupe::gpu
