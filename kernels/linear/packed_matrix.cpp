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

packed_matrix::packed_matrix(const weight_view& view, std::span<const float> bias, thread_pool* pool)
    : type_(view.type),
      rows_(view.rows),
      panel_rows_(is_quantised(view.type) ? quant_panel_rows : plain_panel_rows),
      panels_((view.rows + panel_rows_ - 1) / panel_rows_) {
  const auto columns = static_cast<std::size_t>(view.columns);
  if (is_quantised(type_)) {
    const block_shape shape = shape_of(type_);
    weights_stride_ = columns / 32 * static_cast<std::size_t>(packed_quant_bytes(shape.bits));
    scales_stride_ =
        columns / (shape.super_blocks ? 256 : 32) * static_cast<std::size_t>(packed_scale_bytes(shape.super_blocks, shape.has_minimum));
  } else {
    weights_stride_ = columns * plain_panel_rows * traits(type_).block_bytes;
  }
  const auto panels = static_cast<std::size_t>(panels_);
  scales_offset_ = panels * weights_stride_;
  size_ = scales_offset_ + panels * scales_stride_;
  data_ = allocate_aligned(size_);
  if (!bias.empty()) {
    bias_.assign(static_cast<std::size_t>(panels_ * panel_rows_), 0.0F);
    std::copy(bias.begin(), bias.end(), bias_.begin());
  }
  const auto pack = [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t panel = begin; panel < end; ++panel) pack_panel(view, panel);
  };
  if (pool != nullptr)
    pool->run(panels_, 1, pack);
  else
    pack(0, panels_);
}

void packed_matrix::pack_panel(const weight_view& view, std::int64_t index) {
  const auto offset = static_cast<std::size_t>(index);
  unsigned char* const weights = data_.get() + offset * weights_stride_;
  unsigned char* const scales = data_.get() + scales_offset_ + offset * scales_stride_;
  const std::int64_t first = index * panel_rows_;
  const std::int64_t present = std::min(panel_rows_, rows_ - first);
  if (present < panel_rows_) {
    std::memset(weights, 0, weights_stride_);
    std::memset(scales, 0, scales_stride_);
  }
  const block_shape shape = shape_of(type_);
  for (int row = 0; row < present; ++row) {
    const std::byte* const from = view.row(first + row);
    if (type_ == dtype::f32) {
      pack_plain<std::uint32_t>(from, view.columns, row, weights);
    } else if (!is_quantised(type_)) {
      pack_plain<std::uint16_t>(from, view.columns, row, weights);
    } else {
      for (std::int64_t block = 0; block < view.columns / 32; ++block) {
        const block32 unpacked = read_block(type_, from, block);
        pack_quants(shape.bits, unpacked.quants, weights + block * packed_quant_bytes(shape.bits) + 4 * row);
        pack_scales(shape, unpacked, block, row, scales);
      }
    }
  }
}

void packed_matrix::describe_panel(std::int64_t index, tile_job& job) const {
  const auto offset = static_cast<std::size_t>(index);
  job.weights = data_.get() + offset * weights_stride_;
  job.scales = data_.get() + scales_offset_ + offset * scales_stride_;
  job.bias = bias_.empty() ? nullptr : bias_.data() + index * panel_rows_;
  job.outputs = std::min(panel_rows_, rows_ - index * panel_rows_);
}

} // namespace troupe::cpu::detail
