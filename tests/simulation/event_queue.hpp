// Virtual time: what happens next is the earliest event; among equals the seed decides. Mailboxes are CAF's: a message is in its
// receiver's queue as soon as it is sent, and the seed decides when the receiver takes its next one.
#pragma once

#include <cstdint>
#include <cstdio>
#include <deque>
#include <functional>
#include <map>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "simulation/random.hpp"

namespace troupe::test {

using simulation::random_source;

// What happened, as a hash and, when asked for, as text. Equal hashes of two runs: they were the same, event for event.
class event_log {
 public:
  explicit event_log(bool keep_text) : keep_text_(keep_text) {}

  void note(std::uint64_t now, const char* what, std::uint64_t a = 0, std::uint64_t b = 0) {
    for (const char* c = what; *c != 0; ++c) mix(static_cast<unsigned char>(*c));
    mix(now);
    mix(a);
    mix(b);
    if (!keep_text_) return;
    char line[160];
    std::snprintf(line, sizeof line, "%10.3f ms  %s %llu %llu", static_cast<double>(now) / 1e6, what, static_cast<unsigned long long>(a),
                  static_cast<unsigned long long>(b));
    lines_.emplace_back(line);
  }
  std::uint64_t hash() const { return hash_; }
  const std::vector<std::string>& lines() const { return lines_; }

 private:
  void mix(std::uint64_t x) { hash_ = (hash_ ^ x) * 1099511628211ULL; }

  bool keep_text_;
  std::uint64_t hash_ = 1469598103934665603ULL;
  std::vector<std::string> lines_;
};

class event_queue {
 public:
  using action = std::function<void()>;

  explicit event_queue(random_source& random) : random_(random) {}

  void after(std::uint64_t delay_ns, action what) {
    events_.emplace(std::tuple(now_ + delay_ns, random_.next(), ++serial_), std::move(what));
  }
  bool step() { // false: nothing is left to happen
    if (events_.empty()) return false;
    auto first = events_.extract(events_.begin());
    now_ = std::get<0>(first.key());
    first.mapped()();
    return true;
  }
  std::uint64_t now() const { return now_; }

 private:
  random_source& random_;
  std::uint64_t now_ = 1'000'000; // never 0, which means "not reached" in sequence times
  std::uint64_t serial_ = 0;
  std::map<std::tuple<std::uint64_t, std::uint64_t, std::uint64_t>, action> events_;
};

class mailbox {
 public:
  mailbox(event_queue& queue, random_source& random, std::uint64_t max_delay_ns)
      : queue_(queue), random_(random), max_delay_ns_(max_delay_ns) {}

  void send(event_queue::action message) {
    messages_.push_back(std::move(message));
    if (messages_.size() == 1) wake();
  }

 private:
  void wake() {
    queue_.after(random_.below(max_delay_ns_ + 1), [this] {
      messages_.front()();
      messages_.pop_front();
      if (!messages_.empty()) wake();
    });
  }

  event_queue& queue_;
  random_source& random_;
  std::uint64_t max_delay_ns_;
  std::deque<event_queue::action> messages_;
};

} // namespace troupe::test
