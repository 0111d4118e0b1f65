#include "device/cuda/check.hpp"

#include <cstdio>
#include <string>
#include <string_view>

#include "core/error.hpp"

namespace troupe::cuda {
namespace {

std::string describe(cudaError_t status, const char* call, const std::source_location& where) {
  return std::string(call) + " at " + where.file_name() + ":" + std::to_string(where.line()) + ": " + cudaGetErrorName(status) + " (" +
         cudaGetErrorString(status) + ")";
}

} // namespace

void check(cudaError_t status, const char* call, std::source_location where) {
  if (status == cudaSuccess) return;
  cudaGetLastError(); // the error is reported here; a later check must not find it again
  throw device_error(describe(status, call, where));
}

void check_quietly(cudaError_t status, const char* call, std::source_location where) noexcept {
  if (status == cudaSuccess || status == cudaErrorCudartUnloading) return;
  try {
    std::fprintf(stderr, "%s\n", describe(status, call, where).c_str());
  } catch (...) {
    std::fputs("a CUDA call failed, and there was no memory to say which\n", stderr);
  }
}

} // namespace troupe::cuda
