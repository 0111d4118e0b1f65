// Speed of the CPU executor alone: tokens per second of prompt processing and of generation for one sequence.
//   executor_bench MODEL [THREADS] [PROMPT_TOKENS] [GENERATED_TOKENS] [ROUNDS]
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <string>
#include <vector>

#include "kernels/linear.hpp"
#include "models/checkpoint.hpp"
#include "models/cpu_executor.hpp"

namespace {

using namespace troupe;
using steady = std::chrono::steady_clock;

double seconds_since(steady::time_point start) { return std::chrono::duration<double>(steady::now() - start).count(); }

struct figures {
  double prompt = 0; // tokens per second
  double generation = 0;
};

class runner {
 public:
  explicit runner(step_executor& executor) : executor_(executor) {}

  figures run(std::int32_t prompt, std::int32_t generated) {
    const executor_info info = executor_.info();
    step_plan plan;
    if (open_) plan.closed = {0};
    open_ = true;
    sampling_params greedy;
    greedy.temperature = 0;
    plan.opened = {{0, prompt, greedy}};
    block_grant grant{0, 0, {}};
    for (std::int32_t i = 0; i * info.block_size < prompt + generated; ++i) grant.blocks.push_back(i);
    plan.grants = {grant};
    plan.items = {{0, work_kind::prefill, 0, prompt, true, std::nullopt}};
    for (std::int32_t i = 0; i < prompt; ++i) plan.tokens.push_back((i * 7919 + 11) % info.vocab_size);
    const auto start = steady::now();
    submit(plan);
    const double prefill = seconds_since(start);
    const auto decode = steady::now();
    for (std::int32_t i = 0; i < generated; ++i) {
      step_plan next;
      next.items = {{0, work_kind::decode, prompt + i, 1, true, std::nullopt}};
      submit(next);
    }
    return {prompt / prefill, generated / seconds_since(decode)};
  }

 private:
  void submit(step_plan& plan) {
    plan.epoch = 1;
    plan.step = ++step_;
    executor_.submit(plan, [](step_outcome outcome) {
      if (const auto* failure = std::get_if<step_failure>(&outcome)) {
        std::fprintf(stderr, "%s\n", failure->reason.c_str());
        std::exit(1);
      }
    });
  }

  step_executor& executor_;
  step_number step_ = 0;
  bool open_ = false;
};

int run(int argc, char** argv) {
  const auto number = [&](int index, std::int32_t otherwise) { return index < argc ? std::atoi(argv[index]) : otherwise; };
  const std::int32_t prompt = number(3, 512), generated = number(4, 128), rounds = number(5, 3);
  cpu_executor_options options;
  options.threads = number(2, 0);
  options.max_batched_tokens = prompt;
  options.kv_bytes = std::size_t{256} << 20;
  const auto start = steady::now();
  const auto executor = make_cpu_executor(std::make_shared<const model_weights>(open_checkpoint(argv[1])->load()), options);
  std::printf("loaded in %.2f s, kernels: %s\n", seconds_since(start), cpu::linear_kernel_name());
  runner bench(*executor);
  figures best;
  for (std::int32_t i = 0; i < rounds; ++i) {
    const figures now = bench.run(prompt, generated);
    std::printf("prompt %8.1f tokens/s   generation %8.1f tokens/s\n", now.prompt, now.generation);
    best = {std::max(best.prompt, now.prompt), std::max(best.generation, now.generation)};
  }
  std::printf("best   %8.1f tokens/s   generation %8.1f tokens/s\n", best.prompt, best.generation);
  return 0;
}

} // namespace

int main(int argc, char** argv) {
  if (argc < 2) {
    std::fprintf(stderr, "usage: executor_bench MODEL [THREADS] [PROMPT_TOKENS] [GENERATED_TOKENS] [ROUNDS]\n");
    return 2;
  }
  try {
    return run(argc, argv);
  } catch (const std::exception& e) {
    std::fprintf(stderr, "%s\n", e.what());
    return 1;
  }
}
