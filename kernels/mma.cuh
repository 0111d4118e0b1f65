// The matrix instructions of one warp, bf16 or f16 with f32 sums.
#pragma once

#include "kernels/half_types.cuh"

namespace troupe::gpu {

// sums (16 x 8) += a (16 x 16) b (16 x 8). With g = lane / 4, t = lane % 4: a0..a3 hold rows g, g + 8, g, g + 8 at columns 2t (the first
// two) and 2t + 8; b0, b1 hold column g at rows 2t and 2t + 8; sums hold row g at columns 2t, 2t + 1, then row g + 8.
template <class T>
__device__ __forceinline__ void mma_m16n8k16(float (&sums)[4], std::uint32_t a0, std::uint32_t a1, std::uint32_t a2, std::uint32_t a3,
                                             std::uint32_t b0, std::uint32_t b1) {
  if constexpr (std::is_same_v<T, bf16>) {
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
                 : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
                 : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
  } else {
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
                 : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
                 : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
  }
}

} // namespace troupe::gpu
