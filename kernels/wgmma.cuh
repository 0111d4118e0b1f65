// The warp-group matrix instruction of Hopper: sums (64 x N, f32, in registers) (+)= A (64 x 16) B (16 x N), 16-bit elements, B in shared
// memory, A there or in registers (PTX's "asynchronous warp-group level matrix instructions"); and what else a warp group does together.
//
// Sums: d[4 j + (0, 1)] is row lane / 4 of the warp's 16 rows, columns 8 j + 2 (lane % 4) and the next; + (2, 3): 8 rows behind.
#pragma once

#include "kernels/half_types.cuh"
#include "kernels/mbarrier.cuh"

namespace troupe::gpu {

enum class swizzle : std::uint64_t { bytes_128 = 1, bytes_32 = 3 };

// A matrix in shared memory. Along the contiguous dimension elements lie in groups of the swizzle's width, 8 of the other dimension to a
// unit. `leading`: bytes between neighbouring groups of the contiguous dimension; `stride`: between neighbouring units of 8.
__device__ __forceinline__ std::uint64_t matrix_at(std::uint32_t at, std::uint32_t leading, std::uint32_t stride, swizzle kind) {
  const auto field = [](std::uint32_t bytes) { return static_cast<std::uint64_t>((bytes & 0x3ffffU) >> 4); };
  return field(at) | field(leading) << 16 | field(stride) << 32 | static_cast<std::uint64_t>(kind) << 62;
}
// The same matrix `bytes` further on.
__device__ __forceinline__ std::uint64_t advanced(std::uint64_t matrix, std::uint32_t bytes) { return matrix + (bytes >> 4); }
// Rows (of A) or columns (of B) of 128 bytes, 64 elements; `at` on 1024 bytes, or some multiples of 32 bytes behind: the next 16 elements.
__device__ __forceinline__ std::uint64_t swizzled_matrix(std::uint32_t at) {
  constexpr std::uint32_t unused = 16;
  return matrix_at(at, unused, 1024, swizzle::bytes_128);
}

__device__ __forceinline__ void wgmma_begin() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ __forceinline__ void wgmma_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
template <int Pending>
__device__ __forceinline__ void wgmma_wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(Pending) : "memory");
}
// The compiler must not move uses of sums over the instructions that write them behind its back.
template <int Count>
__device__ __forceinline__ void keep_in_place(float (&sums)[Count]) {
#pragma unroll
  for (float& sum : sums) asm volatile("" : "+f"(sum)::"memory");
}

// Barrier `id` (1 .. 15) of `threads` threads of the block.
__device__ __forceinline__ void sync_threads(int id, int threads) { asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory"); }
// Arrives at such a barrier and goes on.
__device__ __forceinline__ void arrive_threads(int id, int threads) {
  asm volatile("bar.arrive %0, %1;" ::"r"(id), "r"(threads) : "memory");
}
// From now on each thread of the warp group has `Count` registers: more than before, or fewer.
template <int Count>
__device__ __forceinline__ void take_registers() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(Count));
}
template <int Count>
__device__ __forceinline__ void give_registers() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(Count));
}

// Names and operands of the first 1, 2, .. eights of sums.
#define TROUPE_NAMES1 "%0, %1, %2, %3, %4, %5, %6, %7"
#define TROUPE_NAMES2 TROUPE_NAMES1 ", %8, %9, %10, %11, %12, %13, %14, %15"
#define TROUPE_NAMES4 TROUPE_NAMES2 ", %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
#define TROUPE_NAMES8                                                                                      \
  TROUPE_NAMES4                                                                                            \
  ", %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, %48, %49, %50, %51, " \
  "%52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
#define TROUPE_NAMES14                                                               \
  TROUPE_NAMES8                                                                      \
  ", %64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79" \
  ", %80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95" \
  ", %96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, %111"
#define TROUPE_EIGHT(i) \
  "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3]), "+f"(d[i + 4]), "+f"(d[i + 5]), "+f"(d[i + 6]), "+f"(d[i + 7])
#define TROUPE_SUMS1 TROUPE_EIGHT(0)
#define TROUPE_SUMS2 TROUPE_SUMS1, TROUPE_EIGHT(8)
#define TROUPE_SUMS4 TROUPE_SUMS2, TROUPE_EIGHT(16), TROUPE_EIGHT(24)
#define TROUPE_SUMS8 TROUPE_SUMS4, TROUPE_EIGHT(32), TROUPE_EIGHT(40), TROUPE_EIGHT(48), TROUPE_EIGHT(56)
#define TROUPE_SUMS14 \
  TROUPE_SUMS8, TROUPE_EIGHT(64), TROUPE_EIGHT(72), TROUPE_EIGHT(80), TROUPE_EIGHT(88), TROUPE_EIGHT(96), TROUPE_EIGHT(104)
