#include "transport/collective/local_group.hpp"

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <utility>

#include "transport/collective/call.hpp"
#include "transport/collective/call_times.hpp"
#include "transport/collective/sum.hpp"

namespace troupe {
namespace {

using clock = call_times::clock;

constexpr std::size_t kAloneBytes = 64 << 10;   // of all ranks together: below, the last to come does the work of all
constexpr std::size_t kMailboxBytes = 64 << 20; // that wait for a receiver; one larger message may
constexpr std::size_t kSliceElements = 64;      // slices begin at multiples of this
constexpr auto kSpin = std::chrono::microseconds(10);

struct part {
  collective_call call;
  std::byte* data = nullptr;
  std::byte* all = nullptr; // of an all_gather
  bool worked = false;
};

struct letter {
  collective_call call;
  std::vector<std::byte> data;
};

struct mailbox {
  std::deque<letter> letters;
  std::size_t bytes = 0;
};

class local_group {
 public:
  local_group(int size, std::chrono::milliseconds deadline)
      : size_(size),
        deadline_(deadline),
        spins_(size <= static_cast<int>(std::thread::hardware_concurrency())),
        parts_(ranks()),
        gone_(ranks()),
        changed_(ranks()),
        mailboxes_(ranks() * ranks()) {}

  int size() const { return size_; }
  void collective(int rank, const part& mine, const std::string& objection, call_times& times);
  void send(int rank, int peer, const collective_buffer& data, call_times& times);
  void receive(int rank, int peer, const collective_buffer& data, call_times& times);

  void end(group_fault fault) noexcept {
    const std::lock_guard lock(mutex_);
    end_locked(std::move(fault));
  }

  void leave(int rank) noexcept {
    const std::lock_guard lock(mutex_);
    gone_[index(rank)] = true;
    wake_all();
  }

 private:
  using guard = std::unique_lock<std::mutex>;
  static std::size_t index(int rank) { return static_cast<std::size_t>(rank); }
  std::size_t ranks() const { return index(size_); }
  mailbox& box(int from, int to) { return mailboxes_[index(from) * ranks() + index(to)]; }

  void end_locked(group_fault fault) noexcept {
    if (!fault_) fault_ = std::move(fault);
    wake_all();
  }

  void wake_all() noexcept {
    changes_.fetch_add(1, std::memory_order_release);
    for (auto& one : changed_) one.notify_all();
  }

  void wake(int rank) {
    changes_.fetch_add(1, std::memory_order_release);
    changed_[index(rank)].notify_all();
  }

  // Nobody's memory may go while others still work on it.
  [[noreturn]] void raise(guard& lock, int rank) {
    changed_[index(rank)].wait(lock, [&] { return working_ == 0; });
    fault_->raise();
  }

  // Returns when ready() holds; raises the group's fault, or makes one when `until` passes or the peer that missing() names has left.
  template <class Ready, class Missing>
  void wait(guard& lock, int rank, clock::time_point until, const collective_call& call, Ready ready, Missing missing) {
    if (spins_ && !fault_ && !ready()) spin(lock);
    for (bool late = false;;) {
      if (fault_) raise(lock, rank);
      if (ready()) return;
      const int peer = missing();
      if (late || gone_[index(peer)]) {
        end_locked(absence_of(peer, rank, call));
      } else {
        late = changed_[index(rank)].wait_until(lock, until) == std::cv_status::timeout;
      }
    }
  }

  group_fault absence_of(int peer, int rank, const collective_call& call) const {
    const bool gone = gone_[index(peer)];
    return {gone ? collective_fault::peer_lost : collective_fault::deadline, peer,
            "rank " + std::to_string(peer) +
                (gone ? " has left the group" : " did not come within " + std::to_string(deadline_.count()) + " ms") + "; rank " +
                std::to_string(rank) + " waited for it in " + describe(call)};
  }

  void spin(guard& lock) {
    const auto seen = changes_.load(std::memory_order_acquire);
    lock.unlock();
    const auto until = clock::now() + kSpin;
    while (changes_.load(std::memory_order_acquire) == seen && clock::now() < until) {
    }
    lock.lock();
  }

  void arrive(guard& lock, int rank, const part& mine);
  void work(int slice) const;
  void work_on_slice(guard& lock, int rank);
  void finish_round();
  // Who keeps this round from going on: a rank that has left, or else the first that has not come, or has not done its part.
  int missing() const {
    const auto done = [this](const auto& one) { return one && (arrived_ < size_ || one->worked); };
    int first = -1;
    for (int rank = 0; rank < size_; ++rank) {
      if (done(parts_[index(rank)])) continue;
      if (gone_[index(rank)]) return rank;
      if (first < 0) first = rank;
    }
    return first;
  }

