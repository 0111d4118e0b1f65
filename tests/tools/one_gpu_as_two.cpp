// A library to preload: a program sees two GPUs where there is one, so that groups of two ranks, their failures and their recovery can be
// tried on a machine with one GPU. For NCCL each process is on a host of its own, as it takes a GPU once a host; so ranks must be processes
// (tests that hold two ranks in one do not run), and their sums go through sockets. Kernels of the ranks take turns: no speed is meant.
// usage: LD_PRELOAD=$PWD/build/release/tests/libone_gpu_as_two.so build/release/apps/troupe serve ... --tp 2
//    or: AS_TWO=build/release/tests/libone_gpu_as_two.so tests/gpu_checks.sh ... faults-2 nodes-2
#include <cuda.h>
#include <cuda_runtime_api.h>
#include <dlfcn.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <string>

namespace {

int shown = 2; // one where CUDA_VISIBLE_DEVICES names one of the two

int real(int device) { return device >= 0 && device < shown ? 0 : device; }

template <class Function>
Function next(const char* name) {
  return reinterpret_cast<Function>(dlsym(RTLD_NEXT, name));
}
template <class Function>
Function* driver_call(const char* name, unsigned version) {
  void* entry = nullptr;
  cudaDriverEntryPointQueryResult result{};
  next<decltype(&cudaGetDriverEntryPointByVersion)>("cudaGetDriverEntryPointByVersion")(name, &entry, version, cudaEnableDefault, &result);
  return reinterpret_cast<Function*>(entry);
}

CUresult create(CUmemGenericAllocationHandle* handle, std::size_t size, const CUmemAllocationProp* wanted, unsigned long long flags) {
  static auto* const call = driver_call<decltype(create)>("cuMemCreate", 12000);
  CUmemAllocationProp there = *wanted;
  there.location.id = real(there.location.id);
  return call(handle, size, &there, flags);
}
CUresult granularity(std::size_t* size, const CUmemAllocationProp* wanted, CUmemAllocationGranularity_flags which) {
  static auto* const call = driver_call<decltype(granularity)>("cuMemGetAllocationGranularity", 12000);
  CUmemAllocationProp there = *wanted;
  there.location.id = real(there.location.id);
  return call(size, &there, which);
}
CUresult set_access(CUdeviceptr at, std::size_t size, const CUmemAccessDesc* access, std::size_t count) {
  static auto* const call = driver_call<decltype(set_access)>("cuMemSetAccess", 12000);
  if (count != 1) return CUDA_ERROR_INVALID_VALUE; // as Troupe calls it
  CUmemAccessDesc there = *access;
  there.location.id = real(there.location.id);
  return call(at, size, &there, 1);
}

__attribute__((constructor)) void be_a_host() {
  setenv("NCCL_HOSTID", std::to_string(getpid()).c_str(), 1);
  const char* const visible = std::getenv("CUDA_VISIBLE_DEVICES");
  if (visible == nullptr) return;
  if (std::strchr(visible, ',') == nullptr) shown = 1;
  setenv("CUDA_VISIBLE_DEVICES", shown == 1 ? "0" : "0,1", 1);
}

} // namespace

extern "C" {

cudaError_t cudaGetDeviceCount(int* count) {
  const cudaError_t status = next<decltype(&cudaGetDeviceCount)>("cudaGetDeviceCount")(count);
  if (status == cudaSuccess && *count == 1) *count = shown;
  return status;
}
cudaError_t cudaSetDevice(int device) { return next<decltype(&cudaSetDevice)>("cudaSetDevice")(real(device)); }
cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int device) {
  return next<decltype(&cudaGetDeviceProperties)>("cudaGetDeviceProperties")(properties, real(device));
}
cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int device) {
  return next<decltype(&cudaDeviceGetAttribute)>("cudaDeviceGetAttribute")(value, attribute, real(device));
}
cudaError_t cudaDeviceGetPCIBusId(char* id, int length, int device) {
  return next<decltype(&cudaDeviceGetPCIBusId)>("cudaDeviceGetPCIBusId")(id, length, real(device));
}
cudaError_t cudaGetDriverEntryPointByVersion(const char* name, void** entry, unsigned version, unsigned long long flags,
                                             cudaDriverEntryPointQueryResult* result) {
  const cudaError_t status =
      next<decltype(&cudaGetDriverEntryPointByVersion)>("cudaGetDriverEntryPointByVersion")(name, entry, version, flags, result);
  if (std::strcmp(name, "cuMemCreate") == 0) *entry = reinterpret_cast<void*>(&create);
  if (std::strcmp(name, "cuMemGetAllocationGranularity") == 0) *entry = reinterpret_cast<void*>(&granularity);
  if (std::strcmp(name, "cuMemSetAccess") == 0) *entry = reinterpret_cast<void*>(&set_access);
  return status;
}

} // extern "C"
