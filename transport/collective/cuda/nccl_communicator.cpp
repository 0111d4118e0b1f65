#include "transport/collective/cuda/nccl_communicator.hpp"

#include <cuda_runtime_api.h>
#include <nccl.h>

#include <atomic>
#include <cstdlib>
#include <cstring>
#include <future>
#include <mutex>
#include <optional>
#include <stdexcept>
#include <thread>
#include <utility>

#include "device/cuda/check.hpp"
#include "device/cuda/memory.hpp"
#include "device/cuda/stream.hpp"
#include "transport/collective/call.hpp"
#include "transport/collective/call_times.hpp"
#include "transport/collective/nccl_settings.hpp"

namespace troupe::cuda {
namespace {

using clock = call_times::clock;

constexpr std::chrono::microseconds kSpin{50};
constexpr std::chrono::microseconds kNap{50};

void set_environment(const nccl_options& options) {
  static std::mutex mutex;
  const std::lock_guard lock(mutex);
  for (const auto& [name, value] :
       nccl_settings(options.interface, options.across_nodes, [](const char* asked) { return std::getenv(asked); })) {
    ::setenv(name.c_str(), value.c_str(), 0);
  }
}

ncclDataType_t nccl_type(dtype type) {
  if (type == dtype::f16) return ncclFloat16;
  return type == dtype::bf16 ? ncclBfloat16 : ncclFloat32;
}

cudaStream_t stream_of(collective_stream stream) { return static_cast<cudaStream_t>(stream); }

// Spins shortly, then sleeps between looks.
class patience {
 public:
  explicit patience(std::chrono::milliseconds deadline) : begin_(clock::now()), deadline_(deadline) {}
  bool is_over() const { return clock::now() - begin_ >= deadline_; }
  void pause() const {
    if (clock::now() - begin_ > kSpin) std::this_thread::sleep_for(kNap);
  }

 private:
  clock::time_point begin_;
  std::chrono::milliseconds deadline_;
};

// One rank's end in NCCL. Shared with the thread that aborts, which may never come back.
class library_end : public std::enable_shared_from_this<library_end> {
 public:
  library_end(nccl_options options, int rank, int size) : options_(std::move(options)), rank_(rank), size_(size) {
    check(cudaGetDevice(&device_), "cudaGetDevice");
  }

  int rank() const { return rank_; }
  int size() const { return size_; }
  std::chrono::milliseconds deadline() const { return options_.deadline; }
  bool is_stuck() const { return stuck_; }
  void when_ended(std::function<void()> destroy_graphs) {
    const std::lock_guard lock(fault_mutex_);
    destroy_graphs_ = std::move(destroy_graphs);
  }
  void before_end(std::function<void()> let_go) {
    const std::lock_guard lock(fault_mutex_);
    let_go_ = std::move(let_go);
    if (let_go_ && fault_) let_go_();
  }

  // NCCL joins on a thread of its own.
  void begin(const nccl_group_id& id) {
    static_assert(sizeof(ncclUniqueId) == sizeof(id.bytes));
    ncclUniqueId unique;
    std::memcpy(&unique, id.bytes.data(), sizeof unique);
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.blocking = 0;
    config.commName = options_.name.c_str();
    const std::lock_guard lock(calls_);
    joining_ = ncclCommInitRankConfig(&comm_, size_, unique, rank_, &config);
  }

  // Until all ranks have joined. On any thread, which from then on works on the device.
  void await_all() {
    check(cudaSetDevice(device_), "cudaSetDevice");
    run({}, options_.form_deadline, [&] { return joining_; });
    formed_ = true;
  }

  // Queues `work`(communicator) and returns when NCCL has taken it.
  template <class Work>
  void queue(const collective_call& call, Work work) {
    run(call, options_.deadline, [&] { return work(comm_); });
  }

