// The two 16-bit element types of device kernels, and the one place that turns a dtype into one of them.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>
#include <initializer_list>
#include <stdexcept>
#include <string>

#include "core/dtype.hpp"

namespace troupe::gpu {

using bf16 = __nv_bfloat16;
using f16 = __half;

__device__ __forceinline__ float to_float(bf16 x) { return __bfloat162float(x); }
__device__ __forceinline__ float to_float(f16 x) { return __half2float(x); }
template <class T>
__device__ __forceinline__ T from_float(float x) {
  if constexpr (std::is_same_v<T, bf16>)
    return __float2bfloat16(x);
  else
    return __float2half(x);
}

__device__ __forceinline__ float2 to_floats(__nv_bfloat162 x) { return __bfloat1622float2(x); }
__device__ __forceinline__ float2 to_floats(__half2 x) { return __half22float2(x); }

// Two elements in one word, `low` at the lower address.
template <class T>
__device__ __forceinline__ std::uint32_t pair_of(float low, float high) {
  std::uint32_t out;
  if constexpr (std::is_same_v<T, bf16>)
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(out) : "f"(high), "f"(low));
  else
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(out) : "f"(high), "f"(low));
  return out;
}
template <class T>
__device__ __forceinline__ float2 load_two(const T* from) {
  const std::uint32_t word = *reinterpret_cast<const std::uint32_t*>(from);
  if constexpr (std::is_same_v<T, bf16>)
    return make_float2(__uint_as_float(word << 16), __uint_as_float(word & 0xffff0000U));
  else
    return __half22float2(*reinterpret_cast<const __half2*>(&word));
}
__device__ __forceinline__ void store_two(float* to, float low, float high) { *reinterpret_cast<float2*>(to) = make_float2(low, high); }
template <class T>
__device__ __forceinline__ void store_two(T* to, float low, float high) {
  *reinterpret_cast<std::uint32_t*>(to) = pair_of<T>(low, high);
}

// Eight elements in one 16-byte access.
template <class T>
struct alignas(16) eight {
  T at[8];
};
template <class T>
__device__ __forceinline__ eight<T> load_eight(const T* from) {
  return *reinterpret_cast<const eight<T>*>(from);
}
template <class T>
__device__ __forceinline__ void store_eight(T* to, const eight<T>& values) {
  *reinterpret_cast<eight<T>*>(to) = values;
}

// Calls body.template operator()<T>() with the device type of `type`; throws std::invalid_argument for any but bf16 and f16.
template <class Body>
void with_half_type(dtype type, const char* op, Body&& body) {
  switch (type) {
    case dtype::bf16:
      return body.template operator()<bf16>();
    case dtype::f16:
      return body.template operator()<f16>();
    default:
      throw std::invalid_argument(std::string(op) + ": elements are bf16 or f16, not " + std::string(traits(type).name));
  }
}

// For the arguments of ops: what a caller got wrong is a std::invalid_argument that names the op.
inline void require(bool holds, const char* op, const char* what) {
  if (!holds) throw std::invalid_argument(std::string(op) + ": " + what);
}

// True when all of them can be read 16 bytes at once.
inline bool are_wide(std::initializer_list<const void*> pointers) {
  for (const void* p : pointers) {
    if (reinterpret_cast<std::uintptr_t>(p) % 16 != 0) return false;
  }
  return true;
}

__device__ __forceinline__ float warp_sum(float x) {
  for (int distance = 16; distance > 0; distance /= 2) x += __shfl_xor_sync(0xffffffffU, x, distance);
  return x;
}

} // namespace troupe::gpu
