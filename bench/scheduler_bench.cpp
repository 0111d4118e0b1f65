// What planning costs: CPU time (what else the machine does is no part of it) of schedule() and apply() for steps in which every running
// sequence decodes, over pools of different size. Every 16th step completes a block of every sequence. With drafts, every sequence finds
// seven in every step, and they are rejected.
//   scheduler_bench [STEPS]
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <utility>
#include <vector>

#include "scheduler/scheduler.hpp"

namespace {

using namespace troupe;
constexpr std::int32_t kPrompt = 40;

double cpu_microseconds() {
  timespec t{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
  return static_cast<double>(t.tv_sec) * 1e6 + static_cast<double>(t.tv_nsec) / 1e3;
}

struct figures {
  std::vector<double> schedule, apply; // microseconds of each step

  static double at(std::vector<double>& times, double quantile) {
    std::sort(times.begin(), times.end());
    return times[static_cast<std::size_t>(quantile * static_cast<double>(times.size() - 1))];
  }
};

class runner {
 public:
  runner(std::int32_t sequences, std::int32_t blocks, std::int32_t steps, bool caching, bool drafts)
      : sched_(config(sequences, blocks, caching, drafts)), drafts_(drafts) {
    for (std::int32_t i = 0; i < sequences; ++i) {
      sequence_request r;
      r.id = {static_cast<request_id>(i + 1), 0};
      r.arrival_ns = static_cast<std::uint64_t>(i + 1);
      for (std::int32_t p = 0; p < kPrompt; ++p) r.prompt.push_back(i * 31 + p); // no two prompts are alike
      r.stop.max_tokens = steps + 8;
      if (sched_.add(std::move(r), 0)) std::abort();
    }
    for (int i = 0; i < 3; ++i) step(nullptr); // prefills
  }

  figures run(std::int32_t steps) {
    figures f;
    for (std::int32_t i = 0; i < steps; ++i) step(&f);
    return f;
  }

 private:
  static scheduler_config config(std::int32_t sequences, std::int32_t blocks, bool caching, bool drafts) {
    scheduler_config c;
    c.device = {16, blocks, sequences, sequences * kPrompt, 4096, 1 << 20};
    c.plans_in_flight = 1;
    c.prefix_caching = caching;
    if (drafts) {
      c.device.max_verify_tokens = 8;
      c.speculation = {draft_source::ngram, 7, false};
    }
    return c;
  }

  void step(figures* f) {
    double start = cpu_microseconds();
    const auto plan = sched_.schedule(++now_);
    if (f != nullptr) f->schedule.push_back(cpu_microseconds() - start);
    if (!plan) std::abort();
    step_result result{plan->epoch, plan->step, {}, {}};
    for (const work_item& item : plan->items) {
      slot_output out;
      out.slot = item.slot;
      const std::uint64_t mixed = now_ * 7919 + static_cast<std::uint64_t>(item.slot) * 104729;
      if (item.sample) out.tokens.push_back(static_cast<token_id>(mixed % (drafts_ ? 3 : 1000000)));
      result.outputs.push_back(std::move(out));
    }
    start = cpu_microseconds();
    const auto updates = sched_.apply(result, ++now_);
    if (f != nullptr) f->apply.push_back(cpu_microseconds() - start);
    if (updates.size() != plan->items.size()) std::abort();
  }

  scheduler sched_;
  bool drafts_;
  std::uint64_t now_ = 0;
};

} // namespace

int main(int argc, char** argv) {
  const std::int32_t steps = argc > 1 ? std::max(1, std::atoi(argv[1])) : 1000;
  std::printf("%8s %9s %7s %7s | %28s | %28s\n", "running", "blocks", "cache", "drafts", "schedule() us: median, p99",
              "apply() us: median, p99");
  for (const auto& [caching, drafts] : {std::pair{true, false}, {false, false}, {true, true}}) {
    for (const std::int32_t sequences : {32, 128, 512}) {
      const std::int32_t least = sequences * ((kPrompt + steps + 8) / 16 + 2);
      for (const std::int32_t blocks : {least, least * 8}) {
        figures f = runner(sequences, blocks, steps, caching, drafts).run(steps);
        std::printf("%8d %9d %7s %7s | %19.1f %8.1f | %19.1f %8.1f\n", sequences, blocks, caching ? "on" : "off", drafts ? "on" : "off",
                    f.at(f.schedule, 0.5), f.at(f.schedule, 0.99), f.at(f.apply, 0.5), f.at(f.apply, 0.99));
      }
    }
  }
  return 0;
}
