#include "kernels/linear/blocks.hpp"

#include <cstring>

#include "core/half.hpp"

namespace troupe::cpu::detail {

namespace {

std::uint16_t read_u16(const std::uint8_t* from) {
  std::uint16_t value;
  std::memcpy(&value, from, sizeof value);
  return value;
}

// 16 bytes hold elements 0..15 in their low and 16..31 in their high halves.
void read_nibbles(const std::uint8_t* from, std::uint8_t* quants) {
  for (int i = 0; i < 16; ++i) {
    quants[i] = from[i] & 0x0fU;
    quants[i + 16] = from[i] >> 4;
  }
}

// Bit i of a little-endian 32-bit word is the fifth bit of element i.
void add_fifth_bits(const std::uint8_t* from, std::uint8_t* quants) {
  std::uint32_t bits;
  std::memcpy(&bits, from, sizeof bits);
  for (int i = 0; i < 32; ++i) quants[i] = static_cast<std::uint8_t>(quants[i] | (bits >> i & 1U) << 4);
}

// Q4_0 {d, 16 B}, Q4_1 {d, m, 16 B}, Q5_0 {d, 4 B, 16 B}, Q5_1 {d, m, 4 B, 16 B}, Q8_0 {d, 32 B}.
block32 read_simple(dtype type, const std::uint8_t* from) {
  const block_shape shape = shape_of(type);
  block32 out{};
  out.factor[0] = out.factor[1] = 1;
  out.minimum_factor = 1;
  out.scale = read_u16(from);
  from += 2;
  if (shape.has_minimum) {
    out.minimum = read_u16(from);
    from += 2;
  }
  if (shape.bits == 8) {
    for (int i = 0; i < 32; ++i) out.quants[i] = from[i] ^ 0x80U;
    return out;
  }
  const std::uint8_t* const fifth = from;
  if (shape.bits == 5) from += 4;
  read_nibbles(from, out.quants);
  if (shape.bits == 5) add_fifth_bits(fifth, out.quants);
  return out;
}

// Q4_K {d, dmin, 12 B of factors, 128 B}, Q5_K {d, dmin, 12 B, 32 B of fifth bits, 128 B}. `part` is the 32-element block, 0..7.
// Blocks 2j and 2j + 1 share 32 bytes: low and high halves. Factors have 6 bits: those of blocks 0..3 (minimums: 4 bytes further) lie in
// the low bits of bytes 0..3, those of blocks 4..7 in the halves of bytes 8..11 and the top two bits of bytes 0..7.
block32 read_k45(dtype type, const std::uint8_t* from, int part) {
  block32 out{};
  out.scale = read_u16(from);
  out.minimum = read_u16(from + 2);
  const std::uint8_t* const factors = from + 4;
  int factor = 0;
  int minimum = 0;
  if (part < 4) {
    factor = factors[part] & 63;
    minimum = factors[part + 4] & 63;
  } else {
    factor = (factors[part + 4] & 15) | (factors[part - 4] >> 6) << 4;
    minimum = (factors[part + 4] >> 4) | (factors[part] >> 6) << 4;
  }
  out.factor[0] = out.factor[1] = static_cast<std::int8_t>(factor);
  out.minimum_factor = static_cast<std::uint8_t>(minimum);
  const bool fifth = type == dtype::q5_k;
  const std::uint8_t* const high = from + 16;
  const std::uint8_t* const low = from + (fifth ? 48 : 16) + part / 2 * 32;
  const int shift = part % 2 * 4;
  for (int i = 0; i < 32; ++i) out.quants[i] = static_cast<std::uint8_t>(low[i] >> shift & 15);
  if (fifth) {
    for (int i = 0; i < 32; ++i) out.quants[i] = static_cast<std::uint8_t>(out.quants[i] | (high[i] >> part & 1) << 4);
  }
  return out;
}

// Q6_K {128 B of low halves, 64 B of top pairs, 16 signed factors, d}. Each 128 elements use 64 bytes of halves and 32 of pairs:
// blocks 0 and 2 share bytes 0..31, blocks 1 and 3 bytes 32..63; block b's pairs are bits 2b and 2b + 1.
block32 read_k6(const std::uint8_t* from, int part) {
  block32 out{};
  const int half = part / 4;
  const int block = part % 4;
  const std::uint8_t* const low = from + half * 64 + block % 2 * 32;
  const std::uint8_t* const high = from + 128 + half * 32;
  const int low_shift = block / 2 * 4;
  for (int i = 0; i < 32; ++i) {
    out.quants[i] = static_cast<std::uint8_t>((low[i] >> low_shift & 15) | (high[i] >> 2 * block & 3) << 4);
  }
  std::memcpy(out.factor, from + 192 + 2 * part, 2);
  out.scale = read_u16(from + 208);
  return out;
}

} // namespace

block32 read_block(dtype type, const std::byte* row, std::int64_t index) {
  const auto* const bytes = reinterpret_cast<const std::uint8_t*>(row);
  const auto size = static_cast<std::int64_t>(traits(type).block_bytes);
  if (!shape_of(type).super_blocks) return read_simple(type, bytes + index * size);
  const std::uint8_t* const super = bytes + index / 8 * size;
  const int part = static_cast<int>(index % 8);
  return type == dtype::q6_k ? read_k6(super, part) : read_k45(type, super, part);
}

void read_floats(dtype type, const std::byte* row, std::int64_t first, std::int64_t count, float* out) {
  if (type == dtype::f32) {
    std::memcpy(out, row + first * 4, static_cast<std::size_t>(count) * 4);
    return;
  }
  const auto* const from = reinterpret_cast<const std::uint8_t*>(row + first * 2);
  for (std::int64_t i = 0; i < count; ++i) {
    const std::uint16_t bits = read_u16(from + 2 * i);
    out[i] = type == dtype::f16 ? half_to_float(bits) : bfloat16_to_float(bits);
  }
}

} // namespace troupe::cpu::detail
