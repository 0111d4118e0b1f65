#include "kernels/ceilings_gpu.hpp"

#include <cublasLt.h>

#include <algorithm>
#include <chrono>
#include <vector>

#include "core/error.hpp"
#include "device/cuda/graph.hpp"
#include "device/cuda/pinned_ring.hpp"
#include "kernels/half_types.cuh"
#include "kernels/launch.cuh"

namespace troupe::gpu {
namespace {

constexpr std::size_t big = std::size_t{8} << 30; // as a large model has; from 4 GiB the GPU reads 1.5% faster

__global__ void read_kernel(const uint4* data, std::size_t count, std::uint32_t* sink) {
  const std::size_t step = std::size_t{gridDim.x} * blockDim.x;
  std::size_t i = std::size_t{blockIdx.x} * blockDim.x + threadIdx.x;
  std::uint32_t mixed = 0;
  for (; i + 3 * step < count; i += 4 * step) {
    const uint4 a = data[i], b = data[i + step], c = data[i + 2 * step], d = data[i + 3 * step];
    mixed ^= a.x ^ a.y ^ a.z ^ a.w ^ b.x ^ b.y ^ b.z ^ b.w ^ c.x ^ c.y ^ c.z ^ c.w ^ d.x ^ d.y ^ d.z ^ d.w;
  }
  for (; i < count; i += step) mixed ^= data[i].x ^ data[i].y ^ data[i].z ^ data[i].w;
  if (mixed == 0x9e3779b9U && sink != nullptr) *sink = mixed; // keeps the loads; no one passes a sink
}

__global__ void fill_kernel(uint4* data, std::size_t count, unsigned seed) {
  const std::size_t step = std::size_t{gridDim.x} * blockDim.x;
  for (std::size_t i = std::size_t{blockIdx.x} * blockDim.x + threadIdx.x; i < count; i += step) {
    std::uint32_t words[4];
    for (std::uint32_t k = 0; k < 4; ++k) {
      std::uint32_t h = static_cast<std::uint32_t>(i) * 4 + k + seed * 0x85ebca6bU; // a finaliser of MurmurHash3's kind
      h = (h ^ h >> 16) * 0x85ebca6bU;
      h = (h ^ h >> 13) * 0xc2b2ae35U;
      words[k] = ((h ^ h >> 16) & 0x80ff80ffU) | 0x3b803b80U; // sign and mantissa are random, the exponent's last bit too
    }
    data[i] = make_uint4(words[0], words[1], words[2], words[3]);
  }
}

__global__ void empty_kernel() {
  let_next_start();
  wait_for_previous();
}

void start_empty(const cuda::stream& on, bool overlaps) { launch(on.handle(), {132, 256, 0, overlaps}, empty_kernel); }

double seconds_per_node(const cuda::stream& on, bool overlaps) {
  constexpr int nodes = 512;
  const cuda::graph chain = cuda::graph::capture(on, [&] {
    for (int i = 0; i < nodes; ++i) start_empty(on, overlaps);
  });
  return median_seconds(on, 9, 4, [&] { chain.launch(on); }) / nodes;
}

void check_blas(cublasStatus_t status, const char* call) {
  if (status != CUBLAS_STATUS_SUCCESS) throw device_error(std::string(call) + ": " + cublasLtGetStatusString(status));
}

// Owns what cuBLASLt needs for y = x W^T with square bf16 matrices.
class square_product {
 public:
  explicit square_product(std::int64_t size) {
    check_blas(cublasLtCreate(&handle_), "cublasLtCreate");
    check_blas(cublasLtMatmulDescCreate(&product_, CUBLAS_COMPUTE_32F, CUDA_R_32F), "cublasLtMatmulDescCreate");
    const cublasOperation_t transposed = CUBLAS_OP_T;
    check_blas(cublasLtMatmulDescSetAttribute(product_, CUBLASLT_MATMUL_DESC_TRANSA, &transposed, sizeof transposed),
               "cublasLtMatmulDescSetAttribute");
    const auto n = static_cast<std::uint64_t>(size);
    check_blas(cublasLtMatrixLayoutCreate(&layout_, CUDA_R_16BF, n, n, size), "cublasLtMatrixLayoutCreate");
    check_blas(cublasLtMatmulPreferenceCreate(&preference_), "cublasLtMatmulPreferenceCreate");
    check_blas(cublasLtMatmulPreferenceSetAttribute(preference_, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &workspace_bytes,
                                                    sizeof workspace_bytes),
               "cublasLtMatmulPreferenceSetAttribute");
    check_blas(cublasLtMatmulAlgoGetHeuristic(handle_, product_, layout_, layout_, layout_, layout_, preference_, 8, found_, &count_),
               "cublasLtMatmulAlgoGetHeuristic");
  }
  ~square_product() {
    cublasLtMatmulPreferenceDestroy(preference_);
    cublasLtMatrixLayoutDestroy(layout_);
    cublasLtMatmulDescDestroy(product_);
    cublasLtDestroy(handle_);
  }
  square_product(const square_product&) = delete;
  square_product& operator=(const square_product&) = delete;

  static constexpr std::size_t workspace_bytes = std::size_t{64} << 20;
  int algorithms() const { return count_; }
  void run(const cuda::stream& on, int algorithm, const std::byte* a, const std::byte* b, std::byte* y, std::byte* workspace) const {
    const float one = 1, zero = 0;
    check_blas(cublasLtMatmul(handle_, product_, &one, a, layout_, b, layout_, &zero, y, layout_, y, layout_, &found_[algorithm].algo,
                              workspace, workspace_bytes, on.handle()),
               "cublasLtMatmul");
  }

