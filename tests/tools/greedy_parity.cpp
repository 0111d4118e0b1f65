// Greedy tokens of a real checkpoint on the GPU, in the default and in the batch-invariant mode, and on the CPU with weights as floats;
// where they part, by what margin. The batch-invariant mode must also give each prompt alone what it gives it beside the others, bit for
// bit, and so again when its own tokens come back as a prompt. Exits with 1 where a margin is no near tie or a bit differs. Usage:
// greedy_parity MODEL PROMPTS TOKENS [bf16|f16] [GPUS that share each layer], a prompt a line.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <fstream>
#include <future>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "device/cpu/host_limits.hpp"
#include "models/checkpoint.hpp"
#include "models/cpu_executor.hpp"
#include "models/gpu_executor.hpp"
#include "models/group_executor.hpp"
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

// All prompts together, a prompt a step, then decodes. A plan's epoch is above those of calls before.
std::vector<continuation> continue_all(step_executor& executor, const std::vector<tokens>& prompts, std::size_t count) {
  std::vector<continuation> out(prompts.size());
  step_plan plan;
  static epoch_number epoch = 0;
  plan.epoch = ++epoch;
  block_id next_block = 0;
  sampling_params greedy;
  greedy.temperature = 0;
  greedy.top_logprobs = 8;
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

// Prints the first difference of one prompt; false where the GPU's token is not nearly as good to the CPU as its own.
bool compare(std::size_t index, const continuation& gpu, const continuation& cpu, float near_tie) {
  for (std::size_t i = 0; i < cpu.drawn.size(); ++i) {
    if (gpu.drawn.at(i) == cpu.drawn[i]) continue;
    const std::vector<scored_token>& best = cpu.scores[i].top;
    const auto other = std::find_if(best.begin(), best.end(), [&](const scored_token& t) { return t.token == gpu.drawn[i]; });
    const float margin = best[0].logprob - (other == best.end() ? best.back().logprob : other->logprob);
    const bool close = other != best.end() && margin < near_tie;
    std::printf("prompt %2zu: part at token %zu, %d on the GPU and %d on the CPU, which prefers it by %s%.4f%s\n", index, i, gpu.drawn[i],
                cpu.drawn[i], other == best.end() ? "more than " : "", static_cast<double>(margin), close ? " (near tie)" : "");
    return close;
  }
  return true;
}

bool compare_all(const char* mode, const std::vector<continuation>& gpu, const std::vector<continuation>& cpu, float near_tie) {
  bool good = true;
  std::size_t equal = 0;
  for (std::size_t i = 0; i < cpu.size(); ++i) {
    good = compare(i, gpu[i], cpu[i], near_tie) && good;
    equal += gpu[i].drawn == cpu[i].drawn ? 1 : 0;
  }
  std::printf("%s: %zu of %zu prompts equal the CPU's over %zu tokens\n", mode, equal, cpu.size(), cpu.at(0).drawn.size());
  return good;
}

// Each prompt alone, and its first half of drawn tokens once more as a part of the prompt, against what it got beside the others.
bool depend_on_themselves_alone(step_executor& executor, const std::vector<tokens>& prompts, const std::vector<continuation>& together) {
  std::size_t differing = 0;
  for (std::size_t i = 0; i < prompts.size(); ++i) {
    const continuation& right = together[i];
    const std::size_t count = right.drawn.size(), half = count / 2;
    tokens replayed = prompts[i];
    replayed.insert(replayed.end(), right.drawn.begin(), right.drawn.begin() + static_cast<std::ptrdiff_t>(half));
    const continuation alone = continue_all(executor, {prompts[i]}, count).at(0);
    const continuation rest = continue_all(executor, {replayed}, count - half).at(0);
    const bool same = alone.drawn == right.drawn && alone.scores == right.scores &&
                      std::equal(rest.drawn.begin(), rest.drawn.end(), right.drawn.begin() + static_cast<std::ptrdiff_t>(half)) &&
                      std::equal(rest.scores.begin(), rest.scores.end(), right.scores.begin() + static_cast<std::ptrdiff_t>(half));
    if (!same) std::printf("prompt %2zu: alone, or replayed, it is told something else than beside the others\n", i);
    differing += same ? 0 : 1;
  }
  std::printf("batch-invariant: %zu of %zu prompts are told the same alone, beside the others and replayed, bit for bit\n",
              prompts.size() - differing, prompts.size());
  return differing == 0;
}

std::unique_ptr<step_executor> make_on_gpus(const model_weights& weights, gpu_executor_options options, int gpus) {
  if (gpus == 1) return make_gpu_executor(weights, options);
  return make_group_executor(make_local_ranks(gpus, 1, std::chrono::seconds(60)), [&, options](const rank_context& rank) {
    gpu_executor_options own = options;
    own.device = rank.tp_rank;
    return make_gpu_executor(weights, own, join_gpus(rank, rank.tp_rank, std::chrono::seconds(20)));
  });
}

int run(int argc, char** argv) {
  if (argc < 4) {
    std::fprintf(stderr, "usage: greedy_parity MODEL PROMPTS TOKENS [bf16|f16] [GPUS that share each layer]\n");
    return 2;
  }
  const auto source = open_checkpoint(argv[1]);
  const auto text =
      source->format() == checkpoint_format::gguf ? tokenizer_from_gguf(source->metadata(), argv[1]) : load_tokenizer(argv[1]);
  std::vector<tokens> prompts;
  std::ifstream file(argv[2]);
  for (std::string line; std::getline(file, line);) prompts.push_back(text->encode(line));
  if (prompts.empty()) throw std::invalid_argument(std::string(argv[2]) + " holds no prompt");
  const auto count = static_cast<std::size_t>(std::atoi(argv[3]));
  const bool f16 = argc > 4 && std::string(argv[4]) == "f16";
  const int gpus = argc > 5 ? std::atoi(argv[5]) : 1;
  const float near_tie = f16 ? 0.05F : 0.25F;
  const model_weights stored = source->load();
  const auto floats = std::make_shared<const model_weights>(widened(stored, static_cast<std::int32_t>(cpu::usable_cores())));

  cpu_executor_options on_cpu;
  on_cpu.kv_type = dtype::f32;
  on_cpu.max_model_len = 1024;
  const auto cpu = continue_all(*make_cpu_executor(floats, on_cpu), prompts, count);
  gpu_executor_options on_gpu;
  on_gpu.type = f16 ? dtype::f16 : dtype::bf16;
  on_gpu.max_model_len = 1024;
  on_gpu.kv_bytes = std::size_t{1} << 30;
  bool good = compare_all("default mode", continue_all(*make_on_gpus(stored, on_gpu, gpus), prompts, count), cpu, near_tie);
  on_gpu.batch_invariant = true;
  const auto invariant = make_on_gpus(stored, on_gpu, gpus);
  const auto together = continue_all(*invariant, prompts, count);
  good = compare_all("batch-invariant", together, cpu, near_tie) && good;
  good = depend_on_themselves_alone(*invariant, prompts, together) && good;
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
