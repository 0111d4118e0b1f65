#include "device/cuda/stream.hpp"

#include "device/cuda/check.hpp"
#include "device/cuda/resources.hpp"

namespace troupe::cuda {

event::event(timing kind) {
  check(cudaEventCreateWithFlags(&handle_, kind == timing::on ? cudaEventDefault : cudaEventDisableTiming), "cudaEventCreateWithFlags");
  detail::count(detail::resource::event);
}

event::~event() {
  if (handle_ != nullptr) check_quietly(cudaEventDestroy(handle_), "cudaEventDestroy");
}

event& event::operator=(event&& other) noexcept {
  std::swap(handle_, other.handle_);
  return *this;
}

void event::record(const stream& on) { check(cudaEventRecord(handle_, on.handle()), "cudaEventRecord"); }

void event::record_in_graph(const stream& on) {
  check(cudaEventRecordWithFlags(handle_, on.handle(), cudaEventRecordExternal), "cudaEventRecordWithFlags");
}

bool event::reached() const {
  const cudaError_t status = cudaEventQuery(handle_);
  if (status == cudaErrorNotReady) return false;
  check(status, "cudaEventQuery");
  return true;
}

void event::wait() const { check(cudaEventSynchronize(handle_), "cudaEventSynchronize"); }

float elapsed_ms(const event& begin, const event& end) {
  float milliseconds = 0;
  check(cudaEventElapsedTime(&milliseconds, begin.handle(), end.handle()), "cudaEventElapsedTime");
  return milliseconds;
}

stream::stream(priority rank) {
  int least = 0, greatest = 0; // the greatest is the smallest number
  check(cudaDeviceGetStreamPriorityRange(&least, &greatest), "cudaDeviceGetStreamPriorityRange");
  check(cudaStreamCreateWithPriority(&handle_, cudaStreamNonBlocking, rank == priority::first ? greatest : least),
        "cudaStreamCreateWithPriority");
  detail::count(detail::resource::stream);
}

stream::~stream() {
  if (handle_ != nullptr) check_quietly(cudaStreamDestroy(handle_), "cudaStreamDestroy");
}

stream& stream::operator=(stream&& other) noexcept {
  std::swap(handle_, other.handle_);
  return *this;
}

void stream::wait_for(const event& point) const { check(cudaStreamWaitEvent(handle_, point.handle(), 0), "cudaStreamWaitEvent"); }

void stream::synchronize() const { check(cudaStreamSynchronize(handle_), "cudaStreamSynchronize"); }

int device_count() {
  int count = 0;
  const cudaError_t status = cudaGetDeviceCount(&count);
  if (status == cudaErrorNoDevice || status == cudaErrorInsufficientDriver) {
    cudaGetLastError();
    return 0;
  }
  check(status, "cudaGetDeviceCount");
  return count;
}

std::string device_name(int device) {
  cudaDeviceProp properties{};
  check(cudaGetDeviceProperties(&properties, device), "cudaGetDeviceProperties");
  return std::string(properties.name) + " (" + std::to_string(properties.major) + "." + std::to_string(properties.minor) + ")";
}

bool is_hopper(int device) {
  int major = 0, minor = 0;
  check(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device), "cudaDeviceGetAttribute");
  check(cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, device), "cudaDeviceGetAttribute");
  return major == 9 && minor == 0;
}

void use_device(int device) { check(cudaSetDevice(device), "cudaSetDevice"); }

} // namespace troupe::cuda