  // Until `ask` says that it is done.
  template <class Ask>
  void wait(Ask ask) {
    for (const patience until(options_.deadline);; until.pause()) {
      raise_if_ended();
      const cudaError_t status = ask();
      if (status == cudaSuccess) return;
      if (status != cudaErrorNotReady) {
        cudaGetLastError(); // reported here
        end_and_raise(fault(collective_fault::failed, cudaGetErrorString(status)));
      }
      if (const auto found = asynchronous_fault()) end_and_raise(*found);
      if (until.is_over()) end_and_raise(late("the queued work"));
    }
  }

  // Waits until the group's work is done, then frees what NCCL holds.
  void close() noexcept {
    if (ended_) return;
    try {
      queue({}, ncclCommFinalize);
    } catch (const collective_error&) { // and aborted
      return;
    }
    const std::lock_guard lock(calls_);
    ended_ = true;
    free_by(ncclCommDestroy);
  }

  void end(const group_fault& why) noexcept {
    {
      const std::lock_guard lock(fault_mutex_);
      if (fault_) return;
      fault_ = why;
      ended_ = true;
      if (let_go_) let_go_();
    }
    // A call that is being queued sees this and lets go. One that is stuck in the driver does not: NCCL is aborted beside it.
    std::unique_lock lock(calls_, std::defer_lock);
    [[maybe_unused]] const bool alone = lock.try_lock_for(options_.abort_deadline);
    free_by(ncclCommAbort);
  }

  [[noreturn]] void end_and_raise(const group_fault& why) {
    end(why);
    raise();
  }

 private:
  group_fault fault(collective_fault kind, const std::string& what) const {
    return {kind, -1, options_.name + ", rank " + std::to_string(rank_) + " of " + std::to_string(size_) + ": " + what};
  }
  // Once a group has formed, NCCL reports the broken connection of a peer that died by any of these, by how it noticed.
  bool is_of_peer(ncclResult_t status) const {
    return status == ncclRemoteError || (formed_ && (status == ncclSystemError || status == ncclInternalError));
  }
  group_fault fault_of(ncclResult_t status, const std::string& what) const {
    const auto kind = is_of_peer(status) ? collective_fault::peer_lost : collective_fault::failed;
    const char* last = ncclGetLastError(comm_);
    return fault(kind, what + ": " + ncclGetErrorString(status) + (last != nullptr && *last != '\0' ? std::string(" (") + last + ")" : ""));
  }
  group_fault late(const std::string& what) const {
    return fault(collective_fault::deadline, what + " was not done in time: a peer does not take part");
  }

  void raise_if_ended() {
    if (ended_) raise();
  }

  [[noreturn]] void raise() {
    const std::lock_guard lock(fault_mutex_);
    group_fault told = *fault_;
    if (stuck_) told.text += "; NCCL did not come back from the abort, so this process must be ended";
    told.raise();
  }

  void destroy_graphs() {
    const std::lock_guard lock(fault_mutex_);
    if (destroy_graphs_) destroy_graphs_();
  }

  template <class Work>
  void run(const collective_call& call, std::chrono::milliseconds deadline, Work work) {
    std::optional<group_fault> found;
    {
      const std::lock_guard lock(calls_);
      raise_if_ended();
      found = settle(work(), call, deadline);
    }
    if (found) end_and_raise(*found);
    raise_if_ended();
  }

  // With calls_ held. Nothing, when NCCL has taken the work or somebody has ended the group.
  std::optional<group_fault> settle(ncclResult_t status, const collective_call& call, std::chrono::milliseconds deadline) {
    for (const patience until(deadline); status == ncclInProgress; until.pause()) {
      if (ended_) return std::nullopt;
      if (until.is_over()) return late(describe(call));
      if (const ncclResult_t asked = ncclCommGetAsyncError(comm_, &status); asked != ncclSuccess) status = asked;
    }
    if (status == ncclSuccess) return std::nullopt;
    return fault_of(status, describe(call));
  }

