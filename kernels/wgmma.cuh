// The warp-group matrix instruction of Hopper: sums (64 x N, f32, in registers) += A (64 x 16) B (16 x N), both in shared memory, 16-bit
// elements, rows of A and columns of B in rows of 128 bytes (64 elements) that the tensor copies' 128-byte swizzle has laid out.
#pragma once

#include "kernels/half_types.cuh"
#include "kernels/mbarrier.cuh"

namespace troupe::gpu {

// Where 8-row groups of 1024 bytes follow each other; `at` on 1024 bytes, or some multiples of 32 bytes behind: the next 16 elements. The
// format is the "matrix descriptor" of PTX's asynchronous warp-group instructions.
__device__ __forceinline__ std::uint64_t swizzled_matrix(std::uint32_t at) {
  constexpr std::uint64_t swizzle_128 = std::uint64_t{1} << 62, group_stride = std::uint64_t{1024 >> 4} << 32,
                          unused = std::uint64_t{1} << 16;
  return swizzle_128 | group_stride | unused | ((at & 0x3ffffU) >> 4);
}

__device__ __forceinline__ void wgmma_begin() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ __forceinline__ void wgmma_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
template <int Pending>
__device__ __forceinline__ void wgmma_wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(Pending) : "memory");
}
// The compiler must not move uses of a sum over the instructions that write it behind its back.
__device__ __forceinline__ void keep_in_place(float& sum) { asm volatile("" : "+f"(sum)::"memory"); }

#define TROUPE_SUMS8(i) \
  "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3]), "+f"(d[i + 4]), "+f"(d[i + 5]), "+f"(d[i + 6]), "+f"(d[i + 7])
#define TROUPE_SUMS32(i) TROUPE_SUMS8(i), TROUPE_SUMS8(i + 8), TROUPE_SUMS8(i + 16), TROUPE_SUMS8(i + 24)

// d[4 j + (0, 1)]: row lane / 4 of the warp's 16 rows, columns 8 j + 2 (lane % 4) and the next; + (2, 3): 8 rows behind.
template <class T, int N>
__device__ __forceinline__ void wgmma(float (&d)[N / 2], std::uint64_t a, std::uint64_t b) {
  constexpr bool is_bf16 = std::is_same_v<T, bf16>;
  if constexpr (N == 16 && is_bf16)
    asm volatile(
        "wgmma.mma_async.sync.aligned.m64n16k16.f32.bf16.bf16 {"
        "%0,%1,%2,%3,%4,%5,%6,%7"
        "}, %8, %9, 1, 1, 1, 0, 0;"
        : TROUPE_SUMS8(0)
        : "l"(a), "l"(b));
  else if constexpr (N == 16 && !is_bf16)
    asm volatile(
        "wgmma.mma_async.sync.aligned.m64n16k16.f32.f16.f16 {"
        "%0,%1,%2,%3,%4,%5,%6,%7"
        "}, %8, %9, 1, 1, 1, 0, 0;"
        : TROUPE_SUMS8(0)
        : "l"(a), "l"(b));
  else if constexpr (N == 32 && is_bf16)
    asm volatile(
        "wgmma.mma_async.sync.aligned.m64n32k16.f32.bf16.bf16 {"
        "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15"
        "}, %16, %17, 1, 1, 1, 0, 0;"
        : TROUPE_SUMS8(0), TROUPE_SUMS8(8)
        : "l"(a), "l"(b));
  else if constexpr (N == 32 && !is_bf16)
    asm volatile(
        "wgmma.mma_async.sync.aligned.m64n32k16.f32.f16.f16 {"
        "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15"
        "}, %16, %17, 1, 1, 1, 0, 0;"
        : TROUPE_SUMS8(0), TROUPE_SUMS8(8)
        : "l"(a), "l"(b));
  else if constexpr (N == 64 && is_bf16)
    asm volatile(
        "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {"
        "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,"
        "%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31"
        "}, %32, %33, 1, 1, 1, 0, 0;"
        : TROUPE_SUMS32(0)
        : "l"(a), "l"(b));
  else if constexpr (N == 64 && !is_bf16)
    asm volatile(
        "wgmma.mma_async.sync.aligned.m64n64k16.f32.f16.f16 {"
        "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,"
        "%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31"
        "}, %32, %33, 1, 1, 1, 0, 0;"
        : TROUPE_SUMS32(0)
        : "l"(a), "l"(b));
  else if constexpr (N == 128 && is_bf16)
    asm volatile(
        "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 {"
        "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,"
        "%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31,"
        "%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47,"
        "%48,%49,%50,%51,%52,%53,%54,%55,%56,%57,%58,%59,%60,%61,%62,%63"
        "}, %64, %65, 1, 1, 1, 0, 0;"
        : TROUPE_SUMS32(0), TROUPE_SUMS32(32)
        : "l"(a), "l"(b));
  else if constexpr (N == 128 && !is_bf16)
    asm volatile(
        "wgmma.mma_async.sync.aligned.m64n128k16.f32.f16.f16 {"
        "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,"
        "%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31,"
        "%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47,"
        "%48,%49,%50,%51,%52,%53,%54,%55,%56,%57,%58,%59,%60,%61,%62,%63"
        "}, %64, %65, 1, 1, 1, 0, 0;"
        : TROUPE_SUMS32(0), TROUPE_SUMS32(32)
        : "l"(a), "l"(b));
  else
    static_assert(N == 16 || N == 32 || N == 64 || N == 128);
}

#undef TROUPE_SUMS32
#undef TROUPE_SUMS8

} // namespace troupe::gpu
