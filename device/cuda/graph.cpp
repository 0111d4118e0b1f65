#include "device/cuda/graph.hpp"

#include "device/cuda/check.hpp"
#include "device/cuda/resources.hpp"

namespace troupe::cuda {
namespace {

// A graph under construction.
struct recording {
  cudaGraph_t handle = nullptr;
  ~recording() {
    if (handle != nullptr) check_quietly(cudaGraphDestroy(handle), "cudaGraphDestroy");
  }
};

} // namespace

graph graph::capture(const stream& on, const std::function<void()>& work) {
  recording recorded;
  // Thread-local: calls of other threads (allocations at their start-up, say) neither break the recording nor join it.
  check(cudaStreamBeginCapture(on.handle(), cudaStreamCaptureModeThreadLocal), "cudaStreamBeginCapture");
  try {
    work();
  } catch (...) {
    cudaStreamEndCapture(on.handle(), &recorded.handle); // invalidated by the failure that is on its way to the caller
    cudaGetLastError();
    throw;
  }
  check(cudaStreamEndCapture(on.handle(), &recorded.handle), "cudaStreamEndCapture");
  graph_exec_handle instance = nullptr;
  check(cudaGraphInstantiate(&instance, recorded.handle, 0), "cudaGraphInstantiate");
  detail::count(detail::resource::graph);
  return {std::exchange(recorded.handle, nullptr), instance};
}

graph::~graph() {
  if (handle_ != nullptr) check_quietly(cudaGraphExecDestroy(handle_), "cudaGraphExecDestroy");
  if (recorded_ != nullptr) check_quietly(cudaGraphDestroy(recorded_), "cudaGraphDestroy");
}

graph& graph::operator=(graph&& other) noexcept {
  std::swap(recorded_, other.recorded_);
  std::swap(handle_, other.handle_);
  return *this;
}

void graph::change_first(const void* argument) const {
  cudaGraphNode_t first = nullptr;
  std::size_t count = 1; // of a stream's work in a row only one is the first
  check(cudaGraphGetRootNodes(recorded_, &first, &count), "cudaGraphGetRootNodes");
  cudaKernelNodeParams kernel{};
  check(cudaGraphKernelNodeGetParams(first, &kernel), "cudaGraphKernelNodeGetParams");
  void* arguments[] = {const_cast<void*>(argument)};
  kernel.kernelParams = arguments;
  check(cudaGraphExecKernelNodeSetParams(handle_, first, &kernel), "cudaGraphExecKernelNodeSetParams");
}

void graph::launch(const stream& on) const { check(cudaGraphLaunch(handle_, on.handle()), "cudaGraphLaunch"); }

} // namespace troupe::cuda