  std::optional<group_fault> asynchronous_fault() {
    const std::lock_guard lock(calls_);
    if (ended_) return std::nullopt;
    ncclResult_t status = ncclSuccess;
    if (const ncclResult_t asked = ncclCommGetAsyncError(comm_, &status); asked != ncclSuccess) status = asked;
    if (status == ncclSuccess || status == ncclInProgress) return std::nullopt;
    return fault_of(status, "the queued work");
  }

  // In a thread of its own, which is left behind when NCCL does not come back.
  void free_by(ncclResult_t (*function)(ncclComm_t)) noexcept {
    if (comm_ == nullptr) return;
    try {
      std::promise<void> promise;
      const auto done = promise.get_future();
      std::thread([self = shared_from_this(), comm = std::exchange(comm_, nullptr), function, promise = std::move(promise)]() mutable {
        cudaSetDevice(self->device_);
        function(comm);
        promise.set_value();
      }).detach();
      destroy_graphs();
      stuck_ = done.wait_for(options_.abort_deadline) != std::future_status::ready;
    } catch (const std::exception&) { // no thread to be had
      stuck_ = true;
    }
  }

  const nccl_options options_;
  const int rank_, size_;
  int device_ = 0;
  bool formed_ = false; // set before anybody else knows of this end
  std::atomic<bool> ended_{false}, stuck_{false};
  std::timed_mutex calls_; // one thread at a time in NCCL
  ncclComm_t comm_ = nullptr;
  ncclResult_t joining_ = ncclSuccess;
  std::mutex fault_mutex_;
  std::optional<group_fault> fault_;
  std::function<void()> destroy_graphs_, let_go_;
};

class gpu_communicator final : public nccl_communicator {
 public:
  explicit gpu_communicator(std::shared_ptr<library_end> end) : end_(std::move(end)) {}
  ~gpu_communicator() override { end_->close(); }

  int rank() const override { return end_->rank(); }
  int size() const override { return end_->size(); }
  std::chrono::milliseconds deadline() const override { return end_->deadline(); }
  bool is_stuck() const override { return end_->is_stuck(); }
  void when_ended(std::function<void()> destroy_graphs) override { end_->when_ended(std::move(destroy_graphs)); }
  void before_end(std::function<void()> let_go) override { end_->before_end(std::move(let_go)); }

  void all_reduce(collective_buffer data, collective_stream stream) override {
    refuse(objection_to_sum(data));
    queue({collective_op::all_reduce, data.type, data.count, 0}, data, [&](ncclComm_t comm) {
      return ncclAllReduce(data.data, data.data, data.count, nccl_type(data.type), ncclSum, comm, stream_of(stream));
    });
  }
  void all_gather(collective_buffer mine, collective_buffer all, collective_stream stream) override {
    refuse(objection_to_gather(mine, all, size()));
    queue({collective_op::all_gather, mine.type, mine.count, 0}, mine,
          [&](ncclComm_t comm) { return ncclAllGather(mine.data, all.data, bytes_of(mine), ncclUint8, comm, stream_of(stream)); });
  }
  void broadcast(collective_buffer data, int root, collective_stream stream) override {
    refuse(objection_to_root(root, size()));
    queue({collective_op::broadcast, data.type, data.count, root}, data,
          [&](ncclComm_t comm) { return ncclBroadcast(data.data, data.data, bytes_of(data), ncclUint8, root, comm, stream_of(stream)); });
  }
  void send(collective_buffer data, int peer, collective_stream stream) override {
    refuse(objection_to_peer(peer, rank(), size()));
    queue({collective_op::message, data.type, data.count, rank()}, data,
          [&](ncclComm_t comm) { return ncclSend(data.data, bytes_of(data), ncclUint8, peer, comm, stream_of(stream)); });
  }
  void receive(collective_buffer data, int peer, collective_stream stream) override {
    refuse(objection_to_peer(peer, rank(), size()));
    queue({collective_op::message, data.type, data.count, peer}, data,
          [&](ncclComm_t comm) { return ncclRecv(data.data, bytes_of(data), ncclUint8, peer, comm, stream_of(stream)); });
  }

