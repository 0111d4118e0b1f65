// Greedy tokens of a real checkpoint on the GPU and on the CPU with weights as floats; where they part, by what margin. Exits with 1 where
// a margin is no near tie. Usage: greedy_parity MODEL PROMPTS TOKENS [bf16|f16], a prompt a line.
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <fstream>
#include <future>
#include <string>
#include <vector>

#include "device/cpu/host_limits.hpp"
#include "models/checkpoint.hpp"
#include "models/cpu_executor.hpp"
#include "models/gpu_executor.hpp"
#include "models/widened_weights.hpp"
#include "tokenizer/tokenizer.hpp"

namespace troupe {
namespace {

using tokens = std::vector<token_id>;

struct continuation {
  tokens drawn;
  std::vector<token_scores> scores;
};

step_result compute(step_executor& executor, const step_plan& plan) {
  std::promise<step_outcome> done;
  executor.submit(plan, [&](step_outcome o) { done.set_value(std::move(o)); });
  step_outcome outcome = done.get_future().get();
  if (const auto* failure = std::get_if<step_failure>(&outcome)) throw std::runtime_error(failure->reason);
  return std::get<step_result>(std::move(outcome));
}

// All prompts together, a prompt a step, then decodes.
std::vector<continuation> continue_all(step_executor& executor, const std::vector<tokens>& prompts, std::size_t count) {
  std::vector<continuation> out(prompts.size());
  step_plan plan;
  plan.epoch = 1;
  block_id next_block = 0;
  sampling_params greedy;
  greedy.temperature = 0;
  greedy.top_logprobs = 2;
  const auto run = [&] {
    ++plan.step;
    for (const slot_output& o : compute(executor, plan).outputs) {
      continuation& mine = out[static_cast<std::size_t>(o.slot)];
      mine.drawn.insert(mine.drawn.end(), o.tokens.begin(), o.tokens.end());
      mine.scores.insert(mine.scores.end(), o.scores.begin(), o.scores.end());
    }
    plan = step_plan{plan.epoch, plan.step, {}, {}, {}, {}, {}, {}};
  };
  for (std::size_t i = 0; i < prompts.size(); ++i) {
    const auto slot = static_cast<slot_id>(i);
    const auto length = static_cast<std::int32_t>(prompts[i].size());
    plan.opened.push_back({slot, length, greedy});
    block_grant grant{slot, 0, {}};
    for (std::size_t at = 0; at < prompts[i].size() + count; at += 16) grant.blocks.push_back(next_block++);
    plan.grants.push_back(std::move(grant));
    work_item item;
    item.slot = slot;
    item.token_count = length;
    item.sample = true;
    plan.items.push_back(item);
    plan.tokens = prompts[i];
    run();
  }
  for (std::size_t step = 1; step < count; ++step) {
    for (std::size_t i = 0; i < prompts.size(); ++i) {
      work_item item;
      item.slot = static_cast<slot_id>(i);
      item.kind = work_kind::decode;
      item.first_position = static_cast<std::int32_t>(prompts[i].size() + step) - 1;
      item.token_count = 1;
      item.sample = true;
      plan.items.push_back(item);
    }
    run();
  }
  return out;
}

// Prints the first difference of one prompt; false where the CPU's two best tokens are not nearly even there.
bool compare(std::size_t index, const continuation& gpu, const continuation& cpu, float near_tie) {
  for (std::size_t i = 0; i < cpu.drawn.size(); ++i) {
    if (gpu.drawn.at(i) == cpu.drawn[i]) continue;
    const std::vector<scored_token>& best = cpu.scores[i].top;
    const float margin = best[0].logprob - best[1].logprob;
    const bool close = margin < near_tie && gpu.drawn[i] == best[1].token;
    std::printf("prompt %2zu: part at token %zu, %d on the GPU and %d on the CPU, whose two best lie %.4f apart%s\n", index, i,
                gpu.drawn[i], cpu.drawn[i], static_cast<double>(margin), close ? " (near tie)" : "");
    return close;
  }
  std::printf("prompt %2zu: %zu tokens equal\n", index, cpu.drawn.size());
  return true;
}

int run(int argc, char** argv) {
  if (argc < 4) {
    std::fprintf(stderr, "usage: greedy_parity MODEL PROMPTS TOKENS [bf16|f16]\n");
    return 2;
  }
  const auto source = open_checkpoint(argv[1]);
  const auto text =
      source->format() == checkpoint_format::gguf ? tokenizer_from_gguf(source->metadata(), argv[1]) : load_tokenizer(argv[1]);
  std::vector<tokens> prompts;
  std::ifstream file(argv[2]);
  for (std::string line; std::getline(file, line);) prompts.push_back(text->encode(line));
  const auto count = static_cast<std::size_t>(std::atoi(argv[3]));
  const bool f16 = argc > 4 && std::string(argv[4]) == "f16";
  const model_weights stored = source->load();
  const auto floats = std::make_shared<const model_weights>(widened(stored, static_cast<std::int32_t>(cpu::usable_cores())));

  cpu_executor_options on_cpu;
  on_cpu.kv_type = dtype::f32;
  on_cpu.max_model_len = 1024;
  const auto cpu = continue_all(*make_cpu_executor(floats, on_cpu), prompts, count);
  gpu_executor_options on_gpu;
  on_gpu.type = f16 ? dtype::f16 : dtype::bf16;
  on_gpu.max_model_len = 1024;
  const auto gpu = continue_all(*make_gpu_executor(stored, on_gpu), prompts, count);
  bool good = !prompts.empty();
  std::size_t equal = 0;
  for (std::size_t i = 0; i < prompts.size(); ++i) {
    good = compare(i, gpu[i], cpu[i], f16 ? 0.05F : 0.25F) && good;
    equal += gpu[i].drawn == cpu[i].drawn ? 1 : 0;
  }
  std::printf("%zu of %zu prompts equal over %zu tokens\n", equal, prompts.size(), count);
  return good ? 0 : 1;
}

} // namespace
} // namespace troupe

int main(int argc, char** argv) {
  try {
    return troupe::run(argc, argv);
  } catch (const std::exception& e) {
    std::fprintf(stderr, "greedy_parity: %s\n", e.what());
    return 1;
  }
}