 private:
  cublasLtHandle_t handle_ = nullptr;
  cublasLtMatmulDesc_t product_ = nullptr;
  cublasLtMatrixLayout_t layout_ = nullptr;
  cublasLtMatmulPreference_t preference_ = nullptr;
  cublasLtMatmulHeuristicResult_t found_[8] = {};
  int count_ = 0;
};

// The fastest of what cuBLASLt proposes, on random data: zeros run faster than real weights do.
double matmul_rate(const cuda::stream& on, std::byte* data) {
  constexpr std::int64_t size = 8192;
  constexpr std::size_t matrix = 2 * size * size;
  const square_product product(size);
  double best = 0;
  for (int i = 0; i < product.algorithms(); ++i) {
    const double seconds = median_seconds(on, 5, 4, [&] { product.run(on, i, data, data + matrix, data + 2 * matrix, data + 3 * matrix); });
    best = std::max(best, 2.0 * size * size * size / seconds);
  }
  return best;
}

void measure_host_link(const cuda::stream& on, std::byte* data, ceilings& out) {
  constexpr std::size_t bytes = std::size_t{256} << 20;
  cuda::pinned_ring ring(1, bytes);
  std::byte* host = ring.next();
  out.pinned_up = bytes / median_seconds(on, 5, 2, [&] { cuda::copy_in(on, data, host, bytes); });
  out.pinned_down = bytes / median_seconds(on, 5, 2, [&] { cuda::copy_out(on, host, data, bytes); });
  std::vector<double> waits;
  for (int i = 0; i < 200; ++i) {
    const auto start = std::chrono::steady_clock::now();
    cuda::copy_out(on, host, data, 1024);
    on.synchronize();
    waits.push_back(std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
  }
  std::nth_element(waits.begin(), waits.begin() + 100, waits.end());
  out.small_download = waits[100];
}

} // namespace

double median_seconds(const cuda::stream& on, int repeats, int inner, const std::function<void()>& work) {
  cuda::event begin(cuda::event::timing::on), end(cuda::event::timing::on);
  for (int i = 0; i < 2; ++i) work();
  std::vector<double> taken;
  for (int repeat = 0; repeat < repeats; ++repeat) {
    begin.record(on);
    for (int i = 0; i < inner; ++i) work();
    end.record(on);
    end.wait();
    taken.push_back(static_cast<double>(cuda::elapsed_ms(begin, end)) * 1e-3 / inner);
  }
  std::nth_element(taken.begin(), taken.begin() + repeats / 2, taken.end());
  return taken[static_cast<std::size_t>(repeats / 2)];
}

void fill_random(const cuda::stream& on, std::byte* data, std::size_t bytes, unsigned seed) {
  launch(on.handle(), {4096, 256}, fill_kernel, reinterpret_cast<uint4*>(data), bytes / sizeof(uint4), seed);
}

double measure_read_bandwidth(const cuda::stream& on, const std::byte* data, std::size_t bytes) {
  const auto read = [&](unsigned blocks) {
    launch_shape how(blocks, 512);
    how.spares_l1 = true; // with the least of L1 cache it reads 3% less
    launch(on.handle(), how, read_kernel, reinterpret_cast<const uint4*>(data), bytes / sizeof(uint4), nullptr);
  };
  // A GPU that was idle takes a while to reach its clocks, and a ceiling measured before that is none.
  const auto start = std::chrono::steady_clock::now();
  while (std::chrono::steady_clock::now() - start < std::chrono::milliseconds(500)) {
    for (int i = 0; i < 8; ++i) read(132 * 8U);
    on.synchronize();
  }
  double best = 0;
  for (const unsigned blocks : {132 * 4U, 132 * 8U, 132 * 16U}) {
    const double seconds = median_seconds(on, 15, 2, [&] { read(blocks); });
    best = std::max(best, static_cast<double>(bytes) / seconds);
  }
  return best;
}

ceilings measure_ceilings() {
  ceilings out;
  int device = 0;
  cudaDeviceProp properties{};
  cuda::check(cudaGetDevice(&device), "cudaGetDevice");
  cuda::check(cudaGetDeviceProperties(&properties, device), "cudaGetDeviceProperties");
  out.device = properties.name;
  const cuda::stream on;
  const auto source = cuda::own_memory();
  cuda::memory_ledger ledger;
  cuda::caching_allocator allocator(*source, ledger);
  const auto block = allocator.allocate(big, "ceilings");
  std::byte *const from = block.data(), *const to = from + big / 2;
  fill_random(on, from, big, 1);
  out.read_bandwidth = measure_read_bandwidth(on, from, big);
  out.copy_bandwidth = big / median_seconds(on, 5, 2, [&] {
                         cuda::check(cudaMemcpyAsync(to, from, big / 2, cudaMemcpyDeviceToDevice, on.handle()), "cudaMemcpyAsync");
                       });
  out.launch_eager = median_seconds(on, 9, 200, [&] { start_empty(on, false); });
  out.launch_graph = seconds_per_node(on, false);
  out.launch_overlapped = seconds_per_node(on, true);
  measure_host_link(on, to, out);
  out.matmul_rate = matmul_rate(on, from);
  return out;
}

} // namespace troupe::gpu
