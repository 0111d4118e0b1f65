// What the ranks of a local group share.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "transport/collective/call.hpp"
#include "transport/collective/call_times.hpp"

namespace troupe {

struct local_part { // what one rank brings to a round
  collective_call call;
  std::byte* data = nullptr;
  std::byte* all = nullptr; // of an all_gather
  bool worked = false;
};

struct local_letter {
  collective_call call;
  std::vector<std::byte> data;
};

struct local_mailbox {
  std::deque<local_letter> letters;
  std::size_t bytes = 0;
};

// Ranks come to a round, do its work, and go on to the next; messages wait in mailboxes.
class local_meeting {
 public:
  local_meeting(int size, std::chrono::milliseconds deadline);

  int size() const { return size_; }
  void collective(int rank, const local_part& mine, const std::string& objection, call_times& times);
  void send(int rank, int peer, const collective_buffer& data, call_times& times);
  void receive(int rank, int peer, const collective_buffer& data, call_times& times);

  // Ends the group for all ranks, unless it has ended.
  void end(group_fault fault) noexcept;
  void leave(int rank) noexcept;

 private:
  using guard = std::unique_lock<std::mutex>;
  static std::size_t index(int rank) { return static_cast<std::size_t>(rank); }
  std::size_t ranks() const { return index(size_); }
  local_mailbox& box(int from, int to) { return mailboxes_[index(from) * ranks() + index(to)]; }

  void end_locked(group_fault fault) noexcept;
  void wake_all() noexcept;
  void wake(int rank);
  [[noreturn]] void raise(guard& lock, int rank);
  template <class Ready, class Missing>
  void wait(guard& lock, int rank, call_times::clock::time_point until, const collective_call& call, Ready ready, Missing missing);
  void spin(guard& lock);
  group_fault absence_of(int peer, int rank, const collective_call& call) const;
  int missing() const;
  void arrive(guard& lock, int rank, const local_part& mine);
  [[noreturn]] void end_at_letter(guard& lock, int rank);
  void work(int slice) noexcept;
  void work_on_slice(guard& lock, int rank);
  void finish_round();

  const int size_;
  const std::chrono::milliseconds deadline_;
  const bool spins_;
  std::atomic<std::uint64_t> changes_{0}; // rises with everything that a waiting rank might wait for

  std::mutex mutex_; // guards all below; parts' memory is also touched by those who are counted in working_
  std::optional<group_fault> fault_;
  std::vector<std::optional<local_part>> parts_; // of this round, by rank
  std::vector<const std::byte*> inputs_;         // [slice][from], of a sum: room that no round has to ask for
  std::vector<bool> gone_;
  std::vector<std::condition_variable> changed_; // one a rank
  std::vector<local_mailbox> mailboxes_;         // [from][to]
  std::size_t letters_ = 0;                      // in all of them
  std::uint64_t round_ = 0;
  int arrived_ = 0;
  int working_ = 0; // ranks that touch others' memory now
  int worked_ = 0;
  call_times::clock::time_point all_there_; // when the last rank came to the round that all have come to
};

} // namespace troupe