  const int size_;
  const std::chrono::milliseconds deadline_;
  const bool spins_;
  std::atomic<std::uint64_t> changes_{0}; // rises with everything that a waiting rank might wait for

  std::mutex mutex_; // guards all below; parts' memory is also touched by those who are counted in working_
  std::optional<group_fault> fault_;
  std::vector<std::optional<part>> parts_; // of this round, by rank
  std::vector<bool> gone_;
  std::vector<std::condition_variable> changed_; // one a rank
  std::vector<mailbox> mailboxes_;               // [from][to]
  std::uint64_t round_ = 0;
  int arrived_ = 0;
  int working_ = 0; // ranks that touch others' memory now
  int worked_ = 0;
  int last_ = 0; // who came last to the round that all have come to, and when
  clock::time_point all_there_;
};

void local_group::arrive(guard& lock, int rank, const part& mine) {
  for (int other = 0; other < size_; ++other) {
    const auto& theirs = parts_[index(other)];
    if (!theirs || theirs->call == mine.call) continue;
    end_locked(mismatch_of(rank, mine.call, other, theirs->call));
    raise(lock, rank);
  }
  parts_[index(rank)] = mine;
  if (++arrived_ < size_) return;
  last_ = rank;
  all_there_ = clock::now();
  if (bytes_of({nullptr, mine.call.count, mine.call.type}) * ranks() <= kAloneBytes) {
    for (int slice = 0; slice < size_; ++slice) work(slice);
    finish_round();
  } else {
    wake_all();
  }
}

// Slices of different ranks are written at the same time: no two touch the same bytes.
void local_group::work(int slice) const {
  const part& own = *parts_[index(slice)];
  const std::size_t bytes = bytes_of({nullptr, own.call.count, own.call.type});
  if (own.call.op == collective_op::broadcast && slice != own.call.root && bytes > 0) {
    std::memcpy(own.data, parts_[index(own.call.root)]->data, bytes);
  } else if (own.call.op == collective_op::all_gather && bytes > 0) {
    for (std::size_t from = 0; from < ranks(); ++from) std::memmove(own.all + from * bytes, parts_[from]->data, bytes);
  } else if (own.call.op == collective_op::all_reduce) {
    const auto edge = [&](std::size_t n) {
      return n == ranks() ? own.call.count : own.call.count * n / ranks() / kSliceElements * kSliceElements;
    };
    const std::size_t begin = edge(index(slice));
    const std::size_t count = edge(index(slice) + 1) - begin;
    const std::size_t offset = row_bytes(own.call.type, begin);
    std::vector<const std::byte*> inputs;
    for (const auto& one : parts_) inputs.push_back(one->data + offset);
    std::byte* first = parts_[0]->data + offset;
    sum_in_rank_order(own.call.type, inputs, first, count);
    for (std::size_t to = 1; to < ranks() && count > 0; ++to)
      std::memcpy(parts_[to]->data + offset, first, row_bytes(own.call.type, count));
  }
}

void local_group::work_on_slice(guard& lock, int rank) {
  ++working_;
  lock.unlock();
  work(rank);
  lock.lock();
  --working_;
  parts_[index(rank)]->worked = true;
  if (fault_) wake_all(); // somebody may wait to leave
  if (++worked_ == size_ && !fault_) finish_round();
}

void local_group::finish_round() {
  std::fill(parts_.begin(), parts_.end(), std::nullopt);
  arrived_ = worked_ = 0;
  ++round_;
  wake_all();
}

void local_group::collective(int rank, const part& mine, const std::string& objection, call_times& times) {
  const auto begin = clock::now();
  const auto until = begin + deadline_;
  guard lock(mutex_);
  if (fault_) raise(lock, rank);
  if (!objection.empty()) {
    end_locked({collective_fault::mismatch, rank, "rank " + std::to_string(rank) + ": " + objection});
    raise(lock, rank);
  }
  const auto round = round_;
  arrive(lock, rank, mine);
  const auto passed = [&] { return round_ != round; };
  wait(
      lock, rank, until, mine.call, [&] { return passed() || arrived_ == size_; }, [&] { return missing(); });
  const auto all_there = all_there_;
  const int latest = last_ == rank ? -1 : last_;
  if (!passed()) {
    work_on_slice(lock, rank);
    wait(lock, rank, until, mine.call, passed, [&] { return missing(); });
  }
  lock.unlock();
  times.add(bytes_of({nullptr, mine.call.count, mine.call.type}), begin, all_there, latest);
}

void local_group::send(int rank, int peer, const collective_buffer& data, call_times& times) {
  const auto begin = clock::now();
  const collective_call call{collective_op::message, data.type, data.count, rank};
  const std::size_t bytes = bytes_of(data);
  letter sent{call, std::vector<std::byte>(bytes)};
  if (bytes > 0) std::memcpy(sent.data.data(), data.data, bytes);
  guard lock(mutex_);
  mailbox& to = box(rank, peer);
  wait(
      lock, rank, begin + deadline_, call, [&] { return to.letters.empty() || to.bytes + bytes <= kMailboxBytes; }, [&] { return peer; });
  const auto room = clock::now();
  to.bytes += bytes;
  to.letters.push_back(std::move(sent));
  wake(peer);
  lock.unlock();
  times.add(bytes, begin, room, peer);
}

void local_group::receive(int rank, int peer, const collective_buffer& data, call_times& times) {
  const auto begin = clock::now();
  const collective_call call{collective_op::message, data.type, data.count, peer};
  guard lock(mutex_);
  mailbox& from = box(peer, rank);
  wait(
      lock, rank, begin + deadline_, call, [&] { return !from.letters.empty(); }, [&] { return peer; });
  const auto there = clock::now();
  if (from.letters.front().call != call) {
    end_locked(mismatch_of(rank, call, peer, from.letters.front().call));
    raise(lock, rank);
  }
  const letter taken = std::move(from.letters.front());
  from.letters.pop_front();
  from.bytes -= taken.data.size();
  wake(peer);
  lock.unlock();
  if (!taken.data.empty()) std::memcpy(data.data, taken.data.data(), taken.data.size());
  times.add(taken.data.size(), begin, there, peer);
}

class local_communicator final : public communicator {
 public:
  local_communicator(std::shared_ptr<local_group> group, int rank) : group_(std::move(group)), rank_(rank), times_(group_->size()) {}
  ~local_communicator() override { group_->leave(rank_); }

