// What the packing, the driver and the kernels of every instruction set agree on. This header is compiled into files with differing
// instruction-set flags, so it holds plain structs and compile-time constants only: an inline function that is emitted in two of them
// could bring AVX-512 code to a machine without it.
//
// Packed weights. Quantised rows go into panels of 16. The panel's quants come first: per 32 columns a group of 64-byte vectors, in which
// byte 4 * row + j belongs to column 4 * k + j of vector k = 0..7. 8 bits: eight vectors (signed). Fewer: four vectors, k = 0..3 in
// the low and k = 4..7 in the high halves of the bytes; then 5 bits: one vector whose bit k is the fifth bit of vector k;
// 6 bits: two vectors, for k = 0..3 and 4..7, with the top pair of vector k in bits 2 (k % 4). The panel's scales follow: per 32 columns 16
// binary16 scales, then 16 minimums where the type has them. K types: per 256 columns those, then per 32 columns 16 byte
// factors and 16 minimum factors (Q6_K: two times 16 signed factors, for 16 columns each). Plain rows go into panels of 32: element
// column * 32 + row. Rows beyond the matrix are zeros.
//
// Quantised activations come in tiles of R rows. Per 32 columns: R x 32 signed bytes q in [-127, 127]; then R floats d; R floats s = d *
// sum(q); R int32 -sum(q); 2 x R int32, -sum(q) of the first and second 16. x ~ d * q. A row with a NaN or infinity in it has d = NaN
// there.
#pragma once

#include <cstdint>

namespace troupe::cpu::detail {

inline constexpr int quant_panel_rows = 16;
inline constexpr int plain_panel_rows = 32;
inline constexpr int activation_bytes_per_row = 52; // per 32 columns
inline constexpr int tile_sizes = 4; // 1, 2, 4, 8
inline constexpr int dtype_count = 15;

constexpr int packed_quant_bytes(int bits) { return bits == 8 ? 512 : 256 + (bits - 4) * 64; } // per 32 columns

// Per 32 columns, or per 256 for K types.
constexpr int packed_scale_bytes(bool super_blocks, bool has_minimum) { return (has_minimum ? 64 : 32) + (super_blocks ? 8 * 32 : 0); }

// One panel of weights times one tile of activation rows.
struct tile_job {
  const unsigned char* weights;     // the panel: quants, or plain elements
  const unsigned char* scales;      // the panel's, quantised types only
  const unsigned char* activations; // the tile, quantised types only
  const float* x;                   // plain types: the tile's first row
  std::int64_t x_stride;
  std::int64_t columns;
  const float* bias; // panel_rows values, or null
  float* y;          // [row * y_stride + output]
  std::int64_t y_stride;
  std::int64_t outputs; // of the panel's rows, how many exist
  bool accumulate;
};

struct quantise_job {
  const float* x; // rows x columns
  std::int64_t x_stride;
  std::int64_t rows; // of the tile
  std::int64_t columns;
  bool per_256; // one scale for 256 columns, unrounded (GGML's Q8_K); else one for 32, rounded to binary16 (its Q8_0 and Q8_1)
  unsigned char* out;
};

struct kernel_set {
  const char* name;
  int tile_rows; // the largest tile: 4 or 8
  void (*quantise)(const quantise_job&);
  void (*tiles[dtype_count][tile_sizes])(const tile_job&); // by weight type and log2 of the tile's rows
};

const kernel_set* portable_kernels();
// Null when not compiled for this architecture. Whether the processor can run them is the caller's question.
const kernel_set* avx2_kernels();
const kernel_set* avx512vnni_kernels();

} // namespace troupe::cpu::detail
