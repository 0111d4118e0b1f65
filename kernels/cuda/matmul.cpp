#include "kernels/matmul_gpu.hpp"

#include <cublasLt.h>
#include <cuda_runtime_api.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <stdexcept>
#include <vector>

#include "core/error.hpp"
#include "device/cuda/check.hpp"
#include "kernels/ceilings_gpu.hpp"
#include "kernels/cuda/algorithm_cache.hpp"

namespace troupe::gpu {
namespace {

constexpr std::size_t workspace_bytes = std::size_t{32} << 20; // NVIDIA's advice for Hopper
constexpr int proposals = 16;                                  // of cuBLASLt, that are timed

void require(bool holds, const char* what) {
  if (!holds) throw std::invalid_argument(std::string("matmul: ") + what);
}

void check_blas(cublasStatus_t status, const char* call) {
  if (status != CUBLAS_STATUS_SUCCESS) throw device_error(std::string(call) + ": " + cublasLtGetStatusString(status));
}

cudaDataType_t data_type(dtype type) { return type == dtype::bf16 ? CUDA_R_16BF : type == dtype::f16 ? CUDA_R_16F : CUDA_R_32F; }

void check_args(const matmul_args& a) {
  require(a.type == dtype::bf16 || a.type == dtype::f16, "elements are bf16 or f16");
  require(a.y_type == a.type || a.y_type == dtype::f32, "the result has the elements' type or f32");
  require(a.y_type == a.type || (a.bias == nullptr && a.residual == nullptr), "an f32 result takes neither bias nor residual");
  require(a.rows >= 1 && a.out_rows >= 1 && a.columns >= 1, "rows, out_rows and columns are at least 1");
  require((a.out_rows | a.columns | a.x_stride | a.y_stride) % 8 == 0, "out_rows, columns and strides are multiples of 8");
  require(a.x_stride >= a.columns && a.y_stride >= a.out_rows, "strides hold a row");
}

// What cuBLASLt needs to know of a product, on the stack. For it, matrices are by columns: y^T = W x^T.
struct description {
  cublasLtMatmulDescOpaque_t product;
  cublasLtMatrixLayoutOpaque_t weight, x, y;

  explicit description(const matmul_args& a) {
    check_blas(cublasLtMatmulDescInit(&product, CUBLAS_COMPUTE_32F, CUDA_R_32F), "cublasLtMatmulDescInit");
    set(CUBLASLT_MATMUL_DESC_TRANSA, CUBLAS_OP_T);
    if (a.bias != nullptr) {
      set(CUBLASLT_MATMUL_DESC_EPILOGUE, CUBLASLT_EPILOGUE_BIAS);
      set(CUBLASLT_MATMUL_DESC_BIAS_POINTER, a.bias);
    }
    const auto matrix = [](cublasLtMatrixLayoutOpaque_t& layout, dtype type, std::int64_t rows, std::int64_t columns, std::int64_t stride) {
      check_blas(
          cublasLtMatrixLayoutInit(&layout, data_type(type), static_cast<std::uint64_t>(rows), static_cast<std::uint64_t>(columns), stride),
          "cublasLtMatrixLayoutInit");
    };
    matrix(weight, a.type, a.columns, a.out_rows, a.columns);
    matrix(x, a.type, a.columns, a.rows, a.x_stride);
    matrix(y, a.y_type, a.out_rows, a.rows, a.y_stride);
  }

 private:
  template <class V>
  void set(cublasLtMatmulDescAttributes_t attribute, const V& value) {
    check_blas(cublasLtMatmulDescSetAttribute(&product, attribute, &value, sizeof value), "cublasLtMatmulDescSetAttribute");
  }
};

product_key key_of(const matmul_args& a) {
  return {static_cast<std::int32_t>(a.type),
          static_cast<std::int32_t>(a.y_type),
          a.out_rows,
          a.columns,
          a.bias != nullptr,
          a.residual != nullptr,
          a.rows};
}

// The algorithm's words, which cuBLASLt lets a program keep for the same version of the library.
algorithm_words words_of(const cublasLtMatmulAlgo_t& algorithm) {
  algorithm_words words;
  static_assert(sizeof algorithm.data == sizeof words);
  std::copy(std::begin(algorithm.data), std::end(algorithm.data), words.begin());
  return words;
}
cublasLtMatmulAlgo_t algorithm_of(const algorithm_words& words) {
  cublasLtMatmulAlgo_t algorithm{};
  std::copy(words.begin(), words.end(), algorithm.data);
  return algorithm;
}

// Names what a choice of algorithms holds for.
std::string this_device() {
  int device = 0, runtime = 0;
  cudaDeviceProp properties{};
  cuda::check(cudaGetDevice(&device), "cudaGetDevice");
  cuda::check(cudaGetDeviceProperties(&properties, device), "cudaGetDeviceProperties");
  cuda::check(cudaRuntimeGetVersion(&runtime), "cudaRuntimeGetVersion");
  return std::string(properties.name) + ", CUDA " + std::to_string(runtime) + ", cuBLASLt " + std::to_string(cublasLtGetVersion());
}

} // namespace

struct matmul::impl {
  impl(cuda::caching_allocator& memory, std::filesystem::path file, log_line line)
      : log(std::move(line)), cache(std::move(file), this_device(), log), workspace(memory.allocate(workspace_bytes, "matmul workspace")) {
    check_blas(cublasLtCreate(&handle), "cublasLtCreate");
    check_blas(cublasLtMatmulPreferenceInit(&preference), "cublasLtMatmulPreferenceInit");
    const std::uint32_t exact_reductions = CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE; // parts of a sum are added up in f32
    check_blas(cublasLtMatmulPreferenceSetAttribute(&preference, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, &exact_reductions,
                                                    sizeof exact_reductions),
               "cublasLtMatmulPreferenceSetAttribute");
    check_blas(cublasLtMatmulPreferenceSetAttribute(&preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &workspace_bytes,
                                                    sizeof workspace_bytes),
               "cublasLtMatmulPreferenceSetAttribute");
  }
  ~impl() { cublasLtDestroy(handle); }
  impl(const impl&) = delete;
  impl& operator=(const impl&) = delete;

