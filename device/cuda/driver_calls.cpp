#include "device/cuda/driver_calls.hpp"

#include <cuda_runtime_api.h>

#include <cstdint>
#include <cstdio>
#include <string>

#include "core/error.hpp"
#include "device/cuda/check.hpp"
#include "device/cuda/resources.hpp"

namespace troupe::cuda {
namespace {

template <class Function>
void find(Function& call, const char* name) {
  void* entry = nullptr;
  cudaDriverEntryPointQueryResult result{};
  check(cudaGetDriverEntryPointByVersion(name, &entry, 12000, cudaEnableDefault, &result), "cudaGetDriverEntryPointByVersion");
  if (result != cudaDriverEntryPointSuccess || entry == nullptr) throw device_error(std::string("this driver has no ") + name);
  call = reinterpret_cast<Function>(entry);
}

driver_calls find_all() {
  driver_calls found{};
  find(found.granularity, "cuMemGetAllocationGranularity");
  find(found.create, "cuMemCreate");
  find(found.release, "cuMemRelease");
  find(found.share, "cuMemExportToShareableHandle");
  find(found.import, "cuMemImportFromShareableHandle");
  find(found.reserve, "cuMemAddressReserve");
  find(found.free_addresses, "cuMemAddressFree");
  find(found.map, "cuMemMap");
  find(found.unmap, "cuMemUnmap");
  find(found.set_access, "cuMemSetAccess");
  find(found.error_name, "cuGetErrorName");
  return found;
}

} // namespace

const driver_calls& driver() {
  static const driver_calls found = find_all();
  return found;
}

void check_driver(CUresult status, const char* call) {
  if (status == CUDA_SUCCESS) return;
  const char* name = nullptr;
  driver().error_name(status, &name);
  throw device_error(std::string(call) + ": " + (name != nullptr ? name : "CUDA error " + std::to_string(static_cast<int>(status))));
}

void check_driver_quietly(CUresult status, const char* call) noexcept {
  if (status != CUDA_SUCCESS && status != CUDA_ERROR_DEINITIALIZED)
    std::fprintf(stderr, "%s failed with %d\n", call, static_cast<int>(status));
}

CUmemAllocationProp shareable_on(int device) {
  CUmemAllocationProp wanted{};
  wanted.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  wanted.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  wanted.location.id = device;
  wanted.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
  return wanted;
}

std::size_t shareable_size(std::size_t bytes, int device) {
  const CUmemAllocationProp wanted = shareable_on(device);
  std::size_t grain = 0;
  check_driver(driver().granularity(&grain, &wanted, CU_MEM_ALLOC_GRANULARITY_RECOMMENDED), "cuMemGetAllocationGranularity");
  return (bytes + grain - 1) / grain * grain;
}

CUmemGenericAllocationHandle create_shareable(std::size_t size, int device) {
  const CUmemAllocationProp wanted = shareable_on(device);
  CUmemGenericAllocationHandle made = 0;
  const CUresult status = driver().create(&made, size, &wanted, 0);
  if (status == CUDA_ERROR_OUT_OF_MEMORY) {
    const memory_state now = device_memory();
    throw device_error("no room for " + std::to_string(size) + " bytes on the device: " + std::to_string(now.unused) + " of " +
                       std::to_string(now.whole) + " are unused");
  }
  check_driver(status, "cuMemCreate");
  detail::count(detail::resource::device_allocation);
  return made;
}

keeper::file_descriptor file_of(CUmemGenericAllocationHandle memory) {
  int number = -1;
  check_driver(driver().share(&number, memory, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0), "cuMemExportToShareableHandle");
  return keeper::file_descriptor(number);
}

CUmemGenericAllocationHandle import_shareable(const keeper::file_descriptor& file) {
  CUmemGenericAllocationHandle memory{};
  check_driver(
      driver().import(&memory, reinterpret_cast<void*>(static_cast<std::uintptr_t>(file.get())), CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR),
      "cuMemImportFromShareableHandle");
  return memory;
}

void allow_access(CUdeviceptr address, std::size_t size, int device, bool writable) {
  CUmemAccessDesc access{};
  access.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  access.location.id = device;
  access.flags = writable ? CU_MEM_ACCESS_FLAGS_PROT_READWRITE : CU_MEM_ACCESS_FLAGS_PROT_READ;
  check_driver(driver().set_access(address, size, &access, 1), "cuMemSetAccess");
}

} // namespace troupe::cuda
