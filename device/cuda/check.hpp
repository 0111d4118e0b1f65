// Every CUDA call goes through check(): a failure becomes a device_error that names the call and where it stands.
#pragma once

#include <cuda_runtime_api.h>

#include <source_location>

namespace troupe::cuda {

// Throws device_error "CALL at FILE:LINE: NAME (text)" unless `status` is cudaSuccess.
void check(cudaError_t status, const char* call, std::source_location where = std::source_location::current());

// The same for destructors, which must not throw: one line on standard error.
void check_quietly(cudaError_t status, const char* call, std::source_location where = std::source_location::current()) noexcept;

} // namespace troupe::cuda
