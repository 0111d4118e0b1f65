// Hopper's instructions as functions: barriers in shared memory, tensor copies, and matrix products of a warpgroup (PTX ISA 8.x,
// wgmma and cp.async.bulk.tensor).
#pragma once

#include <cuda.h>

#include <cstdint>
#include <type_traits>

#include "kernels/half_types.cuh"

namespace troupe::gpu::hopper {

__device__ __forceinline__ std::uint32_t shared_address(const void* of_shared) {
  return static_cast<std::uint32_t>(__cvta_generic_to_shared(of_shared));
}

// --- barriers: a phase ends after `count` arrivals and all bytes that were announced ---
__device__ __forceinline__ void barrier_init(std::uint64_t& barrier, std::uint32_t count) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(&barrier)), "r"(count) : "memory");
}
// Makes the initialisation of barriers visible to the copy engine.
__device__ __forceinline__ void publish_barriers() { asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory"); }
__device__ __forceinline__ void arrive(std::uint64_t& barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(shared_address(&barrier)) : "memory");
}
__device__ __forceinline__ void arrive_expecting(std::uint64_t& barrier, std::uint32_t bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(&barrier)), "r"(bytes) : "memory");
}
// Waits for the end of the phase of this parity; the one before the first counts as ended, with parity 1.
__device__ __forceinline__ void wait(std::uint64_t& barrier, std::uint32_t parity) {
  asm volatile("{\n.reg .pred done;\nagain:\n mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n @!done bra again;\n}" ::"r"(
                   shared_address(&barrier)),
               "r"(parity)
               : "memory");
}
// Barrier `id` (1 .. 15) of `threads` threads of the block.
__device__ __forceinline__ void sync_threads(int id, int threads) { asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory"); }
// Arrives at such a barrier and goes on.
__device__ __forceinline__ void arrive_threads(int id, int threads) {
  asm volatile("bar.arrive %0, %1;" ::"r"(id), "r"(threads) : "memory");
}
// What this thread stored to shared memory is seen by the copy engine and the tensor cores after the next barrier.
__device__ __forceinline__ void publish_stores() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

// --- tensor copies ---
__device__ __forceinline__ void prefetch(const CUtensorMap& map) {
  asm volatile("prefetch.tensormap [%0];" ::"l"(reinterpret_cast<std::uint64_t>(&map)) : "memory");
}
// A box at coordinates (x, y, z) to shared memory; its bytes count down `barrier`. What lies outside the tensor arrives as zeros.
__device__ __forceinline__ void load_box(void* to, const CUtensorMap& map, std::uint64_t& barrier, std::int32_t x, std::int32_t y,
                                         std::int32_t z) {
  asm volatile("cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4, %5}], [%2];" ::"r"(
                   shared_address(to)),
               "l"(reinterpret_cast<std::uint64_t>(&map)), "r"(shared_address(&barrier)), "r"(x), "r"(y), "r"(z)
               : "memory");
}

// --- registers of a warpgroup ---
template <int Count>
__device__ __forceinline__ void take_registers() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(Count));
}
template <int Count>
__device__ __forceinline__ void give_registers() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(Count));
}

// --- matrix products ---
enum class swizzle : std::uint64_t { bytes_128 = 1, bytes_32 = 3 };

// A matrix operand in shared memory. Along the contiguous dimension elements lie in groups of the swizzle's width, 8 of the other dimension
// to a unit. `leading`: bytes between neighbouring groups of the contiguous dimension; `stride`: between neighbouring units of 8.
__device__ __forceinline__ std::uint64_t operand(const void* at, std::uint32_t leading, std::uint32_t stride, swizzle kind) {
  const auto field = [](std::uint32_t bytes) { return static_cast<std::uint64_t>((bytes & 0x3ffff) >> 4); };
  return field(shared_address(at)) | field(leading) << 16 | field(stride) << 32 | static_cast<std::uint64_t>(kind) << 62;
}
// The same operand `bytes` further on.
__device__ __forceinline__ std::uint64_t advanced(std::uint64_t operand, std::uint32_t bytes) { return operand + (bytes >> 4); }