  cublasStatus_t start(cuda::stream_handle on, const matmul_args& a, description& of, const cublasLtMatmulAlgo_t& algorithm) {
    const float one = 1, beta = a.residual != nullptr ? 1 : 0;
    return cublasLtMatmul(handle, &of.product, &one, a.weight, &of.weight, a.x, &of.x, &beta, a.residual != nullptr ? a.residual : a.y,
                          &of.y, a.y, &of.y, &algorithm, workspace.data(), workspace_bytes, on);
  }

  // What cuBLASLt proposes, the best by its own estimate first; at least one.
  std::vector<cublasLtMatmulAlgo_t> proposed(description& of, int most) {
    std::array<cublasLtMatmulHeuristicResult_t, proposals> found{};
    int count = 0;
    check_blas(
        cublasLtMatmulAlgoGetHeuristic(handle, &of.product, &of.weight, &of.x, &of.y, &of.y, &preference, most, found.data(), &count),
        "cublasLtMatmulAlgoGetHeuristic");
    std::vector<cublasLtMatmulAlgo_t> out;
    for (int i = 0; i < count; ++i) {
      if (found[static_cast<std::size_t>(i)].state == CUBLAS_STATUS_SUCCESS) out.push_back(found[static_cast<std::size_t>(i)].algo);
    }
    if (out.empty()) throw device_error("cublasLtMatmulAlgoGetHeuristic: cuBLASLt has no algorithm for this product");
    return out;
  }

  bool supports(const matmul_args& a, const cublasLtMatmulAlgo_t& algorithm) {
    description of(a);
    cublasLtMatmulHeuristicResult_t result{};
    return cublasLtMatmulAlgoCheck(handle, &of.product, &of.weight, &of.x, &of.y, &of.y, &algorithm, &result) == CUBLAS_STATUS_SUCCESS &&
           result.workspaceSize <= workspace_bytes;
  }

  // The fastest proposal over the weights in turn.
  cublasLtMatmulAlgo_t measured(const cuda::stream& on, matmul_args a, std::span<const void* const> weights) {
    description of(a);
    cublasLtMatmulAlgo_t best{};
    double least = INFINITY;
    std::size_t turn = 0;
    for (const cublasLtMatmulAlgo_t& algorithm : proposed(of, proposals)) {
      cublasStatus_t status = CUBLAS_STATUS_SUCCESS;
      const double seconds = median_seconds(on, 3, 1, [&] {
        a.weight = weights[turn++ % weights.size()];
        if (status == CUBLAS_STATUS_SUCCESS) status = start(on.handle(), a, of, algorithm);
      });
      if (status == CUBLAS_STATUS_SUCCESS && seconds < least) least = seconds, best = algorithm;
    }
    if (!std::isfinite(least)) throw device_error("matmul: none of cuBLASLt's proposals runs");
    return best;
  }

  log_line log;
  algorithm_cache cache;
  cuda::caching_allocator::buffer workspace;
  cublasLtHandle_t handle = nullptr;
  cublasLtMatmulPreferenceOpaque_t preference{};
};

matmul::matmul(cuda::caching_allocator& memory, std::filesystem::path cache_file, log_line log)
    : impl_(std::make_unique<impl>(memory, std::move(cache_file), std::move(log))) {}
matmul::~matmul() = default;

void matmul::tune(const cuda::stream& on, const matmul_args& product, std::span<const void* const> weights,
                  std::span<const std::int32_t> row_counts) {
  require(!weights.empty(), "weights to measure with");
  bool filled = false;
  for (const std::int32_t rows : row_counts) {
    matmul_args a = product;
    a.rows = rows;
    a.weight = weights.front();
    check_args(a);
    if (const algorithm_words* kept = impl_->cache.kept(key_of(a)); kept != nullptr && impl_->supports(a, algorithm_of(*kept))) {
      impl_->cache.use(key_of(a), *kept);
      continue;
    }
    if (!filled) {
      const std::int32_t most = *std::max_element(row_counts.begin(), row_counts.end());
      fill_random(
          on, static_cast<std::byte*>(const_cast<void*>(product.x)),
          (static_cast<std::size_t>(most - 1) * static_cast<std::size_t>(product.x_stride) + static_cast<std::size_t>(product.columns)) *
              2 / 16 * 16,
          1);
      filled = true;
    }
    impl_->cache.choose(key_of(a), words_of(impl_->measured(on, a, weights)));
  }
  on.synchronize();
}

void matmul::save() { impl_->cache.save(impl_->log); }

void matmul::run(cuda::stream_handle on, const matmul_args& args) {
  check_args(args);
  description of(args);
  const algorithm_words* words = impl_->cache.at_least(key_of(args));
  if (words != nullptr && impl_->start(on, args, of, algorithm_of(*words)) == CUBLAS_STATUS_SUCCESS) return;
  // Not tuned for, or what was chosen for more rows cannot do these: cuBLASLt's own first choice, remembered.
  const cublasLtMatmulAlgo_t own = impl_->proposed(of, 1).front();
  impl_->cache.use(key_of(args), words_of(own));
  check_blas(impl_->start(on, args, of, own), "cublasLtMatmul");
}

} // namespace troupe::gpu
