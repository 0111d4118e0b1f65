// What the tests of GPU ops share: arrays on the device, 16-bit elements as floats, and the skip where there is no GPU.
#pragma once

#include <cstring>
#include <memory>
#include <vector>

#include "core/dtype.hpp"
#include "core/half.hpp"
#include "device/cpu/thread_pool.hpp"
#include "device/cuda/memory.hpp"
#include "device/cuda/pinned_ring.hpp"
#include "device/cuda/stream.hpp"
#include "tests/kernels/op_testing.hpp"

namespace troupe::test {

using halves = std::vector<std::uint16_t>;

inline float from_bits(dtype type, std::uint16_t bits) { return type == dtype::f16 ? half_to_float(bits) : bfloat16_to_float(bits); }
inline std::uint16_t to_bits(dtype type, float x) { return type == dtype::f16 ? float_to_half(x) : float_to_bfloat16(x); }
// The distance of neighbours of 1, which bounds the error of one rounding relative to the value.
inline double unit(dtype type) { return type == dtype::f16 ? 0x1p-10 : 0x1p-7; }

class gpu_op_test : public op_test {
 protected:
  using buffer = cuda::caching_allocator::buffer;

  void SetUp() override {
    if (cuda::device_count() == 0) GTEST_SKIP() << "no CUDA device on this machine";
    cuda::use_device(0);
    stream_ = std::make_unique<cuda::stream>();
    source_ = cuda::own_memory();
    allocator_ = std::make_unique<cuda::caching_allocator>(*source_, ledger_);
  }

  cuda::stream_handle stream() const { return stream_->handle(); }

  template <class T>
  buffer upload(const std::vector<T>& values) {
    buffer out = allocator_->allocate(values.size() * sizeof(T), "test");
    cuda::pinned_ring staging(1, values.size() * sizeof(T));
    std::memcpy(staging.next(), values.data(), values.size() * sizeof(T));
    cuda::copy_in(*stream_, out.data(), staging.next(), values.size() * sizeof(T));
    stream_->synchronize();
    return out;
  }
  template <class T>
  std::vector<T> download(const buffer& from) {
    std::vector<T> values(from.size() / sizeof(T));
    cuda::pinned_ring staging(1, from.size());
    cuda::copy_out(*stream_, staging.next(), from.data(), from.size());
    stream_->synchronize();
    std::memcpy(values.data(), staging.next(), from.size());
    return values;
  }
  // NaN in both types.
  buffer poisoned_halves(std::size_t count) { return upload(halves(count, 0xffff)); }

  static halves narrow(dtype type, const std::vector<float>& values) {
    halves out;
    for (const float v : values) out.push_back(to_bits(type, v));
    return out;
  }
  static std::vector<float> widen(dtype type, const halves& values) {
    std::vector<float> out;
    for (const std::uint16_t v : values) out.push_back(from_bits(type, v));
    return out;
  }
  // Random values that are exact in `type`.
  std::vector<float> exact(dtype type, std::size_t count, float deviation = 1.0F) {
    return widen(type, narrow(type, normal(count, deviation)));
  }

  cpu::thread_pool pool_{2};
  std::unique_ptr<cuda::stream> stream_;
  std::unique_ptr<cuda::memory_source> source_;
  cuda::memory_ledger ledger_;
  std::unique_ptr<cuda::caching_allocator> allocator_;
};

} // namespace troupe::test
