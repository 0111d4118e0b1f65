#include "transport/collective/local_meeting.hpp"

#include <algorithm>
#include <cstring>
#include <span>
#include <thread>

#include "transport/collective/sum.hpp"

namespace troupe {
namespace {

using clock = call_times::clock;

constexpr std::size_t kAloneBytes = 64 << 10;   // of all ranks together: below, the last to come does the work of all
constexpr std::size_t kMailboxBytes = 64 << 20; // that wait for a receiver; one larger message may
constexpr auto kSpin = std::chrono::microseconds(10);

} // namespace

local_meeting::local_meeting(int size, std::chrono::milliseconds deadline)
    : size_(size),
      deadline_(deadline),
      spins_(size <= static_cast<int>(std::thread::hardware_concurrency())),
      parts_(ranks()),
      inputs_(ranks() * ranks()),
      gone_(ranks()),
      changed_(ranks()),
      mailboxes_(ranks() * ranks()) {}

void local_meeting::end(group_fault fault) noexcept {
  const std::lock_guard lock(mutex_);
  end_locked(std::move(fault));
}

void local_meeting::leave(int rank) noexcept {
  const std::lock_guard lock(mutex_);
  gone_[index(rank)] = true;
  wake_all();
}

void local_meeting::end_locked(group_fault fault) noexcept {
  if (!fault_) fault_ = std::move(fault);
  wake_all();
}

void local_meeting::wake_all() noexcept {
  changes_.fetch_add(1, std::memory_order_release);
  for (auto& one : changed_) one.notify_all();
}

void local_meeting::wake(int rank) {
  changes_.fetch_add(1, std::memory_order_release);
  changed_[index(rank)].notify_all();
}

// Nobody's memory may go while others still work on it.
void local_meeting::raise(guard& lock, int rank) {
  changed_[index(rank)].wait(lock, [&] { return working_ == 0; });
  fault_->raise();
}

// Returns when ready() holds; raises the group's fault, or makes one when `until` passes or the peer that missing() names has left.
template <class Ready, class Missing>
void local_meeting::wait(guard& lock, int rank, clock::time_point until, const collective_call& call, Ready ready, Missing missing) {
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

void local_meeting::spin(guard& lock) {
  const auto seen = changes_.load(std::memory_order_acquire);
  lock.unlock();
  const auto until = clock::now() + kSpin;
  while (changes_.load(std::memory_order_acquire) == seen && clock::now() < until) {
  }
  lock.lock();
}

group_fault local_meeting::absence_of(int peer, int rank, const collective_call& call) const {
  const bool gone = gone_[index(peer)];
  return {gone ? collective_fault::peer_lost : collective_fault::deadline, peer,
          "rank " + std::to_string(peer) +
              (gone ? " has left the group" : " did not come within " + std::to_string(deadline_.count()) + " ms") + "; rank " +
              std::to_string(rank) + " waited for it in " + describe(call)};
}

// Who keeps this round from going on: a rank that has left, or else the first that has not come, or has not done its part.
int local_meeting::missing() const {
  int first = -1;
  for (int rank = 0; rank < size_; ++rank) {
    const auto& one = parts_[index(rank)];
    if (one && (arrived_ < size_ || one->worked)) continue;
    if (gone_[index(rank)]) return rank;
    if (first < 0) first = rank;
  }
  return first;
}

void local_meeting::arrive(guard& lock, int rank, const local_part& mine) {
  for (int other = 0; other < size_; ++other) {
    const auto& theirs = parts_[index(other)];
    if (!theirs || theirs->call == mine.call) continue;
    end_locked(mismatch_of(rank, mine.call, other, theirs->call));
    raise(lock, rank);
  }
  parts_[index(rank)] = mine;
  if (++arrived_ < size_) return;
  if (letters_ > 0) end_at_letter(lock, rank);
  all_there_ = clock::now();
  if (bytes_of({nullptr, mine.call.count, mine.call.type}) * ranks() <= kAloneBytes) {
    for (int slice = 0; slice < size_; ++slice) work(slice);
    finish_round();
  } else {
    wake_all();
  }
}

// All ranks have come to a collective, and one of them has not received a message that was sent to it before.
void local_meeting::end_at_letter(guard& lock, int rank) {
  for (int from = 0; from < size_; ++from) {
    for (int to = 0; to < size_; ++to) {
      if (!box(from, to).letters.empty()) end_locked(mismatch_of(to, parts_[index(to)]->call, from, box(from, to).letters.front().call));
    }
  }
  raise(lock, rank);
}

// Slices of different ranks are written at the same time: no two touch the same bytes. Nothing here may fail: the others would go on with
// memory whose owner has left.
void local_meeting::work(int slice) noexcept {
  const local_part& own = *parts_[index(slice)];
  const std::size_t bytes = bytes_of({nullptr, own.call.count, own.call.type});
  if (own.call.op == collective_op::broadcast && slice != own.call.root && bytes > 0) {
    std::memcpy(own.data, parts_[index(own.call.root)]->data, bytes);
  } else if (own.call.op == collective_op::all_gather && bytes > 0) {
    for (std::size_t from = 0; from < ranks(); ++from) {
      std::byte* to = own.all + from * bytes;
      if (to != parts_[from]->data) std::memcpy(to, parts_[from]->data, bytes); // equal: gathered in place
    }
  } else if (own.call.op == collective_op::all_reduce) {
    const std::size_t begin = slice_begin(own.call.count, index(slice), ranks());
    const std::size_t count = slice_begin(own.call.count, index(slice) + 1, ranks()) - begin;
    const std::size_t offset = row_bytes(own.call.type, begin);
    const std::span inputs(inputs_.data() + index(slice) * ranks(), ranks());
    for (std::size_t from = 0; from < ranks(); ++from) inputs[from] = parts_[from]->data + offset;
    std::byte* first = parts_[0]->data + offset;
    sum_in_rank_order(own.call.type, inputs, first, count);
    for (std::size_t to = 1; to < ranks() && count > 0; ++to)
      std::memcpy(parts_[to]->data + offset, first, row_bytes(own.call.type, count));
  }
}

void local_meeting::work_on_slice(guard& lock, int rank) {
  ++working_;
  lock.unlock();
  work(rank);
  lock.lock();
  --working_;
  parts_[index(rank)]->worked = true;
  if (fault_) wake_all(); // somebody may wait to leave
  if (++worked_ == size_ && !fault_) finish_round();
}

void local_meeting::finish_round() {
  std::fill(parts_.begin(), parts_.end(), std::nullopt);
  arrived_ = worked_ = 0;
  ++round_;
  wake_all();
}

void local_meeting::collective(int rank, const local_part& mine, const std::string& objection, call_times& times) {
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
  if (!passed()) {
    work_on_slice(lock, rank);
    wait(lock, rank, until, mine.call, passed, [&] { return missing(); });
  }
  lock.unlock();
  times.add(bytes_of({nullptr, mine.call.count, mine.call.type}), begin, all_there);
}

void local_meeting::send(int rank, int peer, const collective_buffer& data, call_times& times) {
  const auto begin = clock::now();
  const collective_call call{collective_op::message, data.type, data.count, rank};
  const std::size_t bytes = bytes_of(data);
  local_letter sent{call, std::vector<std::byte>(bytes)};
  if (bytes > 0) std::memcpy(sent.data.data(), data.data, bytes);
  guard lock(mutex_);
  local_mailbox& to = box(rank, peer);
  wait(
      lock, rank, begin + deadline_, call, [&] { return to.letters.empty() || to.bytes + bytes <= kMailboxBytes; }, [&] { return peer; });
  const auto room = clock::now();
  to.bytes += bytes;
  ++letters_;
  to.letters.push_back(std::move(sent));
  wake(peer);
  lock.unlock();
  times.add(bytes, begin, room);
}

void local_meeting::receive(int rank, int peer, const collective_buffer& data, call_times& times) {
  const auto begin = clock::now();
  const collective_call call{collective_op::message, data.type, data.count, peer};
  guard lock(mutex_);
  local_mailbox& from = box(peer, rank);
  wait(
      lock, rank, begin + deadline_, call, [&] { return !from.letters.empty(); }, [&] { return peer; });
  const auto there = clock::now();
  if (from.letters.front().call != call) {
    end_locked(mismatch_of(rank, call, peer, from.letters.front().call));
    raise(lock, rank);
  }
  const local_letter taken = std::move(from.letters.front());
  from.letters.pop_front();
  from.bytes -= taken.data.size();
  --letters_;
  wake(peer);
  lock.unlock();
  if (!taken.data.empty()) std::memcpy(data.data, taken.data.data(), taken.data.size());
  times.add(taken.data.size(), begin, there);
}

} // namespace troupe
