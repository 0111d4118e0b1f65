#include "device/cuda/kept_memory.hpp"

#include <cudaTypedefs.h>
#include <cuda_runtime_api.h>

#include <cstdint>
#include <cstdio>
#include <utility>

#include "core/error.hpp"
#include "device/cuda/check.hpp"
#include "device/cuda/resources.hpp"

namespace troupe::cuda {
namespace {

template <class Function>
Function driver_call(const char* name) {
  void* entry = nullptr;
  cudaDriverEntryPointQueryResult result{};
  check(cudaGetDriverEntryPointByVersion(name, &entry, 12000, cudaEnableDefault, &result), "cudaGetDriverEntryPointByVersion");
  if (result != cudaDriverEntryPointSuccess || entry == nullptr) throw device_error(std::string("this driver has no ") + name);
  return reinterpret_cast<Function>(entry);
}

struct driver {
  PFN_cuMemGetAllocationGranularity_v10020 granularity = driver_call<decltype(granularity)>("cuMemGetAllocationGranularity");
  PFN_cuMemCreate_v10020 create = driver_call<decltype(create)>("cuMemCreate");
  PFN_cuMemRelease_v10020 release = driver_call<decltype(release)>("cuMemRelease");
  PFN_cuMemExportToShareableHandle_v10020 share = driver_call<decltype(share)>("cuMemExportToShareableHandle");
  PFN_cuMemImportFromShareableHandle_v10020 import = driver_call<decltype(import)>("cuMemImportFromShareableHandle");
  PFN_cuMemAddressReserve_v10020 reserve = driver_call<decltype(reserve)>("cuMemAddressReserve");
  PFN_cuMemAddressFree_v10020 free_addresses = driver_call<decltype(free_addresses)>("cuMemAddressFree");
  PFN_cuMemMap_v10020 map = driver_call<decltype(map)>("cuMemMap");
  PFN_cuMemUnmap_v10020 unmap = driver_call<decltype(unmap)>("cuMemUnmap");
  PFN_cuMemSetAccess_v10020 set_access = driver_call<decltype(set_access)>("cuMemSetAccess");
  PFN_cuGetErrorName_v6000 error_name = driver_call<decltype(error_name)>("cuGetErrorName");
};

const driver& calls() {
  static const driver found;
  return found;
}

std::string describe(CUresult status, const char* call) {
  const char* name = nullptr;
  calls().error_name(status, &name);
  return std::string(call) + ": " + (name != nullptr ? name : "CUDA error " + std::to_string(static_cast<int>(status)));
}

void check_driver(CUresult status, const char* call) {
  if (status != CUDA_SUCCESS) throw device_error(describe(status, call));
}

void check_driver_quietly(CUresult status, const char* call) noexcept {
  if (status != CUDA_SUCCESS && status != CUDA_ERROR_DEINITIALIZED)
    std::fprintf(stderr, "%s failed with %d\n", call, static_cast<int>(status));
}

CUmemAllocationProp on_device(int device) {
  CUmemAllocationProp wanted{};
  wanted.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  wanted.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  wanted.location.id = device;
  wanted.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
  return wanted;
}

} // namespace

std::string device_uuid(int device) {
  cudaDeviceProp properties{};
  check(cudaGetDeviceProperties(&properties, device), "cudaGetDeviceProperties");
  std::string text = "GPU-";
  for (const char byte : properties.uuid.bytes) {
    for (const int shift : {4, 0}) text += "0123456789abcdef"[static_cast<unsigned char>(byte) >> shift & 0xF];
  }
  return text;
}

std::size_t kept_size(std::size_t bytes, int device) {
  const CUmemAllocationProp wanted = on_device(device);
  std::size_t grain = 0;
  check_driver(calls().granularity(&grain, &wanted, CU_MEM_ALLOC_GRANULARITY_RECOMMENDED), "cuMemGetAllocationGranularity");
  return (bytes + grain - 1) / grain * grain;
}

std::byte* kept_memory::take(std::size_t bytes) {
  size_ = kept_size(bytes, device_);
  if (claim_.now() == keeper::claim::state::complete) {
    const keeper::file_descriptor file = claim_.take_memory();
    check_driver(calls().import(&handle_, reinterpret_cast<void*>(static_cast<std::uintptr_t>(file.get())),
                                CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR),
                 "cuMemImportFromShareableHandle");
    filled_ = true;
  } else {
    const CUmemAllocationProp wanted = on_device(device_);
    const CUresult status = calls().create(&handle_, size_, &wanted, 0);
    if (status == CUDA_ERROR_OUT_OF_MEMORY) {
      const memory_state now = device_memory();
      throw device_error("no room for " + std::to_string(size_) + " bytes on the device: " + std::to_string(now.unused) + " of " +
                         std::to_string(now.whole) + " are unused");
    }
    check_driver(status, "cuMemCreate");
    detail::count(detail::resource::device_allocation);
  }
  check_driver(calls().reserve(&address_, size_, 0, 0, 0), "cuMemAddressReserve");
  const bool leased = use_ == keeper::region_use::leased;
  map(leased || !filled_);
  if (leased && !filled_) hand_over();
  return reinterpret_cast<std::byte*>(address_);
}

void kept_memory::hand_over() {
  int number = -1;
  check_driver(calls().share(&number, handle_, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0), "cuMemExportToShareableHandle");
  const keeper::file_descriptor file(number);
  claim_.seal(file.get());
}

void kept_memory::map(bool writable) {
  check_driver(calls().map(address_, size_, 0, handle_, 0), "cuMemMap");
  CUmemAccessDesc access{};
  access.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  access.location.id = device_;
  access.flags = writable ? CU_MEM_ACCESS_FLAGS_PROT_READWRITE : CU_MEM_ACCESS_FLAGS_PROT_READ;
  check_driver(calls().set_access(address_, size_, &access, 1), "cuMemSetAccess");
}

void kept_memory::seal() {
  if (filled_) return;
  filled_ = true;
  check_driver(calls().unmap(address_, size_), "cuMemUnmap");
  map(false);
  hand_over();
}

void kept_memory::give_back(std::byte*) noexcept {
  check_driver_quietly(calls().unmap(address_, size_), "cuMemUnmap");
  check_driver_quietly(calls().free_addresses(address_, size_), "cuMemAddressFree");
  check_driver_quietly(calls().release(handle_), "cuMemRelease");
}

} // namespace troupe::cuda
