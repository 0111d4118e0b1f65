#include "models/gpu_copied_sums.hpp"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <utility>
#include <vector>

#include "device/cuda/pinned_ring.hpp"
#include "kernels/peer_word_gpu.hpp"
#include "transport/collective/host_exchange.hpp"

namespace troupe {
namespace {

constexpr std::chrono::milliseconds patience{2'000}; // at the start, for a peer that takes part
constexpr const char* purpose = "sums of many rows over GPUs";
constexpr std::uint32_t numbers = 256; // that mark a send, in turn; there is never more than one to be told from others
constexpr std::size_t words = 64;      // bytes between words
constexpr std::int32_t trial_rows = 64;

// A window: [turn][max_rows] rows, then the words by part and turn, then the numbers 1 .. 256, which are this rank's own to send.
std::size_t rows_bytes(const rank_sum_shape& shape) {
  return static_cast<std::size_t>(shape.max_rows) * static_cast<std::size_t>(shape.columns) * 2;
}
std::size_t words_begin(const rank_sum_shape& shape) { return (2 * rows_bytes(shape) + 255) / 256 * 256; }
std::size_t numbers_begin(const rank_sum_shape& shape) { return words_begin(shape) + 4 * words; }
std::size_t window_bytes(const rank_sum_shape& shape) { return numbers_begin(shape) + numbers * sizeof(std::uint32_t); }

std::vector<std::uint32_t> pattern(int rank, std::size_t count, std::uint32_t turn) {
  std::vector<std::uint32_t> values(count);
  for (std::size_t i = 0; i < count; ++i)
    values[i] = static_cast<std::uint32_t>(i) * 2654435761U + static_cast<std::uint32_t>(rank) * 97 + turn;
  return values;
}

} // namespace

std::size_t gpu_copied_sums::planned_bytes(int ranks, const rank_sum_shape& shape) {
  constexpr std::size_t grain = std::size_t{2} << 20; // of shared memory
  return ranks == 2 ? (window_bytes(shape) + grain - 1) / grain * grain : 0;
}

std::unique_ptr<gpu_copied_sums> gpu_copied_sums::open(const gpu_rank& rank, const rank_sum_shape& shape,
                                                       gpu_rank_sums::device_memory memory, const cuda::stream& on, const log_line& log) {
  if (rank.host.tp_size != 2) return nullptr;
  std::string objection;
  std::unique_ptr<gpu_copied_sums> made;
  with_tensor(rank.host, [&](communicator& host) {
    auto windows = cuda::peer_windows::open(host, window_bytes(shape), patience, objection);
    if (!windows) return;
    made.reset(new gpu_copied_sums(rank, shape, memory.ledger, std::move(windows)));
    first_objection(host, {}); // both windows are clear
    objection = first_objection(host, made->exchange_trial(on, memory.small));
    if (!objection.empty()) made.reset();
  });
  if (!made && rank.first() && log) log("NCCL does sums of many rows over the GPUs: " + objection);
  return made;
}

gpu_copied_sums::gpu_copied_sums(const gpu_rank& rank, const rank_sum_shape& shape, cuda::memory_ledger& ledger,
                                 std::unique_ptr<cuda::peer_windows> windows)
    : group_(rank.devices), shape_(shape), ledger_(ledger), windows_(std::move(windows)) {
  ledger_.add(purpose, windows_->held());
  cuda::pinned_ring staging(1, numbers * sizeof(std::uint32_t));
  std::byte* const pinned = staging.next();
  for (std::uint32_t i = 0; i < numbers; ++i) {
    const std::uint32_t number = i + 1;
    std::memcpy(pinned + i * sizeof number, &number, sizeof number);
  }
  std::byte* const mine = windows_->of(windows_->rank());
  cuda::clear(copies_, mine + words_begin(shape_), 4 * words);
  cuda::copy_in(copies_, mine + numbers_begin(shape_), pinned, numbers * sizeof(std::uint32_t));
  copies_.synchronize();
}

gpu_copied_sums::~gpu_copied_sums() {
  windows_->give_up();
  ledger_.remove(purpose, windows_->held());
  if (group_->is_stuck()) { // what is queued may never end, and the process soon will
    [[maybe_unused]] auto* const left = windows_.release();
    return;
  }
  try {
    copies_.synchronize();          // before the windows go
  } catch (const std::exception&) { // the device is lost, and with it what ran there
  }
}

std::size_t gpu_copied_sums::rows_at(const one_sum& sum) const {
  return sum.number % 2 * rows_bytes(shape_) + static_cast<std::size_t>(sum.first) * row_bytes();
}

std::size_t gpu_copied_sums::word_at(std::size_t part, const one_sum& sum) const {
  return words_begin(shape_) + (2 * part + sum.number % 2) * words;
}

// Sends take two places by turns. A place is written anew when the other rank's send of between has come, which it made after it had read
// the place.
void gpu_copied_sums::send(const cuda::stream& on, std::size_t part, std::int32_t first, const std::byte* rows, std::int32_t count) {
  one_sum& sum = sums_[part];
  ++sum.number;
  sum.first = first;
  sum.computed.record(on);
  copies_.wait_for(sum.computed);
  std::byte* const mine = windows_->of(windows_->rank());
  std::byte* const theirs = windows_->of(1 - windows_->rank());
  cuda::copy_across(copies_, theirs + rows_at(sum), rows, static_cast<std::size_t>(count) * row_bytes());
  const std::size_t number = numbers_begin(shape_) + sum.number % numbers * sizeof(std::uint32_t);
  cuda::copy_across(copies_, theirs + word_at(part, sum), mine + number, sizeof(std::uint32_t));
  sum.sent.record(copies_);
}

const std::byte* gpu_copied_sums::receive(const cuda::stream& on, std::size_t part) {
  const one_sum& sum = sums_[part];
  const std::byte* const mine = windows_->of(windows_->rank());
  on.wait_for(sum.sent); // own rows are overwritten by the sum
  gpu::await_word(on.handle(), {reinterpret_cast<const volatile std::uint32_t*>(mine + word_at(part, sum)), sum.number % numbers + 1,
                                windows_->given_up()});
  return mine + rows_at(sum);
}

// Both parts at both turns, with numbers that each rank knows of the other.
std::string gpu_copied_sums::exchange_trial(const cuda::stream& on, cuda::caching_allocator& memory) {
  const std::int32_t rows = std::min(trial_rows, shape_.max_rows / 2);
  const std::size_t bytes = static_cast<std::size_t>(rows) * row_bytes(), count = bytes / sizeof(std::uint32_t);
  const auto scratch = memory.allocate(bytes, purpose);
  cuda::pinned_ring up(1, bytes), down(1, bytes);
  for (std::uint32_t turn = 0; turn < 4; ++turn) {
    std::memcpy(up.next(), pattern(windows_->rank(), count, turn).data(), bytes);
    cuda::copy_in(on, scratch.data(), up.next(), bytes);
    for (const std::size_t part : {0U, 1U}) send(on, part, static_cast<std::int32_t>(part) * rows, scratch.data(), rows);
    for (const std::size_t part : {0U, 1U}) {
      cuda::copy_out(on, down.next(), receive(on, part), bytes);
      if (!on.is_done_within(patience)) {
        give_up();
        on.synchronize();
        return "the other rank's rows did not come within " + std::to_string(patience.count()) + " ms";
      }
      if (std::memcmp(down.next(), pattern(1 - windows_->rank(), count, turn).data(), bytes) != 0)
        return "rows came other than they were sent";
    }
  }
  return {};
}

} // namespace troupe
