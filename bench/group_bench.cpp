// What groups of ranks on this machine's CPU do under the real scheduler: tokens per second of generation, all sequences at once.
//   group_bench MODEL SEQUENCES GENERATED TPxPP[:THREADS[:STAGES]]...
// THREADS is of each rank (1 unless given), STAGES what the scheduler is told (PP unless given; 1: all sequences in every plan).
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <deque>
#include <exception>
#include <future>
#include <memory>
#include <stdexcept>
#include <string>
#include <utility>

#include "core/clock.hpp"
#include "models/checkpoint.hpp"
#include "models/group_executor.hpp"
#include "scheduler/scheduler.hpp"

namespace {

using namespace troupe;
using steady = std::chrono::steady_clock;

constexpr std::int32_t kPrompt = 32;
constexpr std::int32_t kRounds = 3;

struct shape {
  int tp_size = 1, stages = 1, threads = 1, planned_stages = 1;
};

shape parse(const char* text) {
  shape s;
  const int read = std::sscanf(text, "%dx%d:%d:%d", &s.tp_size, &s.stages, &s.threads, &s.planned_stages);
  if (read < 2) throw std::invalid_argument(std::string(text) + " is no TPxPP[:THREADS[:STAGES]]");
  if (read < 4) s.planned_stages = s.stages;
  return s;
}

std::future<step_result> submit(step_executor& executor, const step_plan& plan) {
  auto promised = std::make_shared<std::promise<step_result>>();
  executor.submit(plan, [promised](step_outcome outcome) {
    if (const auto* failure = std::get_if<step_failure>(&outcome)) {
      promised->set_exception(std::make_exception_ptr(std::runtime_error(failure->reason)));
    } else {
      promised->set_value(std::get<step_result>(std::move(outcome)));
    }
  });
  return promised->get_future();
}

// Tokens per second, prompts included in the time.
double run(step_executor& executor, const shape& s, std::int32_t sequences, std::int32_t generated, epoch_number epoch) {
  scheduler_config config;
  config.device = executor.info();
  config.stages = s.planned_stages;
  config.plans_in_flight = s.stages + 1;
  scheduler sched(config);
  for (epoch_number i = 1; i < epoch; ++i) sched.device_lost(0, loss_cause::killed); // the executor has seen the epochs before
  for (std::int32_t i = 0; i < sequences; ++i) {
    sequence_request r;
    r.id = {static_cast<request_id>(i) + 1, 0};
    r.arrival_ns = static_cast<std::uint64_t>(i) + 1;
    for (std::int32_t p = 0; p < kPrompt; ++p) r.prompt.push_back((i * 31 + p * 7919 + 11) % config.device.vocab_size);
    r.sampling.temperature = 0;
    r.stop.max_tokens = generated;
    if (auto refused = sched.add(std::move(r), now_ns())) throw std::runtime_error(refused->message);
  }
  const auto start = steady::now();
  std::deque<std::future<step_result>> flying;
  for (;;) {
    while (const auto plan = sched.schedule(now_ns())) flying.push_back(submit(executor, *plan));
    if (flying.empty()) break;
    sched.apply(flying.front().get(), now_ns());
    flying.pop_front();
  }
  return sequences * generated / std::chrono::duration<double>(steady::now() - start).count();
}

int bench(int argc, char** argv) {
  const auto weights = std::make_shared<const model_weights>(open_checkpoint(argv[1])->load());
  const std::int32_t sequences = std::stoi(argv[2]), generated = std::stoi(argv[3]);
  for (int i = 4; i < argc; ++i) {
    const shape s = parse(argv[i]);
    cpu_executor_options options;
    options.threads = s.threads;
    options.max_num_seqs = sequences;
    options.kv_bytes = std::size_t{256} << 20;
    const auto executor = make_cpu_group_executor(weights, options, s.tp_size, s.stages, std::chrono::seconds(60));
    double best = 0;
    for (epoch_number round = 1; round <= kRounds; ++round) best = std::max(best, run(*executor, s, sequences, generated, round));
    std::printf("tp %d, pp %d, %d threads each, planned for %d stages: %8.1f tokens/s\n", s.tp_size, s.stages, s.threads, s.planned_stages,
                best);
  }
  return 0;
}

} // namespace

int main(int argc, char** argv) {
  if (argc < 5) {
    std::fprintf(stderr, "usage: group_bench MODEL SEQUENCES GENERATED TPxPP[:THREADS[:STAGES]]...\n");
    return 2;
  }
  try {
    return bench(argc, argv);
  } catch (const std::exception& e) {
    std::fprintf(stderr, "%s\n", e.what());
    return 1;
  }
}
