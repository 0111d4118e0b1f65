#include "device/cuda/graph.hpp"

#include <vector>

#include "core/error.hpp"
#include "device/cuda/check.hpp"
#include "device/cuda/resources.hpp"

namespace troupe::cuda {
namespace {

// The only kernel that waits for nothing (libraries may have added other such nodes); null: none or several are.
cudaGraphNode_t first_kernel(cudaGraph_t recorded) {
  std::size_t count = 0;
  check(cudaGraphGetRootNodes(recorded, nullptr, &count), "cudaGraphGetRootNodes");
  std::vector<cudaGraphNode_t> roots(count);
  if (count > 0) check(cudaGraphGetRootNodes(recorded, roots.data(), &count), "cudaGraphGetRootNodes");
  cudaGraphNode_t found = nullptr;
  for (const cudaGraphNode_t root : roots) {
    cudaGraphNodeType type{};
    check(cudaGraphNodeGetType(root, &type), "cudaGraphNodeGetType");
    if (type != cudaGraphNodeTypeKernel) continue;
    if (found != nullptr) return nullptr;
    found = root;
  }
  return found;
}

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
  const cudaGraphNode_t first = first_kernel(recorded.handle);
  graph_exec_handle instance = nullptr;
  check(cudaGraphInstantiate(&instance, recorded.handle, 0), "cudaGraphInstantiate");
  detail::count(detail::resource::graph);
  return {std::exchange(recorded.handle, nullptr), first, instance};
}

graph::~graph() {
  if (handle_ != nullptr) check_quietly(cudaGraphExecDestroy(handle_), "cudaGraphExecDestroy");
  if (recorded_ != nullptr) check_quietly(cudaGraphDestroy(recorded_), "cudaGraphDestroy");
}

graph& graph::operator=(graph&& other) noexcept {
  std::swap(recorded_, other.recorded_);
  std::swap(first_, other.first_);
  std::swap(handle_, other.handle_);
  return *this;
}

void graph::change_first(const void* argument) const {
  if (first_ == nullptr) throw device_error("a graph that begins with no kernel was given an argument for it");
  cudaKernelNodeParams kernel{};
  check(cudaGraphKernelNodeGetParams(first_, &kernel), "cudaGraphKernelNodeGetParams");
  void* arguments[] = {const_cast<void*>(argument)};
  kernel.kernelParams = arguments;
  check(cudaGraphExecKernelNodeSetParams(handle_, first_, &kernel), "cudaGraphExecKernelNodeSetParams");
}

void graph::launch(const stream& on) const { check(cudaGraphLaunch(handle_, on.handle()), "cudaGraphLaunch"); }

} // namespace troupe::cuda
