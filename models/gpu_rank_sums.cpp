#include "models/gpu_rank_sums.hpp"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <random>
#include <thread>
#include <utility>
#include <vector>

#include "core/half.hpp"
#include "device/cuda/pinned_ring.hpp"
#include "transport/collective/host_exchange.hpp"

namespace troupe {
namespace {

constexpr std::size_t element = 2;
constexpr std::size_t most_sent = std::size_t{2} << 20; // bytes of a call to all peers together: beyond that NCCL is asked
constexpr std::chrono::milliseconds patience{2'000};    // at the start, for a peer that takes part
constexpr const char* purpose = "sums over GPUs";

std::size_t bytes_of(const rank_sum_shape& shape, std::int32_t rows) {
  return static_cast<std::size_t>(rows) * static_cast<std::size_t>(shape.columns) * element;
}

// A sum whose parts are whole numbers that add up exactly in any order and in either type.
struct trial {
  std::int32_t rows;
  bool normed;
  std::vector<std::uint16_t> part, ours;
};

std::vector<trial> make_trials(const rank_sum_shape& shape, std::int32_t most_rows, int rank) {
  std::mt19937 random(static_cast<unsigned>(rank) + 1);
  std::vector<trial> trials;
  for (const std::int32_t rows : {1, 2, 7, most_rows, 1}) {
    for (const bool normed : {false, true}) {
      if (rows > most_rows || (normed && shape.columns > gpu::most_normed_columns)) continue;
      trial t{rows, normed, std::vector<std::uint16_t>(bytes_of(shape, rows) / element), {}};
      for (std::uint16_t& bits : t.part) {
        const float number = static_cast<float>(static_cast<int>(random() % 17) - 8);
        bits = shape.type == dtype::f16 ? float_to_half(number) : float_to_bfloat16(number);
      }
      trials.push_back(std::move(t));
    }
  }
  return trials;
}

// What a trial's numbers go up and down through.
class trial_copies {
 public:
  trial_copies(const cuda::stream& on, std::byte* device, std::size_t bytes) : on_(on), device_(device), up_(1, bytes), down_(1, bytes) {}

  void up(const std::vector<std::uint16_t>& values) {
    std::byte* const pinned = up_.next();
    std::memcpy(pinned, values.data(), values.size() * element);
    cuda::copy_in(on_, device_, pinned, values.size() * element);
  }
  void start_down(std::size_t count) { cuda::copy_out(on_, down_.next(), device_, count * element); }
  std::vector<std::uint16_t> down(std::size_t count) {
    std::vector<std::uint16_t> values(count);
    std::memcpy(values.data(), down_.next(), count * element);
    return values;
  }

 private:
  const cuda::stream& on_;
  std::byte* const device_;
  cuda::pinned_ring up_, down_;
};

bool is_done_within(const cuda::stream& on, std::chrono::milliseconds time) {
  cuda::event done;
  done.record(on);
  for (const auto end = std::chrono::steady_clock::now() + time; !done.reached();) {
    if (std::chrono::steady_clock::now() >= end) return false;
    std::this_thread::sleep_for(std::chrono::microseconds(50));
  }
  return true;
}

} // namespace

std::int32_t gpu_rank_sums::most_rows(int ranks, const rank_sum_shape& shape) {
  if (ranks < 2 || ranks > gpu::most_summed_ranks) return 0;
  const std::size_t fit = most_sent / (static_cast<std::size_t>(ranks - 1) * bytes_of(shape, 1));
  return static_cast<std::int32_t>(std::min(fit, static_cast<std::size_t>(shape.max_rows)));
}

std::size_t gpu_rank_sums::planned_bytes(int ranks, const rank_sum_shape& shape) {
  const std::int32_t rows = most_rows(ranks, shape);
  if (rows == 0) return 0;
  constexpr std::size_t grain = std::size_t{2} << 20; // of shared memory
  const std::size_t part = bytes_of(shape, rows), window = gpu::rank_window_bytes(ranks, part);
  return (window + grain - 1) / grain * grain + 2 * part + bytes_of(shape, 1) + sizeof(gpu::rank_sum_state);
}

std::unique_ptr<gpu_rank_sums> gpu_rank_sums::open(const gpu_rank& rank, const rank_sum_shape& shape, device_memory memory,
                                                   const cuda::stream& on, const log_line& log) {
  const auto begin = std::chrono::steady_clock::now();
  std::string objection;
  std::unique_ptr<gpu_rank_sums> made;
  with_tensor(rank.host, [&](communicator& host) {
    const std::int32_t rows = most_rows(host.size(), shape);
    if (rows == 0) {
      objection = std::to_string(host.size()) + " ranks, or rows of " + std::to_string(shape.columns) + " columns, are too many";
      return;
    }
    auto windows = cuda::peer_windows::open(host, gpu::rank_window_bytes(host.size(), bytes_of(shape, rows)), patience, objection);
    if (!windows) return;
    made.reset(new gpu_rank_sums(rank, shape, memory, on, std::move(windows)));
    objection = made->check(host);
    if (!objection.empty()) made.reset();
  });
  if (rank.first() && log) {
    const auto took = std::chrono::duration_cast<std::chrono::milliseconds>(std::chrono::steady_clock::now() - begin);
    log(made ? "sums of up to " + std::to_string(made->most_rows()) + " rows go through the GPUs' own windows: checked against NCCL in " +
                   std::to_string(took.count()) + " ms"
             : "NCCL does all sums over the GPUs: " + objection);
  }
  return made;
}

gpu_rank_sums::gpu_rank_sums(const gpu_rank& rank, const rank_sum_shape& shape, device_memory memory, const cuda::stream& on,
                             std::unique_ptr<cuda::peer_windows> windows)
    : group_(rank.devices),
      shape_(shape),
      most_rows_(most_rows(windows->size(), shape)),
      memory_(memory),
      on_(on),
      windows_(std::move(windows)),
      part_(memory.small.allocate(bytes_of(shape, most_rows_), purpose)),
      state_(memory.small.allocate(sizeof(gpu::rank_sum_state), purpose)) {
  memory_.ledger.add(purpose, windows_->held());
  group_->before_end([windows = windows_.get()] { windows->give_up(); });
}

gpu_rank_sums::~gpu_rank_sums() {
  group_->before_end({});
  windows_->give_up();
  memory_.ledger.remove(purpose, windows_->held());
  if (group_->is_stuck()) { // what is queued may never end, and the process soon will
    [[maybe_unused]] auto* const left = windows_.release();
    return;
  }
  try {
    on_.synchronize();              // before the windows go
  } catch (const std::exception&) { // the device is lost, and with it what ran there
  }
}

gpu::rank_windows gpu_rank_sums::windows() const {
  gpu::rank_windows w;
  w.rank = windows_->rank();
  w.size = windows_->size();
  for (int rank = 0; rank < w.size; ++rank) w.of_rank[rank] = windows_->of(rank);
  w.capacity = bytes_of(shape_, most_rows_);
  w.state = state_.as<gpu::rank_sum_state>();
  w.given_up = windows_->given_up();
  return w;
}

void gpu_rank_sums::run(const rank_sum_call& call) const {
  gpu::rank_sum_args args;
  args.type = shape_.type;
  args.part = call.part;
  args.residual = call.residual;
  args.sum = call.sum;
  args.rows = call.rows;
  args.columns = shape_.columns;
  args.norm_weight = call.norm_weight;
  args.epsilon = call.epsilon;
  args.normed = call.normed;
  args.windows = windows();
  args.overlaps = call.overlaps;
  gpu::sum_over_ranks(on_.handle(), args);
}

// First all sums of ours, since a rank without them must not leave the others in NCCL's.
std::string gpu_rank_sums::check(communicator& host) const {
  std::vector<trial> trials = make_trials(shape_, most_rows_, windows_->rank());
  const std::size_t bytes = bytes_of(shape_, most_rows_);
  const auto normed = memory_.small.allocate(bytes, purpose), weight = memory_.small.allocate(bytes_of(shape_, 1), purpose);
  trial_copies copies(on_, part_.data(), bytes);
  cuda::clear(on_, weight.data(), weight.size());
  gpu::clear_rank_window(on_.handle(), windows());
  on_.synchronize();
  first_objection(host, {}); // all windows are clear
  std::string objection;
  for (trial& t : trials) {
    copies.up(t.part);
    run({part_.data(), nullptr, part_.data(), t.rows, t.normed ? weight.data() : nullptr, 1e-5F, normed.data(), false});
    copies.start_down(t.part.size());
    if (!is_done_within(on_, patience)) {
      objection = "peers' rows did not come within " + std::to_string(patience.count()) + " ms";
      windows_->give_up();
      on_.synchronize();
      break;
    }
    t.ours = copies.down(t.part.size());
  }
  objection = first_objection(host, objection);
  if (!objection.empty()) return objection;
  for (const trial& t : trials) {
    copies.up(t.part);
    group_->all_reduce({part_.data(), t.part.size(), shape_.type}, on_.handle());
    copies.start_down(t.part.size());
    group_->wait(on_.handle());
    if (objection.empty() && copies.down(t.part.size()) != t.ours) {
      objection = "a sum of " + std::to_string(t.rows) + " rows differs from NCCL's";
    }
  }
  return first_objection(host, objection);
}

} // namespace troupe
