// Blocks of a cluster: they run side by side, wait for each other, and reach each other's shared memory.
#pragma once

#include "kernels/mbarrier.cuh"

namespace troupe::gpu {

__device__ __forceinline__ std::int32_t block_in_cluster() {
  std::uint32_t rank;
  asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  return static_cast<std::int32_t>(rank);
}
__device__ __forceinline__ void cluster_arrive() { asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory"); }
// Orders nothing, which saves up to half a microsecond: for barriers that fence_barrier_init() published, and for ends without data.
__device__ __forceinline__ void cluster_arrive_relaxed() { asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory"); }
__device__ __forceinline__ void cluster_wait() { asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory"); }
// The same place in shared memory of another block of the cluster.
__device__ __forceinline__ std::uint32_t address_in(std::int32_t block, std::uint32_t address) {
  std::uint32_t there;
  asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(address), "r"(block));
  return there;
}
// Stores 16 bytes in another block's shared memory; they count down a barrier of that block.
__device__ __forceinline__ void send(std::uint32_t to, const float* values, std::uint32_t barrier) {
  asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.v4.f32 [%0], {%1, %2, %3, %4}, [%5];" ::"r"(to), "f"(values[0]),
               "f"(values[1]), "f"(values[2]), "f"(values[3]), "r"(barrier)
               : "memory");
}
__device__ __forceinline__ void send(std::uint32_t to, float2 values, std::uint32_t barrier) {
  asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.v2.f32 [%0], {%1, %2}, [%3];" ::"r"(to), "f"(values.x), "f"(values.y),
               "r"(barrier)
               : "memory");
}
// The same without a barrier: arrive_in tells of it, but waits until it is done. Quicker for much at the end of a kernel, slower between
// tiles.
__device__ __forceinline__ void store_in(std::uint32_t to, const float* values) {
  asm volatile("st.shared::cluster.v4.f32 [%0], {%1, %2, %3, %4};" ::"r"(to), "f"(values[0]), "f"(values[1]), "f"(values[2]), "f"(values[3])
               : "memory");
}
// What this thread stored, and what it knows of, is seen by those who wait for the barrier in the other block.
__device__ __forceinline__ void arrive_in(std::uint32_t barrier) {
  asm volatile("mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%0];" ::"r"(barrier) : "memory");
}
// As mbarrier_wait, seeing what other blocks did before they arrived.
__device__ __forceinline__ void wait_for_cluster(std::uint64_t* barrier, std::uint32_t parity) {
  std::uint32_t done = 0;
  while (done == 0) {
    asm volatile("{\n.reg .pred p;\n mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 p, [%1], %2;\n selp.u32 %0, 1, 0, p;\n}"
                 : "=r"(done)
                 : "r"(shared_address(barrier)), "r"(parity)
                 : "memory");
  }
}
__device__ __forceinline__ float load_from_cluster(std::uint32_t address) {
  float value;
  asm volatile("ld.shared::cluster.f32 %0, [%1];" : "=f"(value) : "r"(address) : "memory");
  return value;
}

} // namespace troupe::gpu
