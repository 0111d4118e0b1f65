#include "kernels/linear_gpu.cuh"

#include <algorithm>

namespace troupe::gpu {
namespace {

constexpr const char* op = "linear";
constexpr std::size_t shared_x_bytes = 66 * 1024; // of x at once: all of 8 rows of 4096 columns

// Output row c of the first half of a tile whose rows stand for themselves; the second half's is 8 behind.
__device__ __forceinline__ std::int64_t plain_row(std::int32_t tile, std::int32_t c) { return std::int64_t{16} * tile + c; }

template <class T>
__device__ __forceinline__ float biased(float value, const T* bias, std::int64_t row) {
  return bias == nullptr ? value : value + to_float(bias[row]);
}

template <class T, class Out>
struct store_epilogue {
  Out* y;
  std::int64_t y_stride, out_rows;
  const T* bias;
  const T* residual; // null: none

  __device__ void put(std::int32_t row, std::int64_t o, float value) const {
    if (o >= out_rows) return;
    value = biased(value, bias, o);
    if (residual != nullptr) value += to_float(residual[row * y_stride + o]);
    if constexpr (std::is_same_v<Out, float>)
      y[row * y_stride + o] = value;
    else
      y[row * y_stride + o] = from_float<T>(value);
  }
  __device__ void operator()(std::int32_t row, std::int32_t tile, std::int32_t c, float first, float second) const {
    put(row, plain_row(tile, c), first);
    put(row, plain_row(tile, c) + 8, second);
  }
};

template <class T>
struct swiglu_epilogue {
  T* y;
  std::int64_t y_stride;

  __device__ void operator()(std::int32_t row, std::int32_t tile, std::int32_t c, float gate, float up) const {
    y[row * y_stride + std::int64_t{8} * tile + c] = from_float<T>(gate / (1.0F + __expf(-gate)) * up);
  }
};

template <class T>
struct qkv_epilogue {
  T* y;
  std::int64_t y_stride;
  const T* bias;
  row_places places;
  rotary table;
  T* kv;
  std::int32_t heads, kv_heads, head_dim, block_size;

  // Element `dim` of this row's key (or value) of KV head `head`.
  __device__ T& cached(std::int32_t row, std::int32_t position, std::int32_t head, std::int32_t dim, bool value) const {
    const std::int64_t of_head = std::int64_t{head_dim} * block_size;
    const std::int64_t block = places.block_tables[row * places.table_stride + position / block_size];
    const std::int32_t at = position % block_size;
    T* place = kv + (block * kv_heads + head) * 2 * of_head;
    return value ? place[of_head + at * head_dim + dim] : place[dim * block_size + at];
  }