#define TROUPE_WGMMA(n, eights, type, a_name, b_name)                                                                                 \
  asm volatile("wgmma.mma_async.sync.aligned.m64n" #n "k16.f32." type "." type " {" TROUPE_NAMES##eights "}, %" #a_name ", %" #b_name \
                                                                                                         ", 1, 1, 1, 0, 0;"           \
               : TROUPE_SUMS##eights                                                                                                  \
               : "l"(a), "l"(b))
#define TROUPE_WGMMA_CASE(n, eights, a_name, b_name) \
  if constexpr (N == n && std::is_same_v<T, bf16>)   \
    TROUPE_WGMMA(n, eights, "bf16", a_name, b_name); \
  else if constexpr (N == n)                         \
  TROUPE_WGMMA(n, eights, "f16", a_name, b_name)

// A and B with the 16 contiguous.
template <class T, int N>
__device__ __forceinline__ void wgmma(float (&d)[N / 2], std::uint64_t a, std::uint64_t b) {
  static_assert(N == 16 || N == 32 || N == 64 || N == 128 || N == 224);
  TROUPE_WGMMA_CASE(16, 1, 8, 9);
  TROUPE_WGMMA_CASE(32, 2, 16, 17);
  TROUPE_WGMMA_CASE(64, 4, 32, 33);
  TROUPE_WGMMA_CASE(128, 8, 64, 65);
  TROUPE_WGMMA_CASE(224, 14, 112, 113);
}

#define TROUPE_WGMMA_COLUMNS(type)                                                                                                       \
  asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %66, 0;\nwgmma.mma_async.sync.aligned.m64n128k16.f32." type "." type " {" TROUPE_NAMES8 \
               "}, %64, %65, p, 1, 1, 0, 1;\n}"                                                                                          \
               : TROUPE_SUMS8                                                                                                            \
               : "l"(a), "l"(b), "r"(add))
#define TROUPE_WGMMA_REGISTERS(n, eights, type, a0, a1, a2, a3, b_name)                                  \
  asm volatile("wgmma.mma_async.sync.aligned.m64n" #n "k16.f32." type "." type " {" TROUPE_NAMES##eights \
               "}, {%" #a0 ", %" #a1 ", %" #a2 ", %" #a3 "}, %" #b_name ", 1, 1, 1, 1;"                  \
               : TROUPE_SUMS##eights                                                                     \
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b))

// B with its columns contiguous. `add` 0: the sums were anything.
template <class T>
__device__ __forceinline__ void wgmma_columns(float (&d)[64], std::uint64_t a, std::uint64_t b, std::uint32_t add) {
  if constexpr (std::is_same_v<T, bf16>)
    TROUPE_WGMMA_COLUMNS("bf16");
  else
    TROUPE_WGMMA_COLUMNS("f16");
}

// The same with A in registers: pairs of columns 2 (lane % 4) of rows lane / 4 and 8 behind, then the same of columns + 8.
template <class T>
__device__ __forceinline__ void wgmma_columns(float (&d)[64], const std::uint32_t* a, std::uint64_t b) {
  if constexpr (std::is_same_v<T, bf16>)
    TROUPE_WGMMA_REGISTERS(128, 8, "bf16", 64, 65, 66, 67, 68);
  else
    TROUPE_WGMMA_REGISTERS(128, 8, "f16", 64, 65, 66, 67, 68);
}
template <class T>
__device__ __forceinline__ void wgmma_columns(float (&d)[32], const std::uint32_t* a, std::uint64_t b) {
  if constexpr (std::is_same_v<T, bf16>)
    TROUPE_WGMMA_REGISTERS(64, 4, "bf16", 32, 33, 34, 35, 36);
  else
    TROUPE_WGMMA_REGISTERS(64, 4, "f16", 32, 33, 34, 35, 36);
}

#undef TROUPE_WGMMA_REGISTERS
#undef TROUPE_WGMMA_COLUMNS
#undef TROUPE_WGMMA_CASE
#undef TROUPE_WGMMA
#undef TROUPE_SUMS14
#undef TROUPE_SUMS8
#undef TROUPE_SUMS4
#undef TROUPE_SUMS2
#undef TROUPE_SUMS1
#undef TROUPE_EIGHT
#undef TROUPE_NAMES14
#undef TROUPE_NAMES8
#undef TROUPE_NAMES4
#undef TROUPE_NAMES2
#undef TROUPE_NAMES1

} // namespace troupe::gpu
