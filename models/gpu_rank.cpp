#include "models/gpu_rank.hpp"

#include <array>
#include <cstring>
#include <exception>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "core/error.hpp"
#include "device/cuda/stream.hpp"
#include "models/gpu_weights.hpp"
#include "models/shard.hpp"

namespace troupe {

namespace {

constexpr std::int32_t width_block = 8; // what the kernels take no part of

} // namespace

model_config gpu_share(const model_config& whole, const rank_context& rank) {
  return rank.size() == 1 ? whole : shard_config(whole, rank, width_block);
}

model_weights gpu_share(const model_weights& whole, const rank_context& rank) {
  if (rank.size() == 1) return whole;
  model_weights mine = shard_weights(whole, rank, width_block);
  mine.config.output_bias = whole.config.output_bias && rank.tp_rank == 0;
  const gpu_ends ends = ends_of(whole.config, rank);
  mine.embedding = ends.embedding ? whole.embedding : weight_view{};
  mine.head = ends.head ? whole.head : weight_view{};
  mine.head.rows = ends.head ? ends.ids.rows : 0;
  if (mine.head) mine.head.data = whole.head.row(ends.ids.first);
  return mine;
}

void gpu_rank::abort(const std::string& reason) const noexcept {
  for (cuda::nccl_communicator* group : {rows.get(), draws.get(), devices.get()}) {
    if (group != nullptr) group->abort(reason);
  }
}

bool gpu_rank::is_stuck() const { return (devices && devices->is_stuck()) || (rows && rows->is_stuck()) || (draws && draws->is_stuck()); }

#ifdef TROUPE_HAVE_NCCL

namespace {

// What it takes to join one group of GPUs, which all of its ranks know.
struct planned_group {
  cuda::nccl_group_id id;
  int rank = 0, size = 1;
  cuda::nccl_options options;
  std::shared_ptr<cuda::nccl_communicator> gpu_rank::*member;
};

// The first rank's id goes round through `host`. `place` says through which interface NCCL talks.
planned_group plan_group(const rank_context& place, communicator& host, const std::string& name, std::chrono::milliseconds deadline,
                         std::shared_ptr<cuda::nccl_communicator> gpu_rank::*member) {
  planned_group group{{}, host.rank(), host.size(), {}, member};
  group.options.name = name;
  group.options.deadline = deadline;
  group.options.interface = place.interface;
  group.options.across_nodes = place.across_nodes;
  if (host.rank() == 0) group.id = cuda::make_nccl_group_id(group.options);
  std::array<std::int32_t, sizeof(group.id.bytes) / sizeof(std::int32_t)> words{};
  std::memcpy(words.data(), group.id.bytes.data(), sizeof(group.id.bytes));
  host.broadcast({words.data(), words.size(), dtype::i32}, 0);
  std::memcpy(group.id.bytes.data(), words.data(), sizeof(group.id.bytes));
  return group;
}

} // namespace

// Groups are joined one after the other, by all ranks in the same order.
class gpu_joining::work {
 public:
  // The first one begins here, since NCCL may set variables of the environment then.
  work(std::vector<planned_group> groups, std::int32_t device, std::function<void()> joined)
      : groups_(std::move(groups)), device_(device), current_(begin(groups_.front())) {
    thread_ = std::thread([this, joined = std::move(joined)] { join(joined); });
  }

  ~work() {
    {
      const std::lock_guard lock(guard_);
      given_up_ = true;
      if (current_) current_->abort("its rank has gone");
    }
    if (thread_.joinable()) thread_.join();
  }

  void take(gpu_rank& rank) {
    thread_.join();
    if (failure_) std::rethrow_exception(failure_);
    current_.reset(); // what was made is the caller's to end
    for (std::size_t i = 0; i < groups_.size(); ++i) rank.*groups_[i].member = std::move(made_[i]);
  }

 private:
  static std::shared_ptr<cuda::nccl_joining> begin(const planned_group& group) {
    return std::make_shared<cuda::nccl_joining>(group.id, group.rank, group.size, group.options);
  }

  void join(const std::function<void()>& joined) {
    try {
      cuda::use_device(device_);
      while (const auto next = following()) made_.push_back(next->finish());
      if (made_.size() == groups_.size() && joined) joined();
    } catch (...) {
      failure_ = std::current_exception();
    }
  }

  // Null: there is none.
  std::shared_ptr<cuda::nccl_joining> following() {
    const std::lock_guard lock(guard_);
    if (made_.size() == groups_.size() || given_up_) return nullptr;
    if (!made_.empty()) current_ = begin(groups_[made_.size()]);
    return current_;
  }

  const std::vector<planned_group> groups_;
  const std::int32_t device_;
  std::mutex guard_;
  bool given_up_ = false;
  std::shared_ptr<cuda::nccl_joining> current_;
  std::vector<std::shared_ptr<cuda::nccl_communicator>> made_; // the thread's, until it has ended
  std::exception_ptr failure_;                                 // likewise
  std::thread thread_;
};

gpu_joining join_gpus(const rank_context& host, std::int32_t device, std::chrono::milliseconds deadline, std::function<void()> joined) {
  gpu_joining joining(gpu_rank{host, nullptr, nullptr, nullptr});
  std::vector<planned_group> groups;
  cuda::use_device(device);
  if (host.tp_size > 1)
    with_tensor(host, [&](communicator& group) { groups.push_back(plan_group(host, group, "tp", deadline, &gpu_rank::devices)); });
  if (host.stages > 1) {
    with_pipeline(host, [&](communicator& group) {
      groups.push_back(plan_group(host, group, "rows of the pipeline", deadline, &gpu_rank::rows));
      groups.push_back(plan_group(host, group, "draws of the pipeline", deadline, &gpu_rank::draws));
    });
  }
  if (groups.empty()) return joining;
  joining.memory_before_ = cuda::device_memory();
  joining.work_ = std::make_unique<gpu_joining::work>(std::move(groups), device, std::move(joined));
  return joining;
}

void prepare_to_join() { cuda::load_nccl({}); }

#else

void prepare_to_join() {}

class gpu_joining::work {
 public:
  static void take(gpu_rank&) {}
};

gpu_joining join_gpus(const rank_context& host, std::int32_t, std::chrono::milliseconds, std::function<void()>) {
  if (host.size() == 1) return gpu_rank{host, nullptr, nullptr, nullptr};
  throw load_error("--tp " + std::to_string(host.tp_size) + ", --pp " + std::to_string(host.stages) +
                   ": GPUs are joined by NCCL, and this program was built without it");
}

#endif

gpu_joining::gpu_joining(gpu_rank joined) : rank_(std::move(joined)) {}
gpu_joining::gpu_joining(gpu_joining&&) noexcept = default;
gpu_joining& gpu_joining::operator=(gpu_joining&&) noexcept = default;
gpu_joining::~gpu_joining() = default;

gpu_rank gpu_joining::take() {
  if (work_) work_->take(rank_);
  work_.reset();
  return std::move(rank_);
}

} // namespace troupe