  __device__ void operator()(std::int32_t row, std::int32_t tile, std::int32_t c, float first, float second) const {
    const std::int32_t position = places.positions[row], start = 16 * tile;
    const std::int32_t rotating = (heads + kv_heads) * head_dim;
    if (start >= rotating) { // values: rows stand for themselves
      const std::int32_t o = start - rotating + c;
      cached(row, position, o / head_dim, o % head_dim, true) = from_float<T>(biased(first, bias, rotating + o));
      cached(row, position, o / head_dim, o % head_dim + 8, true) = from_float<T>(biased(second, bias, rotating + o + 8));
      return;
    }
    const std::int32_t half = head_dim / 2, head = start / head_dim, dim = start % head_dim / 2 + c;
    first = biased(first, bias, head * head_dim + dim);
    second = biased(second, bias, head * head_dim + dim + half);
    const float cos = table.cos[std::int64_t{position} * half + dim], sin = table.sin[std::int64_t{position} * half + dim];
    const T low = from_float<T>(first * cos - second * sin), high = from_float<T>(second * cos + first * sin);
    if (head < heads) {
      y[row * y_stride + head * head_dim + dim] = low;
      y[row * y_stride + head * head_dim + dim + half] = high;
    } else {
      cached(row, position, head - heads, dim, false) = low;
      cached(row, position, head - heads, dim + half, false) = high;
    }
  }
};

// Columns of x per phase: as many rounds as fit.
linear_shape shape_of(const linear_args& args) {
  linear_shape s{};
  s.packed = static_cast<const uint4*>(args.packed);
  s.tiles = static_cast<std::int32_t>((args.out_rows + 15) / 16);
  s.blocks = static_cast<std::int32_t>((args.columns + block_columns - 1) / block_columns);
  const std::int32_t fitting = static_cast<std::int32_t>(shared_x_bytes / (static_cast<std::size_t>(args.rows) * 2 * block_columns));
  s.phase_blocks = s.blocks <= fitting ? s.blocks : fitting / linear_round * linear_round;
  s.columns = static_cast<std::int32_t>(args.columns);
  s.rows = args.rows;
  s.x_pitch = 4 * s.phase_blocks + (s.phase_blocks % 2 == 0 ? 4 : 0);
  return s;
}

int multiprocessors() {
  int device = 0, count = 0;
  cuda::check(cudaGetDevice(&device), "cudaGetDevice");
  cuda::check(cudaDeviceGetAttribute(&count, cudaDevAttrMultiProcessorCount, device), "cudaDeviceGetAttribute");
  return count;
}

template <class T, int Rows, class Epilogue>
void start(cuda::stream_handle on, const linear_args& args, const Epilogue& epilogue) {
  const linear_shape s = shape_of(args);
  const unsigned grid = static_cast<unsigned>(std::min(s.tiles, (Rows == 1 ? 2 : 1) * multiprocessors()));
  const std::size_t shared = ring_bytes<Rows> + static_cast<std::size_t>(s.rows * s.x_pitch) * sizeof(uint4);
  launch(on, {grid, linear_threads, shared, args.overlaps}, linear_kernel<T, Rows, Epilogue>, s, static_cast<const T*>(args.x),
         args.x_stride, static_cast<const T*>(args.norm_weight), args.epsilon, epilogue);
}

template <class T, class Epilogue>
void start_for_rows(cuda::stream_handle on, const linear_args& args, const Epilogue& epilogue) {
  require(args.rows >= 1 && args.rows <= 16, op, "1 to 16 rows");
  require(args.columns > 0 && args.columns % 8 == 0 && args.x_stride % 8 == 0, op, "columns and x_stride are multiples of 8");
  require(args.out_rows > 0 && args.columns < (1 << 20) && args.out_rows < (1 << 30), op, "the shape is out of range");
  if (args.rows == 1) return start<T, 1>(on, args, epilogue);
  if (args.rows <= 8) return start<T, 8>(on, args, epilogue);
  start<T, 16>(on, args, epilogue);
}

struct packing {
  row_segment segments[3];
  std::int32_t count;
};

// Row of W that row `n` of half `half` of tile `tile` holds.
__device__ std::int64_t source_row(const packing& p, std::int64_t tile, int half, int n) {
  std::int64_t base = 0, at = 16 * tile;
  std::int32_t i = 0;
  for (; i + 1 < p.count && at >= p.segments[i].rows; ++i) at -= p.segments[i].rows, base += p.segments[i].rows;
  const std::int64_t pair = p.segments[i].pair_distance;
  return base + at / (2 * pair) * (2 * pair) + at % (2 * pair) / 2 + half * pair + n;
}

// A thread for each 16 bytes of the packed matrix.
__global__ void pack_kernel(const std::uint16_t* weight, std::int64_t rows, std::int64_t columns, packing p, std::int64_t blocks,
                            std::int64_t pieces, eight<std::uint16_t>* packed) {
  const std::int64_t i = std::int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
  if (i >= pieces) return;
  const int lane = static_cast<int>(i % 32), half = static_cast<int>(i / 32 % 2);
  const std::int64_t tile = i / 64 / blocks, column = i / 64 % blocks * block_columns + lane % 4 * 8;
  const std::int64_t row = source_row(p, tile, half, lane / 4);
  eight<std::uint16_t> v{};
  for (int k = 0; k < 8; ++k) {
    if (row < rows && column + k < columns) v.at[k] = weight[row * columns + column + k];
  }
  packed[i] = v;
}

} // namespace

std::size_t packed_bytes(std::int64_t rows, std::int64_t columns) {
  return static_cast<std::size_t>((rows + 15) / 16 * ((columns + block_columns - 1) / block_columns)) * 1024;
}

void pack_weight(cuda::stream_handle on, dtype type, const void* weight, std::int64_t columns, std::span<const row_segment> segments,
                 void* packed) {
  require(type == dtype::bf16 || type == dtype::f16, op, "weights are bf16 or f16");
  require(!segments.empty() && segments.size() <= 3, op, "one to three segments");
  packing p{};
  p.count = static_cast<std::int32_t>(segments.size());
  std::int64_t rows = 0;
  for (std::size_t i = 0; i < segments.size(); ++i) {
    const row_segment& s = segments[i];
    const bool plain_tail = i + 1 == segments.size() && s.pair_distance == 8;
    require(s.pair_distance > 0 && s.pair_distance % 8 == 0 && s.rows > 0, op, "a pair distance is a multiple of 8");
    require(plain_tail || s.rows % (2 * s.pair_distance) == 0, op, "a segment's rows are a multiple of twice its pair distance");
    p.segments[i] = s;
    rows += s.rows;
  }
  const std::int64_t pieces = static_cast<std::int64_t>(packed_bytes(rows, columns) / 16);
  launch(on, {static_cast<unsigned>((pieces + 255) / 256), 256}, pack_kernel, static_cast<const std::uint16_t*>(weight), rows, columns, p,
         (columns + block_columns - 1) / block_columns, pieces, static_cast<eight<std::uint16_t>*>(packed));
}

void linear(cuda::stream_handle on, const linear_args& args) {
  with_half_type(args.type, op, [&]<class T>() {
    start_for_rows<T>(
        on, args, store_epilogue<T, T>{static_cast<T*>(args.y), args.y_stride, args.out_rows, static_cast<const T*>(args.bias), nullptr});
  });
}

void linear_to_f32(cuda::stream_handle on, const linear_args& args) {
  with_half_type(args.type, op, [&]<class T>() {
    start_for_rows<T>(
        on, args,
        store_epilogue<T, float>{static_cast<float*>(args.y), args.y_stride, args.out_rows, static_cast<const T*>(args.bias), nullptr});
  });
}

void linear_residual(cuda::stream_handle on, const linear_args& args, const void* residual) {
  with_half_type(args.type, op, [&]<class T>() {
    start_for_rows<T>(on, args,
                      store_epilogue<T, T>{static_cast<T*>(args.y), args.y_stride, args.out_rows, static_cast<const T*>(args.bias),
                                           static_cast<const T*>(residual)});
  });
}

void linear_swiglu(cuda::stream_handle on, const linear_args& args) {
  require(args.bias == nullptr && args.out_rows % 16 == 0, op, "SwiGLU takes no bias, and a multiple of 8 gates");
  with_half_type(args.type, op, [&]<class T>() {
    start_for_rows<T>(on, args, swiglu_epilogue<T>{static_cast<T*>(args.y), args.y_stride});
  });
}

void linear_qkv(cuda::stream_handle on, const linear_args& args, const qkv_args& qkv) {
  const kv_layout& layout = qkv.kv.layout;
  require(layout.type == args.type, op, "the KV cache has the type of x");
  require(layout.head_dim % 16 == 0, op, "head_dim is a multiple of 16");
  require(args.out_rows == std::int64_t{qkv.heads + 2 * layout.kv_heads} * layout.head_dim, op, "rows of queries, keys and values");
  with_half_type(args.type, op, [&]<class T>() {
    start_for_rows<T>(on, args,
                      qkv_epilogue<T>{static_cast<T*>(args.y), args.y_stride, static_cast<const T*>(args.bias), qkv.places, qkv.table,
                                      reinterpret_cast<T*>(qkv.kv.data), qkv.heads, layout.kv_heads, layout.head_dim, layout.block_size});
  });
}

} // namespace troupe::gpu
