// What one seed means: limits of the device, speeds, clients, and which faults there are.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "core/request.hpp"
#include "core/step.hpp"
#include "scheduler/scheduler.hpp"
#include "simulation/random.hpp"

namespace troupe::test {

constexpr std::int32_t kSimVocab = 97; // at most: every token is an ASCII byte of the byte tokenizer
constexpr std::uint64_t kMs = 1'000'000;

struct client_plan {
  std::uint64_t arrives_ns = 0;
  generation_request request;
  std::optional<std::uint64_t> leaves_ns; // cancels, if it has not ended by then
};

struct fault_rates { // one in so many plans; 0: never
  std::uint64_t step_fails = 0;
  std::uint64_t crash = 0;
  std::uint64_t kill = 0;
  std::uint64_t freeze = 0;
  std::uint64_t late = 0; // beyond the step deadline: the result comes when its epoch is over
  std::uint64_t duplicate = 0;
  std::uint64_t numeric = 0;
  std::uint64_t start_fails = 0;
  std::uint64_t changes = 0; // of the device's program: it is let go and replaced in good order
};

struct scenario {
  executor_info device;
  speculation_config speculation;
  std::int32_t max_queue = 64; // of the registry, and of the scheduler
  std::int32_t plans_in_flight = 2;
  std::int32_t stages = 1;
  std::int32_t max_restarts = 5;
  std::uint64_t step_deadline_ns = 200 * kMs;
  std::uint64_t step_ns = kMs;     // base time of a step
  std::uint64_t token_ns = 50'000; // and per token
  std::uint64_t mail_ns = 100'000; // longest time a message lies in a mailbox
  std::uint64_t quiet_ns = 0;      // no arrival, cancel or fault from here on
  fault_rates faults;
  bool keeps_kv = false; // blocks outlive a device that is killed or let go, mostly
  std::vector<client_plan> clients;
};

scenario make_scenario(std::uint64_t seed);

} // namespace troupe::test
