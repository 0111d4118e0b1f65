// The softmax is computed online over tiles of keys (arXiv 2205.14135): running maximum, running sum, rescaled output. A tile
// is first widened to f32 in the worker's scratch; then a few rows at a time run over it with all accumulators in registers.
#include "kernels/attention.hpp"

#include <algorithm>
#include <cmath>
#include <limits>

#include "device/cpu/aligned_buffer.hpp"
#include "kernels/parallel.hpp"
#include "kernels/simd.hpp"

namespace troupe::cpu {
namespace {

using simd::f32x16;

constexpr std::int64_t tile = 64;      // positions
constexpr std::int64_t unit_rows = 48; // rows x heads of one unit, about
constexpr std::int64_t lanes = simd::lanes;

std::int64_t padded(std::int64_t head_dim) { return (head_dim + lanes - 1) / lanes * lanes; }

// One worker's memory for one unit of `rows` (row, head) pairs. Rows are the outermost index everywhere.
struct scratch {
  float* keys;   // [head_dim][tile], zero beyond the last position
  float* values; // [tile][width]
  float* query;  // [rows][head_dim], scaled
  float* scores; // [rows][tile]
  float* output; // [rows][width]
  float* top;    // [rows] running maximum
  float* sum;    // [rows] running sum of exponentials
  std::int64_t head_dim;
  std::int64_t width; // head_dim padded to whole vectors
  std::int64_t rows;
};

scratch take_scratch(std::int64_t rows, std::int64_t head_dim) {
  static thread_local aligned_buffer<float> memory;
  const std::int64_t width = padded(head_dim);
  const std::int64_t state = (rows + lanes - 1) / lanes * lanes;
  const std::int64_t sizes[] = {head_dim * tile, tile * width, padded(rows * head_dim), rows * tile, rows * width, state, state};
  std::size_t total = 0;
  for (const std::int64_t size : sizes) total += static_cast<std::size_t>(size);
  if (memory.size() < total) memory = aligned_buffer<float>(total);
  float* parts[7];
  float* next = memory.data();
  for (int i = 0; i < 7; ++i) {
    parts[i] = next;
    next += sizes[i];
  }
  return {parts[0], parts[1], parts[2], parts[3], parts[4], parts[5], parts[6], head_dim, width, rows};
}

TROUPE_INLINE f32x16 widen16(const float* from) { return simd::load(from); }
struct f16_bits { std::uint16_t bits; };
struct bf16_bits { std::uint16_t bits; };
TROUPE_INLINE f32x16 widen16(const f16_bits* from) { return simd::widen_f16(simd::load_u16(&from->bits)); }
TROUPE_INLINE f32x16 widen16(const bf16_bits* from) { return simd::widen_bf16(simd::load_u16(&from->bits)); }

// to[0 .. count) = from[0 .. count), widened.
template <class Element>
TROUPE_INLINE void widen(const Element* from, std::int64_t count, float* to) {
  std::int64_t i = 0;
  for (; i + lanes <= count; i += lanes) simd::store(to + i, widen16(from + i));
  if (i == count) return;
  Element rest[lanes] = {};
  float wide[lanes];
  for (std::int64_t k = 0; i + k < count; ++k) rest[k] = from[i + k];
  simd::store(wide, widen16(rest));
  for (std::int64_t k = 0; i + k < count; ++k) to[i + k] = wide[k];
}

// Brings positions begin .. end-1 (at most a tile, from a tile's start) of one KV head into the scratch, zeros behind them.
template <class Element>
TROUPE_INLINE void gather(const kv_layer_view& kv, const block_id* blocks, std::int32_t head, std::int64_t begin, std::int64_t end,
                          const scratch& s) {
  const std::int64_t block_size = kv.layout.block_size;
  for (std::int64_t position = begin; position < end;) {
    const std::int64_t inside = position % block_size;
    const std::int64_t run = std::min(block_size - inside, end - position);
    const Element* keys = reinterpret_cast<const Element*>(kv.head(blocks[position / block_size], head));
    const Element* values = keys + kv.layout.head_elements() + inside * s.head_dim;
    float* to = s.keys + (position - begin);
    for (std::int64_t d = 0; d < s.head_dim; ++d) widen(keys + d * block_size + inside, run, to + d * tile);
    if (s.width == s.head_dim) {
      widen(values, run * s.head_dim, s.values + (position - begin) * s.width);
    } else {
      for (std::int64_t i = 0; i < run; ++i) widen(values + i * s.head_dim, s.head_dim, s.values + (position - begin + i) * s.width);
    }
    position += run;
  }
  for (std::int64_t d = 0; d < s.head_dim; ++d) {
    for (std::int64_t i = end - begin; i < tile; ++i) s.keys[d * tile + i] = 0;
  }
}

TROUPE_CLONES void gather_f32(const kv_layer_view& kv, const block_id* blocks, std::int32_t head, std::int64_t begin, std::int64_t end,
                              const scratch& s) {
  gather<float>(kv, blocks, head, begin, end, s);
}
TROUPE_CLONES void gather_f16(const kv_layer_view& kv, const block_id* blocks, std::int32_t head, std::int64_t begin, std::int64_t end,
                              const scratch& s) {
  gather<f16_bits>(kv, blocks, head, begin, end, s);
}
TROUPE_CLONES void gather_bf16(const kv_layer_view& kv, const block_id* blocks, std::int32_t head, std::int64_t begin, std::int64_t end,
                               const scratch& s) {
  gather<bf16_bits>(kv, blocks, head, begin, end, s);
}

// scores[r][p] = query[r] . keys[.][p] for Rows rows and 32 positions from `at` on: one chain of additions per score, over dimensions.
template <int Rows>
TROUPE_INLINE void dot_rows(const scratch& s, std::int64_t row, std::int64_t at) {
  const float* query = s.query + row * s.head_dim;
  const float* keys = s.keys + at;
  f32x16 low[Rows] = {}, high[Rows] = {};
  for (std::int64_t d = 0; d < s.head_dim; ++d) {
    const f32x16 k0 = simd::load(keys + d * tile), k1 = simd::load(keys + d * tile + lanes);
    for (int r = 0; r < Rows; ++r) {
      low[r] += k0 * query[r * s.head_dim + d];
      high[r] += k1 * query[r * s.head_dim + d];
    }
  }
  for (int r = 0; r < Rows; ++r) {
    simd::store(s.scores + (row + r) * tile + at, low[r]);
    simd::store(s.scores + (row + r) * tile + at + lanes, high[r]);
  }
}

TROUPE_CLONES void dot_tile(const scratch& s, std::int64_t first_row, std::int64_t last_row, std::int64_t positions) {
  for (std::int64_t at = 0; at < positions; at += 2 * lanes) {
    std::int64_t row = first_row;
    for (; row + 6 <= last_row; row += 6) dot_rows<6>(s, row, at);
    for (; row + 3 <= last_row; row += 3) dot_rows<3>(s, row, at);
    for (; row < last_row; ++row) dot_rows<1>(s, row, at);
  }
}

// Scores of positions low .. high-1 become weights, all others 0; maximum, sum and output move on.
TROUPE_CLONES void soften_row(const scratch& s, std::int64_t row, std::int64_t low, std::int64_t high) {
  float* scores = s.scores + row * tile;
  const f32x16 nothing = simd::splat(-std::numeric_limits<float>::infinity());
  const simd::i32x16 step = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
  f32x16 part[tile / lanes];
  f32x16 top = nothing;
  for (int i = 0; i < tile / lanes; ++i) {
    const simd::i32x16 index = step + static_cast<std::int32_t>(i * lanes);
    const auto seen = (index >= static_cast<std::int32_t>(low)) & (index < static_cast<std::int32_t>(high));
    part[i] = seen ? simd::load(scores + i * lanes) : nothing;
    top = simd::max(part[i], top);
  }
  const float before = s.top[row];
  const float now = std::max(before, simd::max(top));
  f32x16 total{};
  for (int i = 0; i < tile / lanes; ++i) {
    part[i] = simd::exp(part[i] - now);
    total += part[i];
    simd::store(scores + i * lanes, part[i]);
  }
  const float sum = simd::sum(total);
  if (now == before) {
    s.sum[row] += sum;
    return;
  }
  float shrink[lanes];
  simd::store(shrink, simd::exp(simd::splat(before - now)));
  s.top[row] = now;
  s.sum[row] = s.sum[row] * shrink[0] + sum;
  float* output = s.output + row * s.width;
  for (std::int64_t i = 0; i < s.width; i += lanes) simd::store(output + i, simd::load(output + i) * shrink[0]);
}

// output[r] += sum over p in low .. high-1, in order, of weights[r][p] values[p] for Rows rows and Vectors vectors from column `at` on.
template <int Rows, int Vectors>
TROUPE_INLINE void mix_rows(const scratch& s, std::int64_t row, std::int64_t low, std::int64_t high, std::int64_t at) {
  f32x16 sums[Rows][Vectors];
  for (int r = 0; r < Rows; ++r) {
    for (int v = 0; v < Vectors; ++v) sums[r][v] = simd::load(s.output + (row + r) * s.width + at + v * lanes);
  }
  for (std::int64_t p = low; p < high; ++p) {
    for (int v = 0; v < Vectors; ++v) {
      const f32x16 value = simd::load(s.values + p * s.width + at + v * lanes);
      for (int r = 0; r < Rows; ++r) sums[r][v] += value * s.scores[(row + r) * tile + p];
    }
  }
  for (int r = 0; r < Rows; ++r) {
    for (int v = 0; v < Vectors; ++v) simd::store(s.output + (row + r) * s.width + at + v * lanes, sums[r][v]);
  }
}

template <int Rows>
TROUPE_INLINE void mix_columns(const scratch& s, std::int64_t row, std::int64_t low, std::int64_t high) {
  std::int64_t at = 0;
  for (; at + 2 * lanes <= s.width; at += 2 * lanes) mix_rows<Rows, 2>(s, row, low, high, at);
  for (; at < s.width; at += lanes) mix_rows<Rows, 1>(s, row, low, high, at);
}

TROUPE_CLONES void mix_6(const scratch& s, std::int64_t row, std::int64_t low, std::int64_t high) { mix_columns<6>(s, row, low, high); }
TROUPE_CLONES void mix_3(const scratch& s, std::int64_t row, std::int64_t low, std::int64_t high) { mix_columns<3>(s, row, low, high); }
TROUPE_CLONES void mix_1(const scratch& s, std::int64_t row, std::int64_t low, std::int64_t high) { mix_columns<1>(s, row, low, high); }

struct range {
  std::int64_t low = 0, high = 0;
};

// `count` rows together where all of them see a position, one by one before and behind.
void mix_group(const scratch& s, std::int64_t row, std::int64_t count, const range* seen) {
  range common = seen[0];
  for (std::int64_t r = 1; r < count; ++r) common = {std::max(common.low, seen[r].low), std::min(common.high, seen[r].high)};
  if (common.low >= common.high || count == 1) {
    for (std::int64_t r = 0; r < count; ++r) mix_1(s, row + r, seen[r].low, seen[r].high);
    return;
  }
  for (std::int64_t r = 0; r < count; ++r) {
    if (seen[r].low < common.low) mix_1(s, row + r, seen[r].low, common.low);
  }
  (count == 6 ? mix_6 : mix_3)(s, row, common.low, common.high);
  for (std::int64_t r = 0; r < count; ++r) {
    if (seen[r].high > common.high) mix_1(s, row + r, common.high, seen[r].high);
  }
}

// One tile of keys from position `start` on for the rows that see any of it; they are first_row .. last_row-1.
void take_tile(const scratch& s, std::int64_t first_row, std::int64_t last_row, const range* seen) {
  std::int64_t positions = 0;
  for (std::int64_t row = first_row; row < last_row; ++row) positions = std::max(positions, seen[row].high);
  dot_tile(s, first_row, last_row, positions);
  for (std::int64_t row = first_row; row < last_row; ++row) {
    if (positions <= tile / 2) std::fill_n(s.scores + row * tile + tile / 2, tile / 2, 0.0F);
    soften_row(s, row, seen[row].low, seen[row].high);
  }
  for (std::int64_t row = first_row; row < last_row;) {
    const std::int64_t left = last_row - row;
    const std::int64_t count = left >= 6 ? 6 : left >= 3 ? 3 : 1;
    mix_group(s, row, count, seen + row);
    row += count;
  }
}

void load_queries(const attention_args& args, const attention_span& span, const attention_unit& unit, std::int64_t group, const scratch& s) {
  for (std::int64_t row = 0; row < s.rows; ++row) {
    const std::int64_t source = span.first_row + unit.first_row + row / group;
    const float* query = args.query + source * args.query_stride + (unit.kv_head * group + row % group) * s.head_dim;
    for (std::int64_t d = 0; d < s.head_dim; ++d) s.query[row * s.head_dim + d] = query[d] * args.scale;
    s.top[row] = -std::numeric_limits<float>::infinity();
    s.sum[row] = 0;
  }
  std::fill_n(s.output, s.rows * s.width, 0.0F);
  std::fill_n(s.values, tile * s.width, 0.0F); // the padding columns stay 0
}

void store_outputs(const attention_args& args, const attention_span& span, const attention_unit& unit, std::int64_t group, const scratch& s) {
  for (std::int64_t row = 0; row < s.rows; ++row) {
    const std::int64_t target = span.first_row + unit.first_row + row / group;
    float* output = args.output + target * args.output_stride + (unit.kv_head * group + row % group) * s.head_dim;
    const float share = 1.0F / s.sum[row];
    for (std::int64_t d = 0; d < s.head_dim; ++d) output[d] = s.output[row * s.width + d] * share;
  }
}

void attend(const attention_args& args, const attention_unit& unit) {
  const kv_layout& layout = args.kv.layout;
  const attention_span& span = args.spans[static_cast<std::size_t>(unit.span)];
  const std::int64_t group = args.heads / layout.kv_heads;
  const scratch s = take_scratch(unit.rows * group, layout.head_dim);
  const auto bring = layout.type == dtype::f16 ? gather_f16 : layout.type == dtype::bf16 ? gather_bf16 : gather_f32;
  load_queries(args, span, unit, group, s);
  const std::int64_t first = span.first_position + unit.first_row; // position of the unit's first row
  const std::int64_t end = first + unit.rows;
  const std::int64_t window = args.window > 0 ? args.window : end;
  static thread_local std::vector<range> seen;
  seen.resize(static_cast<std::size_t>(s.rows));
  for (std::int64_t start = std::max<std::int64_t>(0, first - window + 1) / tile * tile; start < end; start += tile) {
    std::int64_t first_row = s.rows, last_row = 0; // those that see something of the tile are neighbours
    for (std::int64_t row = 0; row < s.rows; ++row) {
      const std::int64_t position = first + row / group;
      range& r = seen[static_cast<std::size_t>(row)];
      r = {std::max<std::int64_t>(0, position - window + 1 - start), std::min(tile, position + 1 - start)};
      if (r.low >= r.high) continue;
      first_row = std::min(first_row, row);
      last_row = row + 1;
    }
    if (first_row >= last_row) continue;
    bring(args.kv, span.blocks, unit.kv_head, start, std::min(start + tile, end), s);
    take_tile(s, first_row, last_row, seen.data());
  }
  store_outputs(args, span, unit, group, s);
}

} // namespace

void split_attention(std::span<const attention_span> spans, std::int32_t heads, std::int32_t kv_heads, std::vector<attention_unit>& units) {
  units.clear();
  const std::int32_t group = heads / kv_heads;
  const std::int32_t rows = std::max<std::int32_t>(1, static_cast<std::int32_t>(unit_rows) / group);
  for (std::size_t span = 0; span < spans.size(); ++span) {
    for (std::int32_t first = 0; first < spans[span].rows; first += rows) {
      for (std::int32_t head = 0; head < kv_heads; ++head) {
        units.push_back({static_cast<std::int32_t>(span), first, std::min(rows, spans[span].rows - first), head});
      }
    }
  }
  const auto end_position = [&](const attention_unit& unit) {
    return std::int64_t{spans[static_cast<std::size_t>(unit.span)].first_position} + unit.first_row + unit.rows;
  };
  std::stable_sort(units.begin(), units.end(), [&](const attention_unit& a, const attention_unit& b) {
    return end_position(a) * a.rows > end_position(b) * b.rows;
  });
}

void attention(thread_pool& pool, const attention_args& args) {
  share_out(pool, static_cast<std::int64_t>(args.units.size()),
            [&args](std::int64_t, std::int64_t i) { attend(args, args.units[static_cast<std::size_t>(i)]); });
}

} // namespace troupe::cpu
