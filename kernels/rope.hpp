// Rotary position embedding (arXiv 2104.09864) with linear, llama3 and YaRN scaling.
#pragma once

#include <cstdint>
#include <vector>

#include "device/cpu/thread_pool.hpp"

namespace troupe {

enum class rope_pairing : std::uint8_t {
  halves,      // dimension i turns with i + rotary_dim / 2
  interleaved, // dimension 2i turns with 2i + 1
};

// cos and sin of every angle, already scaled by the attention factor; rows are positions.
struct rope_table_view {
  const float* cos = nullptr; // [positions][pairs]
  const float* sin = nullptr;
  std::int64_t pairs = 0;
};

struct rope_args {
  float* x = nullptr;        // [rows][heads][head_dim], turned in place
  std::int64_t x_stride = 0; // elements from row to row
  std::int64_t rows = 0;
  std::int64_t heads = 0;
  std::int64_t head_dim = 0;               // the first 2 * pairs of each head turn, the rest stays
  const std::int32_t* positions = nullptr; // [rows]
  rope_table_view table;                   // covers every position
  rope_pairing pairing = rope_pairing::halves;
};

// The table's values for positions 0 .. size()-1, computed in double from the angle frequencies and grown on demand.
class rope_table {
 public:
  // `frequencies`: radians per position for each pair. `magnitude` scales cos and sin.
  rope_table(std::vector<double> frequencies, double magnitude);

  // Makes positions 0 .. count-1 available; pointers of earlier views end here.
  void reserve(std::int64_t count);
  std::int64_t size() const { return positions_; }
  rope_table_view view() const;

 private:
  std::vector<double> frequencies_;
  double magnitude_;
  std::int64_t positions_ = 0;
  std::vector<float> cos_, sin_;
};

namespace cpu {
void rope(thread_pool& pool, const rope_args& args);
}

} // namespace troupe