  int rank() const override { return rank_; }
  int size() const override { return group_->size(); }

  void all_reduce(collective_buffer data, collective_stream) override {
    collective({{collective_op::all_reduce, data.type, data.count, 0}, bytes(data)}, objection_to_sum(data));
  }
  void all_gather(collective_buffer mine, collective_buffer all, collective_stream) override {
    collective({{collective_op::all_gather, mine.type, mine.count, 0}, bytes(mine), bytes(all)}, objection_to_gather(mine, all, size()));
  }
  void broadcast(collective_buffer data, int root, collective_stream) override {
    collective({{collective_op::broadcast, data.type, data.count, root}, bytes(data)}, objection_to_root(root, size()));
  }
  void send(collective_buffer data, int peer, collective_stream) override {
    check_peer(peer);
    group_->send(rank_, peer, data, times_);
  }
  void receive(collective_buffer data, int peer, collective_stream) override {
    check_peer(peer);
    group_->receive(rank_, peer, data, times_);
  }

  void abort(std::string_view reason) noexcept override { group_->end(abort_of(rank_, reason)); }
  collective_times take_times() override { return times_.take(); }

 private:
  static std::byte* bytes(const collective_buffer& buffer) { return static_cast<std::byte*>(buffer.data); }
  void collective(const part& mine, const std::string& objection) { group_->collective(rank_, mine, objection, times_); }
  void check_peer(int peer) const {
    const std::string objection = objection_to_peer(peer, rank_, size());
    if (objection.empty()) return;
    group_->end({collective_fault::mismatch, rank_, objection});
    throw collective_error(collective_fault::mismatch, rank_, objection);
  }

  const std::shared_ptr<local_group> group_;
  const int rank_;
  call_times times_;
};

} // namespace

std::vector<std::unique_ptr<communicator>> make_local_group(int size, std::chrono::milliseconds deadline) {
  const auto group = std::make_shared<local_group>(size, deadline);
  std::vector<std::unique_ptr<communicator>> ends;
  for (int rank = 0; rank < size; ++rank) ends.push_back(std::make_unique<local_communicator>(group, rank));
  return ends;
}

} // namespace troupe
