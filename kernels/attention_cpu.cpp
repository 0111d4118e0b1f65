// The softmax is computed online over tiles of keys (arXiv 2205.14135): running maximum, running sum, rescaled output. A tile
// is first widened to f32 in the worker's scratch; then a few rows at a time run over it with all accumulators in registers.
#include "kernels/attention.hpp"

#include <algorithm>
#include <cmath>
#include <limits>

#include "device/cpu/aligned_buffer.hpp"
#include "kernels/parallel.hpp"
#include "kernels/simd.hpp"
#include "kernels/widen.hpp"

namespace troupe::cpu {
namespace {

constexpr std::int64_t tile = 64;      // positions
constexpr std::int64_t unit_rows = 96; // rows x heads of one unit, about
constexpr std::int64_t lanes = simd::lanes;

// Rounded up to whole vectors.
constexpr std::int64_t padded(std::int64_t count) { return (count + lanes - 1) / lanes * lanes; }

// One worker's memory for one unit of `rows` (row, head) pairs. Rows are the outermost index everywhere.
struct scratch {
  float* keys;   // [head_dim][tile]
  float* values; // [tile][width]
  float* query;  // [rows][head_dim], scaled
  float* scores; // [rows][tile]
  float* output; // [rows][width]
  float* top;    // [rows] running maximum
  float* sum;    // [rows][lanes] running sums of exponentials, lane by lane
  std::int64_t head_dim;
  std::int64_t width; // head_dim padded to whole vectors
  std::int64_t rows;
};

scratch take_scratch(std::int64_t rows, std::int64_t head_dim) {
  static thread_local aligned_buffer<float> memory;
  const std::int64_t width = padded(head_dim);
  const std::int64_t state = (rows + lanes - 1) / lanes * lanes;
  const std::int64_t sizes[] = {head_dim * tile, tile * width, padded(rows * head_dim), rows * tile, rows * width, state, rows * lanes};
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

// Brings positions begin .. end-1 (at most a tile, from a tile's start) of one KV head into the scratch. What lies behind them there, and
// in padding columns, may be anything: scores of positions that a row does not see are replaced, padding columns are not stored.
void gather(const kv_layer_view& kv, const block_id* blocks, std::int32_t head, std::int64_t begin, std::int64_t end, const scratch& s) {
  const widen_rows_fn widen = widen_rows_for(kv.layout.type);
  const std::int64_t block_size = kv.layout.block_size;
  const std::size_t bytes = kv.layout.element_bytes();
  for (std::int64_t position = begin; position < end;) {
    const std::int64_t inside = position % block_size;
    const std::int64_t run = std::min(block_size - inside, end - position);
    const std::byte* keys = kv.head(blocks[position / block_size], head);
    const std::byte* values = keys + (kv.layout.head_elements() + static_cast<std::size_t>(inside * s.head_dim)) * bytes;
    widen(keys + static_cast<std::size_t>(inside) * bytes, block_size, s.head_dim, run, s.keys + (position - begin), tile);
    widen(values, s.head_dim, run, s.head_dim, s.values + (position - begin) * s.width, s.width);
    position += run;
  }
}

// scores[r][p] = query[r] . keys[.][p] for Rows rows and the positions of two vectors from `at` on: one chain of additions per score, over
// dimensions, so that it does not matter how many a vector has. Six rows fill the 16 registers that most machines have.
// Here the compiler may fuse a multiplication and its addition. It must do so for every count of rows or for none, or a row would depend on
// its neighbours: all counts are the same expression over whole vectors, and the tests compare a row alone and among others bit for bit.
template <class V, int Rows>
TROUPE_INLINE void dot_rows(const scratch& s, std::int64_t row, std::int64_t at) {
  const float* query = s.query + row * s.head_dim;
  const float* keys = s.keys + at;
  V low[Rows] = {}, high[Rows] = {};
  for (std::int64_t d = 0; d < s.head_dim; ++d) {
    const V k0 = simd::load<V>(keys + d * tile), k1 = simd::load<V>(keys + d * tile + simd::width<V>);
    for (int r = 0; r < Rows; ++r) {
      low[r] += k0 * query[r * s.head_dim + d];
      high[r] += k1 * query[r * s.head_dim + d];
    }
  }
  for (int r = 0; r < Rows; ++r) {
    simd::store(s.scores + (row + r) * tile + at, low[r]);
    simd::store(s.scores + (row + r) * tile + at + simd::width<V>, high[r]);
  }
}

// Rows first_row .. first_row + count - 1, at least as far as `positions`.
template <class V>
TROUPE_INLINE void dot_group_of(const scratch& s, std::int64_t first_row, std::int64_t count, std::int64_t positions) {
  for (std::int64_t at = 0; at < positions; at += 2 * simd::width<V>) {
    if (count == 6) {
      dot_rows<V, 6>(s, first_row, at);
    } else if (count == 3) {
      dot_rows<V, 3>(s, first_row, at);
    } else {
      dot_rows<V, 1>(s, first_row, at);
    }
  }
}
TROUPE_PER_CPU(void, dot_group, (const scratch& s, std::int64_t first_row, std::int64_t count, std::int64_t positions), dot_group_of,
               (s, first_row, count, positions))

static_assert(tile == 4 * lanes);
TROUPE_INLINE float larger(float a, float b) { return a > b ? a : b; } // b where a is NaN

struct range {
  std::int64_t low = 0, high = 0; // of a tile's positions, seen by one row
};

// Scores of the positions that each of `count` (at most 6) rows sees become weights; maximum, sum and output move on. Pass by pass
// over all rows, so that one row's waits are filled with the next row's work.
template <class V>
TROUPE_INLINE void soften_group_of(const scratch& s, std::int64_t first_row, std::int64_t count, const range* seen) {
  float tops[6][lanes], now[6], shrink[6];
  for (std::int64_t r = 0; r < count; ++r) {
    float* scores = s.scores + (first_row + r) * tile;
    for (std::int64_t i = 0; i < seen[r].low; ++i) scores[i] = -std::numeric_limits<float>::infinity();
    for (std::int64_t i = seen[r].high; i < tile; ++i) scores[i] = -std::numeric_limits<float>::infinity();
    for (int l = 0; l < lanes; ++l) {
      const float a = larger(scores[l], scores[l + lanes]), b = larger(scores[l + 2 * lanes], scores[l + 3 * lanes]);
      tops[r][l] = larger(a, b);
    }
  }
  for (std::int64_t r = 0; r < count; ++r) {
    const float before = s.top[first_row + r];
    now[r] = larger(simd::largest(tops[r], lanes), before);
    shrink[r] = simd::exp(before - now[r]); // exactly 1 where the maximum stays
    s.top[first_row + r] = now[r];
  }
  for (std::int64_t r = 0; r < count; ++r) {
    float* scores = s.scores + (first_row + r) * tile;
    const float top = now[r];
    for (std::int64_t i = 0; i < tile; ++i) scores[i] = simd::exp(scores[i] - top);
  }
  for (std::int64_t r = 0; r < count; ++r) {
    const float* weights = s.scores + (first_row + r) * tile;
    float* sum = s.sum + (first_row + r) * lanes;
    for (std::int64_t l = 0; l < lanes; l += simd::width<V>) {
      V total{};
      for (std::int64_t i = l; i < tile; i += lanes) total += simd::load<V>(weights + i);
      simd::store(sum + l, simd::load<V>(sum + l) * shrink[r] + total);
    }
    float* output = s.output + (first_row + r) * s.width;
    for (std::int64_t i = 0; i < s.width; i += simd::width<V>) simd::store(output + i, simd::load<V>(output + i) * shrink[r]);
  }
}
TROUPE_PER_CPU(void, soften_group, (const scratch& s, std::int64_t first_row, std::int64_t count, const range* seen), soften_group_of,
               (s, first_row, count, seen))

// output[r] += sum over p in low .. high-1, in order, of weights[r][p] values[p] for Rows rows and Vectors vectors from column `at` on.
template <class V, int Rows, int Vectors>
TROUPE_INLINE void mix_rows(const scratch& s, std::int64_t row, std::int64_t low, std::int64_t high, std::int64_t at) {
  constexpr std::int64_t width = simd::width<V>;
  V sums[Rows][Vectors];
  for (int r = 0; r < Rows; ++r) {
    for (int v = 0; v < Vectors; ++v) sums[r][v] = simd::load<V>(s.output + (row + r) * s.width + at + v * width);
  }
  for (std::int64_t p = low; p < high; ++p) {
    for (int v = 0; v < Vectors; ++v) {
      const V value = simd::load<V>(s.values + p * s.width + at + v * width);
      for (int r = 0; r < Rows; ++r) sums[r][v] += value * s.scores[(row + r) * tile + p];
    }
  }
  for (int r = 0; r < Rows; ++r) {
    for (int v = 0; v < Vectors; ++v) simd::store(s.output + (row + r) * s.width + at + v * width, sums[r][v]);
  }
}

template <class V, int Rows>
TROUPE_INLINE void mix_columns(const scratch& s, std::int64_t row, std::int64_t low, std::int64_t high) {
  constexpr std::int64_t width = simd::width<V>;
  std::int64_t at = 0;
  for (; at + 2 * width <= s.width; at += 2 * width) mix_rows<V, Rows, 2>(s, row, low, high, at);
  for (; at < s.width; at += width) mix_rows<V, Rows, 1>(s, row, low, high, at);
}

// `count` rows: 6, 3 or 1.
template <class V>
TROUPE_INLINE void mix_of(const scratch& s, std::int64_t row, std::int64_t count, std::int64_t low, std::int64_t high) {
  if (count == 6) {
    mix_columns<V, 6>(s, row, low, high);
  } else if (count == 3) {
    mix_columns<V, 3>(s, row, low, high);
  } else {
    mix_columns<V, 1>(s, row, low, high);
  }
}
TROUPE_PER_CPU(void, mix, (const scratch& s, std::int64_t row, std::int64_t count, std::int64_t low, std::int64_t high), mix_of,
               (s, row, count, low, high))

// `count` rows together where all of them see a position, one by one before and behind.
void mix_group(const scratch& s, std::int64_t row, std::int64_t count, const range* seen) {
  range common = seen[0];
  for (std::int64_t r = 1; r < count; ++r) common = {std::max(common.low, seen[r].low), std::min(common.high, seen[r].high)};
  if (common.low >= common.high || count == 1) {
    for (std::int64_t r = 0; r < count; ++r) mix(s, row + r, 1, seen[r].low, seen[r].high);
    return;
  }
  for (std::int64_t r = 0; r < count; ++r) {
    if (seen[r].low < common.low) mix(s, row + r, 1, seen[r].low, common.low);
  }
  mix(s, row, count, common.low, common.high);
  for (std::int64_t r = 0; r < count; ++r) {
    if (seen[r].high > common.high) mix(s, row + r, 1, common.high, seen[r].high);
  }
}

// One tile of keys for rows first_row .. last_row-1, which all see some of it.
void take_tile(const scratch& s, std::int64_t first_row, std::int64_t last_row, const range* seen) {
  for (std::int64_t row = first_row; row < last_row;) {
    const std::int64_t left = last_row - row;
    const std::int64_t count = left >= 6 ? 6 : left >= 3 ? 3 : 1;
    dot_group(s, row, count, seen[row + count - 1].high); // later rows see further
    soften_group(s, row, count, seen + row);
    mix_group(s, row, count, seen + row);
    row += count;
  }
}

void load_queries(const attention_args& args, const attention_span& span, const attention_unit& unit, std::int64_t group,
                  const scratch& s) {
  const std::int64_t width = group * s.head_dim; // the heads of one row are neighbours
  const float* source = args.query + (span.first_row + unit.first_row) * args.query_stride + unit.kv_head * width;
  for (std::int64_t row = 0; row < unit.rows; ++row, source += args.query_stride) {
    for (std::int64_t i = 0; i < width; ++i) s.query[row * width + i] = source[i] * args.scale;
  }
  std::fill_n(s.top, s.rows, -std::numeric_limits<float>::infinity());
  std::fill_n(s.sum, s.rows * lanes, 0.0F);
  std::fill_n(s.output, s.rows * s.width, 0.0F);
}

void store_outputs(const attention_args& args, const attention_span& span, const attention_unit& unit, std::int64_t group,
                   const scratch& s) {
  float* target = args.output + (span.first_row + unit.first_row) * args.output_stride + unit.kv_head * group * s.head_dim;
  for (std::int64_t row = 0; row < unit.rows; ++row, target += args.output_stride) {
    for (std::int64_t head = 0; head < group; ++head) {
      const std::int64_t from = row * group + head;
      const float share = 1.0F / simd::sum(s.sum + from * lanes);
      for (std::int64_t d = 0; d < s.head_dim; ++d) target[head * s.head_dim + d] = s.output[from * s.width + d] * share;
    }
  }
}

void attend(const attention_args& args, const attention_unit& unit) {
  const kv_layout& layout = args.kv.layout;
  const attention_span& span = args.spans[static_cast<std::size_t>(unit.span)];
  const std::int64_t group = args.heads / layout.kv_heads;
  const scratch s = take_scratch(unit.rows * group, layout.head_dim);
  load_queries(args, span, unit, group, s);
  const std::int64_t first = span.first_position + unit.first_row; // position of the unit's first row
  const std::int64_t end = first + unit.rows;
  const std::int64_t window = args.window > 0 ? args.window : end;
  static thread_local std::vector<range> seen;
  seen.resize(static_cast<std::size_t>(s.rows));
  for (std::int64_t start = std::max<std::int64_t>(0, first - window + 1) / tile * tile; start < end; start += tile) {
    // Positions whose rows see something of the tile: start .. start + tile + window - 2.
    const std::int64_t from = std::max(first, start), to = std::min(end, start + tile + window - 1);
    for (std::int64_t position = from; position < to; ++position) {
      const range r = {std::max<std::int64_t>(0, position - window + 1 - start), std::min(tile, position + 1 - start)};
      std::fill_n(seen.begin() + (position - first) * group, group, r);
    }
    gather(args.kv, span.blocks, unit.kv_head, start, std::min(start + tile, end), s);
    take_tile(s, (from - first) * group, (to - first) * group, seen.data());
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
  std::stable_sort(units.begin(), units.end(),
                   [&](const attention_unit& a, const attention_unit& b) { return end_position(a) * a.rows > end_position(b) * b.rows; });
}

void attention(thread_pool& pool, const attention_args& args) {
  share_out(pool, static_cast<std::int64_t>(args.units.size()),
            [&args](std::int64_t, std::int64_t i) { attend(args, args.units[static_cast<std::size_t>(i)]); });
}

} // namespace troupe::cpu
