// The driver's virtual memory calls, found at run time; nothing links against the driver.
#pragma once

#include <cudaTypedefs.h>

#include "device/cuda/memory.hpp"
#include "device/keeper/file_descriptor.hpp"

namespace troupe::cuda {

struct driver_calls {
  PFN_cuMemGetAllocationGranularity_v10020 granularity;
  PFN_cuMemCreate_v10020 create;
  PFN_cuMemRelease_v10020 release;
  PFN_cuMemExportToShareableHandle_v10020 share;
  PFN_cuMemImportFromShareableHandle_v10020 import;
  PFN_cuMemAddressReserve_v10020 reserve;
  PFN_cuMemAddressFree_v10020 free_addresses;
  PFN_cuMemMap_v10020 map;
  PFN_cuMemUnmap_v10020 unmap;
  PFN_cuMemSetAccess_v10020 set_access;
  PFN_cuGetErrorName_v6000 error_name;
};
// Throws device_error where the driver lacks one of them.
const driver_calls& driver();

// As check() and check_quietly() do for the runtime's calls.
void check_driver(CUresult status, const char* call);
void check_driver_quietly(CUresult status, const char* call) noexcept;

// Memory of `device` for which a file descriptor can stand.
CUmemAllocationProp shareable_on(int device);
// A multiple of the device's granularity.
std::size_t shareable_size(std::size_t bytes, int device);
// cuMemCreate; throws device_error with the numbers when there is no room.
CUmemGenericAllocationHandle create_shareable(std::size_t size, int device);
// That memory as a file descriptor, and memory from one that a process was handed.
keeper::file_descriptor file_of(CUmemGenericAllocationHandle memory);
CUmemGenericAllocationHandle import_shareable(const keeper::file_descriptor& file);
void allow_access(CUdeviceptr address, std::size_t size, int device, bool writable);

} // namespace troupe::cuda
