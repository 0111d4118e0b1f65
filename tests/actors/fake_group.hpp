// Ranks that need each other: fake devices (tests/actors/fake_device.hpp) with a barrier over loopback sockets in every step, so that a
// rank that is dead, frozen or late is missed by the others, in threads and in processes alike.
#pragma once

#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "actors/serving.hpp"
#include "tests/actors/fake_device.hpp"

namespace troupe::test {

// Another rank did not come.
struct missed_peer : std::runtime_error {
  using std::runtime_error::runtime_error;
};

class barrier_socket {
 public:
  explicit barrier_socket(int number = -1) : number_(number) {}
  ~barrier_socket() {
    if (number_ >= 0) close(number_);
  }
  barrier_socket(barrier_socket&& other) noexcept : number_(std::exchange(other.number_, -1)) {}
  barrier_socket& operator=(barrier_socket&& other) noexcept {
    std::swap(number_, other.number_);
    return *this;
  }
  int number() const { return number_; }

  void put(std::int64_t x) const {
    if (send(number_, &x, sizeof x, MSG_NOSIGNAL) != sizeof x) throw missed_peer("a peer is gone");
  }
  std::int64_t get(std::chrono::steady_clock::time_point until) const {
    std::int64_t x = 0;
    await(until);
    if (recv(number_, &x, sizeof x, MSG_WAITALL) != sizeof x) throw missed_peer("a peer is gone");
    return x;
  }
  void await(std::chrono::steady_clock::time_point until) const {
    pollfd wanted{number_, POLLIN, 0};
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(until - std::chrono::steady_clock::now()).count();
    if (poll(&wanted, 1, static_cast<int>(std::max<std::int64_t>(left, 0))) != 1) throw missed_peer("a peer did not come in time");
  }

 private:
  int number_;
};

// Rank 0 listens and says where; the others connect. All ranks pass each step together, or none does.
class step_barrier {
 public:
  step_barrier(const actors::rank_start& place, const actors::publish_rendezvous& publish, std::chrono::milliseconds limit)
      : limit_(limit), rank_(place.rank) {
    const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(5);
    sockaddr_in at{};
    at.sin_family = AF_INET;
    at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    barrier_socket door(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    if (rank_ > 0) {
      at.sin_port = htons(static_cast<std::uint16_t>(std::stoi(place.rendezvous)));
      if (connect(door.number(), reinterpret_cast<sockaddr*>(&at), sizeof at) != 0) throw missed_peer("rank 0 is not there");
      door.put(rank_);
      peers_.push_back(std::move(door));
      return;
    }
    socklen_t size = sizeof at;
    if (bind(door.number(), reinterpret_cast<sockaddr*>(&at), sizeof at) != 0 || listen(door.number(), 64) != 0 ||
        getsockname(door.number(), reinterpret_cast<sockaddr*>(&at), &size) != 0) {
      throw std::runtime_error("no port on the loopback interface");
    }
    publish(std::to_string(ntohs(at.sin_port)));
    while (static_cast<std::int32_t>(peers_.size()) < place.size - 1) {
      door.await(until);
      peers_.emplace_back(accept4(door.number(), nullptr, nullptr, SOCK_CLOEXEC));
      peers_.back().get(until);
    }
  }

  void pass(std::int64_t step) const {
    const auto until = std::chrono::steady_clock::now() + limit_;
    if (rank_ > 0) peers_.front().put(step);
    for (const barrier_socket& peer : peers_) {
      if (peer.get(until) != step) throw std::logic_error("ranks work on different steps");
    }
    if (rank_ == 0) {
      for (const barrier_socket& peer : peers_) peer.put(step);
    }
  }

 private:
  std::chrono::milliseconds limit_;
  std::int32_t rank_;
  std::vector<barrier_socket> peers_; // of rank 0: all others; else rank 0
};

// Switches for one rank of one replica; shared by all executors of a test. Each fault strikes once, when that rank has done so many steps
// more; negative: never.
struct group_faults {
  std::atomic<int> replica{0}, rank{0};
  std::atomic<std::int64_t> fail_in{-1}; // throws
  std::atomic<std::int64_t> hang_in{-1}; // stands still before the others are met, until release()
  std::atomic<std::int64_t> late_in{-1}; // ... after they were met
  std::atomic<int> slow_us{0};           // every step
  std::atomic<int> starts_to_fail{0};    // after the first generation
  std::atomic<int> slow_start_ms{0};
  std::atomic<bool> other_limits{false};
  std::atomic<int> missing_blocks{0};
  std::atomic<int> gone{0};                 // executors that were destroyed
  std::atomic<std::int64_t> steps[8][8]{};  // by replica and rank
  std::atomic<std::uint64_t> generation{0}; // the latest that was started
  std::chrono::milliseconds barrier_limit{60'000};

  bool meets(const actors::rank_start& place) const { return place.replica == replica && place.rank == rank; }
  void hang() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return released_; });
  }
  void release() {
    const std::lock_guard lock(mutex_);
    released_ = true;
    changed_.notify_all();
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool released_ = false;
};

class fake_rank final : public step_executor {
 public:
  fake_rank(const actors::rank_start& place, std::int32_t leader, executor_info info, std::shared_ptr<device_faults> device,
            std::shared_ptr<group_faults> faults, const actors::publish_rendezvous& publish)
      : place_(place), leader_(leader), info_(info), faults_(std::move(faults)), inner_(info, std::move(device)) {
    faults_->generation = place.generation;
    if (faults_->meets(place)) misbehave_at_start();
    barrier_.emplace(place, publish, faults_->barrier_limit);
  }
  ~fake_rank() override { ++faults_->gone; }

  executor_info info() const override { return info_; }

  void submit(const step_plan& plan, deliver_fn deliver) override {
    ++faults_->steps[place_.replica][place_.rank];
    const bool mine = faults_->meets(place_);
    const auto strikes = [&](std::atomic<std::int64_t>& in) { return mine && in >= 0 && in-- == 0; };
    if (mine && faults_->slow_us > 0) std::this_thread::sleep_for(std::chrono::microseconds(faults_->slow_us));
    if (strikes(faults_->fail_in)) throw device_error("the fake rank failed on demand");
    if (strikes(faults_->hang_in)) faults_->hang();
    try {
      barrier_->pass(static_cast<std::int64_t>(plan.step));
    } catch (const missed_peer& e) {
      return deliver(step_failure{e.what(), true, collective_fault::deadline});
    }
    if (strikes(faults_->late_in)) faults_->hang();
    inner_.submit(plan, [&](step_outcome outcome) {
      if (auto* result = std::get_if<step_result>(&outcome)) {
        if (place_.rank != leader_) result->outputs.clear();
        result->times.collective_wait_ns = 1000;
        result->times.collective_move_ns = 500;
      }
      deliver(std::move(outcome));
    });
  }

 private:
  void misbehave_at_start() {
    std::this_thread::sleep_for(std::chrono::milliseconds(faults_->slow_start_ms));
    if (place_.generation > 1 && faults_->starts_to_fail > 0) {
      --faults_->starts_to_fail;
      throw std::runtime_error("the fake rank does not start");
    }
    if (faults_->other_limits) ++info_.max_model_len;
    info_.num_blocks -= faults_->missing_blocks;
  }

  actors::rank_start place_;
  std::int32_t leader_;
  executor_info info_;
  std::shared_ptr<group_faults> faults_;
  fake_device inner_;
  std::optional<step_barrier> barrier_;
};

} // namespace troupe::test