__device__ __forceinline__ void products_begin() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ __forceinline__ void products_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
// Until at most `Pending` of the committed groups are under way.
template <int Pending>
__device__ __forceinline__ void products_wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(Pending) : "memory");
}
// Keeps the compiler from moving uses of registers that a product under way reads or writes.
template <int Count>
__device__ __forceinline__ void hold(float (&values)[Count]) {
#pragma unroll
  for (int i = 0; i < Count; ++i) asm volatile("" : "+f"(values[i])::"memory");
}

// The operand lists of wgmma: 32 and 64 accumulators.
#define TROUPE_D8(d, i) \
  "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3]), "+f"(d[i + 4]), "+f"(d[i + 5]), "+f"(d[i + 6]), "+f"(d[i + 7])
#define TROUPE_D32(d) TROUPE_D8(d, 0), TROUPE_D8(d, 8), TROUPE_D8(d, 16), TROUPE_D8(d, 24)
#define TROUPE_D64(d) TROUPE_D32(d), TROUPE_D8(d, 32), TROUPE_D8(d, 40), TROUPE_D8(d, 48), TROUPE_D8(d, 56)
#define TROUPE_R32                                                                                                                     \
  "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, " \
  "%28, %29, %30, %31"
#define TROUPE_R64                                                                                                                       \
  TROUPE_R32                                                                                                                             \
  ", %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, " \
  "%58, %59, %60, %61, %62, %63"
#define TROUPE_SHARED_PRODUCT(type)                                                                                                   \
  asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %66, 0;\nwgmma.mma_async.sync.aligned.m64n128k16.f32." type "." type " {" TROUPE_R64 \
               "}, %64, %65, p, 1, 1, 0, 1;\n}"                                                                                       \
               : TROUPE_D64(d)                                                                                                        \
               : "l"(a), "l"(b), "r"(add))
#define TROUPE_REGISTER_PRODUCT_128(type)                                                                                               \
  asm volatile("wgmma.mma_async.sync.aligned.m64n128k16.f32." type "." type " {" TROUPE_R64 "}, {%64, %65, %66, %67}, %68, 1, 1, 1, 1;" \
               : TROUPE_D64(d)                                                                                                          \
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b))
#define TROUPE_REGISTER_PRODUCT_64(type)                                                                                               \
  asm volatile("wgmma.mma_async.sync.aligned.m64n64k16.f32." type "." type " {" TROUPE_R32 "}, {%32, %33, %34, %35}, %36, 1, 1, 1, 1;" \
               : TROUPE_D32(d)                                                                                                         \
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b))

// d [64][128] (+)= a [64][16] b [16][128]. In shared memory: a with k contiguous, b with n contiguous. `add` 0: d was anything.
// Thread t of the warpgroup, warp w = t / 32, lane l: d[4j + 2h + c] is row 16w + l / 4 + 8h, column 8j + 2 (l % 4) + c.
template <class T>
__device__ __forceinline__ void multiply(float (&d)[64], std::uint64_t a, std::uint64_t b, std::uint32_t add) {
  if constexpr (std::is_same_v<T, bf16>)
    TROUPE_SHARED_PRODUCT("bf16");
  else
    TROUPE_SHARED_PRODUCT("f16");
}

// d [64][128 or 64] += a [64][16] b [16][..] with a in registers: pairs of columns 2 (l % 4) of rows l / 4 and l / 4 + 8, then the same of
// columns + 8. b as above.
template <class T>
__device__ __forceinline__ void multiply(float (&d)[64], const std::uint32_t* a, std::uint64_t b) {
  if constexpr (std::is_same_v<T, bf16>)
    TROUPE_REGISTER_PRODUCT_128("bf16");
  else
    TROUPE_REGISTER_PRODUCT_128("f16");
}
template <class T>
__device__ __forceinline__ void multiply(float (&d)[32], const std::uint32_t* a, std::uint64_t b) {
  if constexpr (std::is_same_v<T, bf16>)
    TROUPE_REGISTER_PRODUCT_64("bf16");
  else
    TROUPE_REGISTER_PRODUCT_64("f16");
}

#undef TROUPE_REGISTER_PRODUCT_64
#undef TROUPE_REGISTER_PRODUCT_128
#undef TROUPE_SHARED_PRODUCT
#undef TROUPE_R64
#undef TROUPE_R32
#undef TROUPE_D64
#undef TROUPE_D32
#undef TROUPE_D8

} // namespace troupe::gpu::hopper
