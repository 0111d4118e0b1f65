// Loads of the little that every layer reads again: positions and block tables. Not for what moves on through more memory than the L2 cache
// has, as angles of positions do: what was kept stays when it is of no use.
#pragma once

#include <cstdint>

namespace troupe::gpu {

// 4 bytes, and the L2 cache is asked to keep them: a layer's weights are several times what it holds.
template <class T>
__device__ __forceinline__ T load_kept(const T* from) {
  static_assert(sizeof(T) == 4);
  std::uint32_t bits;
  asm volatile(
      "{\n\t"
      ".reg .b64 keeps;\n\t"
      "createpolicy.fractional.L2::evict_last.b64 keeps, 1.0;\n\t"
      "ld.global.L2::cache_hint.b32 %0, [%1], keeps;\n\t"
      "}"
      : "=r"(bits)
      : "l"(from));
  T value;
  __builtin_memcpy(&value, &bits, sizeof value);
  return value;
}

} // namespace troupe::gpu