  void wait(collective_stream stream) override {
    end_->wait([&] { return cudaStreamQuery(stream_of(stream)); });
  }
  void wait_for(const event& point) override {
    end_->wait([&] { return cudaEventQuery(point.handle()); });
  }
  void abort(std::string_view reason) noexcept override { end_->end(abort_of(rank(), reason)); }
  collective_times take_times() override { return times_.take(); }

 private:
  void refuse(const std::string& objection) {
    if (!objection.empty()) end_->end_and_raise({collective_fault::mismatch, rank(), "rank " + std::to_string(rank()) + ": " + objection});
  }
  template <class Work>
  void queue(const collective_call& call, const collective_buffer& data, Work work) {
    const auto begin = clock::now();
    end_->queue(call, work);
    times_.add(bytes_of(data), begin, begin);
  }

  const std::shared_ptr<library_end> end_;
  call_times times_;
};

// A communicator's first collective must not be inside a capture; and one that gives a wrong sum here must not be used at all.
void try_out(nccl_communicator& group) {
  const stream queue;
  const auto memory = own_memory();
  memory_ledger ledger;
  const device_block number(*memory, ledger, sizeof(float), "first collective");
  float value = 1;
  check(cudaMemcpyAsync(number.data(), &value, sizeof value, cudaMemcpyHostToDevice, queue.handle()), "cudaMemcpyAsync");
  group.all_reduce({number.data(), 1, dtype::f32}, queue.handle());
  group.wait(queue.handle());
  check(cudaMemcpyAsync(&value, number.data(), sizeof value, cudaMemcpyDeviceToHost, queue.handle()), "cudaMemcpyAsync");
  queue.synchronize();
  group.take_times(); // counts calls of the group's owner
  if (value == static_cast<float>(group.size())) return;
  const std::string text = "ones of " + std::to_string(group.size()) + " ranks sum up to " + std::to_string(value);
  group.abort(text);
  throw collective_error(collective_fault::failed, -1, text);
}

} // namespace

nccl_group_id make_nccl_group_id(const nccl_options& options) {
  set_environment(options);
  ncclUniqueId unique;
  const ncclResult_t status = ncclGetUniqueId(&unique);
  if (status != ncclSuccess)
    throw collective_error(collective_fault::failed, -1, options.name + ": ncclGetUniqueId: " + ncclGetErrorString(status));
  nccl_group_id id;
  std::memcpy(id.bytes.data(), &unique, sizeof unique);
  return id;
}

class nccl_joining::state : public library_end {
 public:
  using library_end::library_end;
  bool finished = false; // what ends the group is the communicator's from then on
};

nccl_joining::nccl_joining(const nccl_group_id& id, int rank, int size, const nccl_options& options) {
  if (rank < 0 || rank >= size) throw std::invalid_argument("there is no rank " + std::to_string(rank) + " of " + std::to_string(size));
  set_environment(options);
  state_ = std::make_shared<state>(options, rank, size);
  state_->begin(id);
}

nccl_joining::~nccl_joining() {
  if (!state_->finished) abort("given up while it joined");
}

std::unique_ptr<nccl_communicator> nccl_joining::finish() {
  state_->finished = true;
  state_->await_all();
  auto group = std::make_unique<gpu_communicator>(state_);
  try_out(*group);
  return group;
}

void nccl_joining::abort(std::string_view reason) noexcept { state_->end(abort_of(state_->rank(), reason)); }

void load_nccl(const nccl_options& options) { join_nccl_group(make_nccl_group_id(options), 0, 1, options); }

std::unique_ptr<nccl_communicator> join_nccl_group(const nccl_group_id& id, int rank, int size, const nccl_options& options) {
  return nccl_joining(id, rank, size, options).finish();
}

} // namespace troupe::cuda
