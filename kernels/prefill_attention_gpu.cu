#include "kernels/prefill_attention_gpu.cuh"

#include <algorithm>

#include "kernels/cuda/tensor_map.hpp"
#include "kernels/linear_paths.cuh"

namespace troupe::gpu {
namespace {

constexpr const char* op = "prefill attention";

// Keys that a tile has to read.
std::int64_t work(const prefill_tile& tile, std::int32_t window) {
  const std::int32_t low = window > 0 ? std::max(0, tile.first_position - window + 1) : 0;
  return tile.first_position + tile.rows - low;
}

prefill::shape shape_of(const prefill_attention_args& args) {
  const kv_layout& layout = args.kv.layout;
  const auto head_dim = static_cast<std::uint64_t>(layout.head_dim), block_size = static_cast<std::uint64_t>(layout.block_size);
  const std::uint64_t parts = static_cast<std::uint64_t>(args.blocks) * static_cast<std::uint64_t>(layout.kv_heads) * 2;
  prefill::shape s{};
  s.group = args.heads / layout.kv_heads;
  s.rows = prefill::lines / s.group;
  s.query = make_tensor_map<3>({layout.type,
                                args.query,
                                {head_dim, static_cast<std::uint64_t>(args.heads), static_cast<std::uint64_t>(args.rows)},
                                {head_dim, static_cast<std::uint64_t>(args.query_stride)},
                                {64, static_cast<std::uint32_t>(s.group), static_cast<std::uint32_t>(s.rows)},
                                CU_TENSOR_MAP_SWIZZLE_128B,
                                CU_TENSOR_MAP_L2_PROMOTION_L2_128B});
  // A part is the keys or the values of one head in one block.
  s.key = make_tensor_map<3>({layout.type,
                              args.kv.data,
                              {block_size, head_dim, parts},
                              {block_size, layout.head_elements()},
                              {prefill::piece, static_cast<std::uint32_t>(layout.head_dim), 1},
                              CU_TENSOR_MAP_SWIZZLE_32B,
                              CU_TENSOR_MAP_L2_PROMOTION_L2_128B});
  s.value = make_tensor_map<3>({layout.type,
                                args.kv.data,
                                {head_dim, block_size, parts},
                                {head_dim, layout.head_elements()},
                                {64, prefill::piece, 1},
                                CU_TENSOR_MAP_SWIZZLE_128B,
                                CU_TENSOR_MAP_L2_PROMOTION_L2_128B});
  s.tiles = args.tiles;
  s.items = args.tile_count * layout.kv_heads;
  s.kv_heads = layout.kv_heads;
  s.block_size = layout.block_size;
  s.window = args.window;
  s.tables = args.block_tables;
  s.table_stride = args.table_stride;
  s.output_stride = args.output_stride;
  s.scale_log2 = args.scale * 1.4426950408889634F;
  return s;
}

std::int32_t share_count(std::int32_t longest) { return prefill::share_of(longest - 1) + 1; }

template <class T, int HeadDim, bool Shares>
void start(cuda::stream_handle on, const prefill_attention_args& args, const prefill::shape& s, std::int64_t items) {
  const auto blocks = static_cast<unsigned>(std::min<std::int64_t>(items, multiprocessors()));
  launch(on, {blocks, prefill::threads, sizeof(prefill::shared_state<HeadDim>) + 1024, args.overlaps}, prefill::kernel<T, HeadDim, Shares>,
         s, static_cast<T*>(args.output));
}

// As many tiles at a time as the workspace has room for, and what they get joined behind them.
template <class T, int HeadDim>
void start_in_shares(cuda::stream_handle on, const prefill_attention_args& args, prefill::shape s) {
  const attention_shares& in = args.shares;
  const std::int32_t shares = share_count(in.longest);
  const std::size_t of_tile = attention_shares_workspace(1, in.tile_rows, args.heads, HeadDim, in.longest);
  const std::size_t room = in.workspace_bytes / of_tile;
  require(room >= 1, op, "the workspace has no room for a tile's shares");
  require(in.last_position == nullptr || room >= static_cast<std::size_t>(args.tile_count), op, "the workspace has no room for all tiles");
  for (std::int32_t first = 0; first < args.tile_count;) {
    const auto count = static_cast<std::int32_t>(std::min(room, static_cast<std::size_t>(args.tile_count - first)));
    const std::int64_t parts = std::int64_t{shares} * count * in.tile_rows * args.heads;
    float* const mix = static_cast<float*>(in.workspace);
    s.tiles = args.tiles + first;
    s.items = count * args.kv.layout.kv_heads;
    s.parts = {mix, reinterpret_cast<float2*>(mix + parts * HeadDim), in.tile_rows, args.heads, shares, in.last_position};
    start<T, HeadDim, true>(on, args, s, std::int64_t{shares} * s.items);
    if (shares > 1) {
      constexpr int heads = prefill::join_threads / (HeadDim / 4);
      const dim3 grid(static_cast<unsigned>(count * in.tile_rows), static_cast<unsigned>((args.heads + heads - 1) / heads));
      launch(on, {grid, prefill::join_threads, 0, args.overlaps}, prefill::join_kernel<T, HeadDim>, s.tiles, count, s.parts, args.window,
             s.scale_log2, static_cast<T*>(args.output), args.output_stride);
    }
    first += count;
  }
}

template <class T, int HeadDim>
void start(cuda::stream_handle on, const prefill_attention_args& args) {
  const prefill::shape s = shape_of(args);
  if (args.shares.workspace != nullptr) return start_in_shares<T, HeadDim>(on, args, s);
  start<T, HeadDim, false>(on, args, s, s.items);
}

} // namespace

std::int32_t prefill_tile_rows(std::int32_t heads, std::int32_t kv_heads) {
  require(kv_heads > 0 && heads > 0 && heads % kv_heads == 0, op, "heads are a multiple of the KV heads");
  require(heads / kv_heads <= prefill::lines, op, "at most 64 heads share a KV head");
  return prefill::warpgroups * (prefill::lines / (heads / kv_heads));
}

std::size_t attention_shares_workspace(std::int32_t tiles, std::int32_t tile_rows, std::int32_t heads, std::int32_t head_dim,
                                       std::int32_t longest) {
  const auto parts = static_cast<std::size_t>(share_count(longest)) * static_cast<std::size_t>(tiles) *
                     static_cast<std::size_t>(tile_rows) * static_cast<std::size_t>(heads);
  return parts * (static_cast<std::size_t>(head_dim) * sizeof(float) + sizeof(float2));
}

void split_prefill(std::span<const prefill_span> spans, std::int32_t heads, std::int32_t kv_heads, std::int32_t window,
                   std::vector<prefill_tile>& tiles) {
  const std::int32_t rows = prefill_tile_rows(heads, kv_heads);
  tiles.clear();
  for (const prefill_span& span : spans) {
    const std::int32_t end = span.first_position + span.rows;
    for (std::int32_t at = 0; at < span.rows; at += rows)
      tiles.push_back({span.first_row + at, std::min(rows, span.rows - at), span.first_position + at, end, span.table});
  }
  std::stable_sort(tiles.begin(), tiles.end(),
                   [window](const prefill_tile& a, const prefill_tile& b) { return work(a, window) > work(b, window); });
}

void prefill_attention(cuda::stream_handle on, const prefill_attention_args& args) {
  const kv_layout& layout = args.kv.layout;
  prefill_tile_rows(args.heads, layout.kv_heads); // checks the heads
  require(args.rows >= 1 && args.tile_count >= 1 && args.blocks >= 1, op, "at least 1 row, 1 tile and 1 block");
  require(layout.block_size > 0 && layout.block_size % prefill::piece == 0, op, "blocks hold a multiple of 16 positions");
  require(layout.head_dim == 64 || layout.head_dim == 128, op, "head_dim is 64 or 128");
  require(args.scale > 0, op, "the scale is above 0");
  require(args.shares.workspace == nullptr || (args.shares.tile_rows >= 1 && args.shares.longest >= 1), op, "shares of at least 1 row");
  require(args.query_stride % 8 == 0 && args.output_stride % 2 == 0, op, "query strides are multiples of 8, output strides even");
  with_half_type(layout.type, op, [&]<class T>() {
    if (layout.head_dim == 64)
      start<T, 64>(on, args);
    else
      start<T, 128>(on, args);
  });
}

} // namespace troupe::gpu
