#include <algorithm>
#include <cstring>
#include <new>

#ifdef __linux__
#include <sys/mman.h>
#endif

#include "kernels/linear/blocks.hpp"
#include "kernels/linear/packed.hpp"

namespace troupe::cpu::detail {

namespace {

std::uint32_t read_u32(const std::uint8_t* from) {
  std::uint32_t value;
  std::memcpy(&value, from, sizeof value);
  return value;
}

void write_u32(unsigned char* to, std::uint32_t value) { std::memcpy(to, &value, sizeof value); }

// Four columns at a time: one row's 32 quants into that row's bytes of a group's vectors (`to` points at the row's bytes of vector 0).
void pack_quants(int bits, const std::uint8_t* quants, unsigned char* to) {
  std::uint32_t word[8];
  for (int k = 0; k < 8; ++k) word[k] = read_u32(quants + 4 * k);
  if (bits == 8) {
    for (int k = 0; k < 8; ++k) write_u32(to + 64 * k, word[k] ^ 0x80808080U);
    return;
  }
  constexpr std::uint32_t low = 0x0f0f0f0fU;
  for (int k = 0; k < 4; ++k) write_u32(to + 64 * k, (word[k] & low) | (word[k + 4] & low) << 4);
  if (bits == 5) {
    std::uint32_t fifth = 0;
    for (int k = 0; k < 8; ++k) fifth |= (word[k] >> 4 & 0x01010101U) << k;
    write_u32(to + 256, fifth);
  } else if (bits == 6) {
    for (int half = 0; half < 2; ++half) {
      std::uint32_t pairs = 0;
      for (int k = 0; k < 4; ++k) pairs |= (word[4 * half + k] >> 4 & 0x03030303U) << 2 * k;
      write_u32(to + 256 + 64 * half, pairs);
    }
  }
}

// One row's scales for 32 columns. `panel` is where the panel's scales begin.
void pack_scales(const block_shape& shape, const block32& block, std::int64_t index, int row, unsigned char* panel) {
  const int stride = packed_scale_bytes(shape.super_blocks, shape.has_minimum);
  unsigned char* const to = panel + (shape.super_blocks ? index / 8 : index) * stride;
  std::memcpy(to + 2 * row, &block.scale, 2);
  if (shape.has_minimum) std::memcpy(to + 32 + 2 * row, &block.minimum, 2);
  if (!shape.super_blocks) return;
  unsigned char* const factors = to + (shape.has_minimum ? 64 : 32) + index % 8 * 32;
  std::memcpy(factors + row, &block.factor[0], 1);
  std::memcpy(factors + 16 + row, shape.has_minimum ? static_cast<const void*>(&block.minimum_factor) : &block.factor[1], 1);
}

// One row into its places in a panel of plain elements of E's size.
template <class E>
void pack_plain(const std::byte* from, std::int64_t columns, int row, unsigned char* to) {
  for (std::int64_t c = 0; c < columns; ++c) {
    std::memcpy(to + (c * plain_panel_rows + row) * static_cast<std::int64_t>(sizeof(E)), from + c * static_cast<std::int64_t>(sizeof(E)),
                sizeof(E));
  }
}

} // namespace

aligned_bytes allocate_aligned(std::size_t size) {
  constexpr std::size_t huge_page = std::size_t{2} << 20;
  const std::size_t alignment = size >= huge_page ? huge_page : 64;
  aligned_bytes bytes(static_cast<unsigned char*>(::operator new[](size, std::align_val_t{alignment})), aligned_delete{alignment});
#ifdef __linux__
  if (size >= huge_page) madvise(bytes.get(), size / huge_page * huge_page, MADV_HUGEPAGE); // a hint: failure costs speed only
#endif
  return bytes;
}

packed_layout::packed_layout(const weight_view& view)
    : panel_rows(is_quantised(view.type) ? quant_panel_rows : plain_panel_rows), panels((view.rows + panel_rows - 1) / panel_rows) {
  const auto columns = static_cast<std::size_t>(view.columns);
  if (is_quantised(view.type)) {
    const block_shape shape = shape_of(view.type);
    weights_stride = columns / 32 * static_cast<std::size_t>(packed_quant_bytes(shape.bits));
    scales_stride =
        columns / (shape.super_blocks ? 256 : 32) * static_cast<std::size_t>(packed_scale_bytes(shape.super_blocks, shape.has_minimum));
  } else {
    weights_stride = columns * plain_panel_rows * traits(view.type).block_bytes;
  }
  scales_offset = static_cast<std::size_t>(panels) * weights_stride;
  size = (scales_offset + static_cast<std::size_t>(panels) * scales_stride + 63) / 64 * 64;
}

packed_matrix::packed_matrix(const weight_view& view, std::span<const float> bias, thread_pool* pool, weight_place place)
    : type_(view.type), rows_(view.rows), at_(view) {
  if (!bias.empty()) {
    bias_.assign(static_cast<std::size_t>(at_.panels * at_.panel_rows), 0.0F);
    std::copy(bias.begin(), bias.end(), bias_.begin());
  }
  if (place.memory == nullptr) own_ = allocate_aligned(at_.size);
  unsigned char* const to = own_ ? own_.get() : reinterpret_cast<unsigned char*>(place.memory);
  data_ = to;
  if (place.filled) return;
  const auto pack = [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t panel = begin; panel < end; ++panel) pack_panel(view, panel, to);
  };
  if (pool != nullptr)
    pool->run(at_.panels, 1, pack);
  else
    pack(0, at_.panels);
}

void packed_matrix::pack_panel(const weight_view& view, std::int64_t index, unsigned char* to) const {
  const auto offset = static_cast<std::size_t>(index);
  unsigned char* const weights = to + offset * at_.weights_stride;
  unsigned char* const scales = to + at_.scales_offset + offset * at_.scales_stride;
  const std::int64_t first = index * at_.panel_rows;
  const std::int64_t present = std::min(at_.panel_rows, rows_ - first);
  if (present < at_.panel_rows || view.stored_columns(first + present - 1) < view.columns) { // bytes of zero are weights of zero
    std::memset(weights, 0, at_.weights_stride);
    std::memset(scales, 0, at_.scales_stride);
  }
  const block_shape shape = shape_of(type_);
  for (int row = 0; row < present; ++row) {
    const std::int64_t columns = view.stored_columns(first + row);
    if (columns == 0) continue;
    const std::byte* const from = view.row(first + row);
    if (type_ == dtype::f32) {
      pack_plain<std::uint32_t>(from, columns, row, weights);
    } else if (!is_quantised(type_)) {
      pack_plain<std::uint16_t>(from, columns, row, weights);
    } else {
      for (std::int64_t block = 0; block < columns / 32; ++block) {
        const block32 unpacked = read_block(type_, from, block);
        pack_quants(shape.bits, unpacked.quants, weights + block * packed_quant_bytes(shape.bits) + 4 * row);
        pack_scales(shape, unpacked, block, row, scales);
      }
    }
  }
}

void packed_matrix::describe_panel(std::int64_t index, tile_job& job) const {
  const auto offset = static_cast<std::size_t>(index);
  job.weights = data_ + offset * at_.weights_stride;
  job.scales = data_ + at_.scales_offset + offset * at_.scales_stride;
  job.bias = bias_.empty() ? nullptr : bias_.data() + index * at_.panel_rows;
  job.outputs = std::min(at_.panel_rows, rows_ - index * at_.panel_rows);
}

} // namespace troupe::cpu::detail
