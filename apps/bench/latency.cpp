#include "apps/bench/latency.hpp"

#include <algorithm>
#include <limits>
#include <map>
#include <stdexcept>

#include "apps/bench/text.hpp"

namespace troupe::bench {
namespace {

// Steps that a whole batch's prompts take, at most: decode rows go first and leave chunks the rest of a step's tokens.
std::int32_t prefill_steps(std::int64_t batch, std::int64_t prompt, std::int64_t step_tokens) {
  const std::int64_t room = std::max<std::int64_t>(1, step_tokens - batch);
  return static_cast<std::int32_t>((batch * prompt + room - 1) / room + 1);
}

struct decode_shape {
  std::int32_t prompt = 1;
  std::int32_t outputs = 1;
};

// Sequences whose prompts come first decode while others still compute theirs: prompts are that much shorter.
decode_shape shape_of(const latency_options& o, std::int32_t batch, std::int32_t step_tokens) {
  const std::int32_t lead = prefill_steps(batch, o.context, step_tokens);
  const std::int32_t measured = o.warmup + o.steps + 1;
  decode_shape s;
  s.prompt = std::max(1, o.context - o.warmup - o.steps / 2 - lead / 2);
  s.outputs = measured + lead + o.plans_in_flight + 1;
  return s;
}

value number(std::optional<double> x) { return x ? value(*x) : value(); }
std::string cell(std::optional<double> x, const char* pattern) {
  if (!x) return "-";
  std::array<char, 32> text{};
  std::snprintf(text.data(), text.size(), pattern, *x);
  return text.data();
}

// Means over `count` of the sums over `steps`.
split_times split_of(const std::vector<const driven_step*>& steps, double count) {
  split_times split;
  std::map<kernel_group, double> groups;
  const double unit = 1e-9 / std::max(1.0, count);
  for (const driven_step* step : steps) {
    split.compute += static_cast<double>(step->times.compute_ns) * unit;
    split.collective_wait += static_cast<double>(step->times.collective_wait_ns) * unit;
    split.collective_move += static_cast<double>(step->times.collective_move_ns) * unit;
    for (const group_time& g : step->times.groups) groups[g.group] += static_cast<double>(g.ns) * unit;
  }
  for (const auto& [group, mean] : groups) split.groups.emplace_back(telemetry::name_of(group), mean);
  return split;
}

value split_json(const split_times& split) {
  value_object out, groups;
  out.set("compute_ms", split.compute * 1e3);
  out.set("collective_wait_ms", split.collective_wait * 1e3);
  out.set("collective_move_ms", split.collective_move * 1e3);
  for (const auto& [name, mean] : split.groups) groups.set(name, mean * 1e3);
  out.set("groups_ms", std::move(groups));
  return out;
}

double seconds(std::uint64_t from, std::uint64_t to) { return static_cast<double>(to - from) * 1e-9; }

} // namespace

latency_needs needs_of(const latency_options& o, std::int32_t block_size, std::optional<std::int32_t> max_batched_tokens) {
  latency_needs n;
  std::int32_t longest = 1;
  for (const std::int32_t p : o.prompt_lengths) longest = std::max(longest, p);
  for (const std::int32_t b : o.batch_sizes) n.max_num_seqs = std::max(n.max_num_seqs, b);
  n.max_batched_tokens = max_batched_tokens.value_or(std::max({longest, 2 * n.max_num_seqs, 512}));
  const auto blocks = [&](std::int64_t tokens) { return (tokens + block_size - 1) / block_size; };
  n.max_model_len = longest + 1;
  std::int64_t most = blocks(longest + 1);
  for (const std::int32_t b : o.batch_sizes) {
    const decode_shape s = shape_of(o, b, n.max_batched_tokens);
    n.max_model_len = std::max(n.max_model_len, s.prompt + s.outputs);
    most = std::max(most, b * blocks(s.prompt + s.outputs + 1));
  }
  if (most > std::numeric_limits<std::int32_t>::max() / 2) throw std::invalid_argument("the batches and contexts need too many KV blocks");
  n.num_blocks = static_cast<std::int32_t>(most) + 1;
  return n;
}

decode_figures measure_decode(step_driver& driver, telemetry::timeline& timeline, const latency_options& o, std::int32_t batch,
                              const model_cost& cost) {
  const decode_shape shape = shape_of(o, batch, driver.info().max_batched_tokens);
  const auto prompts = random_prompts(static_cast<std::size_t>(batch), shape.prompt, driver.info().vocab_size, o.seed);
  const auto before = timeline.idle();
  const driven_run run = driver.run(prompts, {shape.outputs, o.plans_in_flight, o.warmup + o.steps + 1});
  const auto after = timeline.idle();
  auto intervals = decode_intervals(run, batch, static_cast<std::size_t>(o.warmup));
  if (intervals.empty()) throw std::runtime_error("no step decoded all " + std::to_string(batch) + " rows");
  decode_figures f;
  f.batch = batch;
  std::vector<double> samples, compute;
  std::vector<const driven_step*> steps;
  double context = 0;
  for (const decode_interval& i : intervals) {
    samples.push_back(i.ms * 1e-3);
    compute.push_back(static_cast<double>(i.step->times.compute_ns) * 1e-9);
    steps.push_back(i.step);
    double kv = 0;
    for (const std::int32_t position : i.step->decode_positions) {
      kv += static_cast<double>(cost.kv_bytes(position));
      context += position + 1;
    }
    f.bytes += static_cast<double>(cost.weight_bytes()) + kv;
  }
  const auto count = static_cast<double>(intervals.size());
  f.split = split_of(steps, count);
  f.context = context / count / batch;
  f.bytes /= count;
  f.fastest = *std::min_element(samples.begin(), samples.end());
  f.compute_median = summarize(std::move(compute)).median;
  f.step = summarize(std::move(samples));
  const telemetry::idle_summary between{after.steps - before.steps, after.busy_ns - before.busy_ns, after.idle_ns - before.idle_ns};
  f.idle_share = between.share();
  return f;
}

prefill_figures measure_prefill(step_driver& driver, const latency_options& o, std::int32_t prompt, const model_cost& cost) {
  prefill_figures f;
  f.prompt = prompt;
  f.linear_flops = cost.linear_flops(prompt);
  f.attention_flops = cost.attention_flops(prompt);
  std::vector<double> samples;
  std::vector<driven_step> steps;
  for (std::int32_t i = 0; i <= o.repeats; ++i) {
    const auto prompts = random_prompts(1, prompt, driver.info().vocab_size, o.seed + static_cast<std::uint64_t>(i));
    const driven_run run = driver.run(prompts, {1, o.plans_in_flight, std::nullopt});
    if (i == 0) continue;
    samples.push_back(seconds(run.begin_ns, run.first_token_ns.front()));
    steps.insert(steps.end(), run.steps.begin(), run.steps.end());
  }
  std::vector<const driven_step*> all;
  for (const driven_step& step : steps) all.push_back(&step);
  f.split = split_of(all, o.repeats);
  f.first_token = summarize(std::move(samples));
  return f;
}

std::optional<double> floor_seconds(double bytes, const rate_ceilings& c) {
  return c.read_bytes_per_second > 0 ? std::optional(bytes / c.read_bytes_per_second) : std::nullopt;
}

std::optional<double> over_floor(const decode_figures& f, const rate_ceilings& c) {
  const auto floor = floor_seconds(f.bytes, c);
  return floor && *floor > 0 ? std::optional(f.step.median / *floor) : std::nullopt;
}

std::optional<double> matmul_share(const prefill_figures& f, const rate_ceilings& c) {
  if (c.matmul_flops_per_second <= 0 || f.first_token.median <= 0) return std::nullopt;
  return (f.linear_flops + f.attention_flops) / f.first_token.median / c.matmul_flops_per_second;
}

value splits_json(std::int32_t rank, const latency_figures& figures) {
  value_object out;
  value_array decode, prefill;
  for (const decode_figures& f : figures.decode) decode.push_back(split_json(f.split));
  for (const prefill_figures& f : figures.prefill) prefill.push_back(split_json(f.split));
  out.set("rank", std::int64_t{rank});
  out.set("decode", std::move(decode));
  out.set("prefill", std::move(prefill));
  return out;
}

value_array decode_json(const std::vector<decode_figures>& figures, const rate_ceilings& ceilings) {
  value_array out;
  for (const decode_figures& f : figures) {
    const auto floor = floor_seconds(f.bytes, ceilings);
    value_object o;
    o.set("batch", std::int64_t{f.batch});
    o.set("context", f.context);
    o.set("steps", static_cast<std::int64_t>(f.step.count));
    o.set("median_ms", f.step.median * 1e3);
    o.set("p99_ms", f.step.p99 * 1e3);
    o.set("mean_ms", f.step.mean * 1e3);
    o.set("fastest_ms", f.fastest * 1e3);
    o.set("compute_median_ms", f.compute_median * 1e3);
    o.set("bytes", f.bytes);
    o.set("floor_ms", floor ? value(*floor * 1e3) : value());
    o.set("over_floor", number(over_floor(f, ceilings)));
    o.set("tokens_per_second", f.batch / f.step.median);
    o.set("idle_share", f.idle_share);
    o.set("split", split_json(f.split));
    out.emplace_back(std::move(o));
  }
  return out;
}

value_array prefill_json(const std::vector<prefill_figures>& figures, const rate_ceilings& ceilings) {
  value_array out;
  for (const prefill_figures& f : figures) {
    value_object o;
    o.set("prompt_tokens", std::int64_t{f.prompt});
    o.set("repeats", static_cast<std::int64_t>(f.first_token.count));
    o.set("first_token_median_ms", f.first_token.median * 1e3);
    o.set("first_token_p99_ms", f.first_token.p99 * 1e3);
    o.set("tokens_per_second", f.prompt / f.first_token.median);
    o.set("linear_flops", f.linear_flops);
    o.set("attention_flops", f.attention_flops);
    o.set("matmul_share", number(matmul_share(f, ceilings)));
    o.set("split", split_json(f.split));
    out.emplace_back(std::move(o));
  }
  return out;
}

std::string latency_table(const latency_figures& figures, const rate_ceilings& ceilings) {
  std::string out;
  if (!figures.decode.empty()) {
    out += format("%6s %8s %10s %10s %10s %10s %10s %8s\n", "batch", "context", "median ms", "p99 ms", "floor ms", "over floor", "tokens/s",
                  "idle");
  }
  for (const decode_figures& f : figures.decode) {
    const auto floor = floor_seconds(f.bytes, ceilings);
    out += format("%6d %8.0f %10.3f %10.3f %10s %10s %10.1f %7.2f%%\n", f.batch, f.context, f.step.median * 1e3, f.step.p99 * 1e3,
                  cell(floor ? std::optional(*floor * 1e3) : std::nullopt, "%.3f").c_str(), cell(over_floor(f, ceilings), "%.3f x").c_str(),
                  f.batch / f.step.median, f.idle_share * 100);
  }
  if (!figures.prefill.empty()) {
    out += format("%6s %18s %10s %12s %16s\n", "prompt", "first token ms", "p99 ms", "tokens/s", "of matmul peak");
  }
  for (const prefill_figures& f : figures.prefill) {
    const auto share = matmul_share(f, ceilings);
    out += format("%6d %18.3f %10.3f %12.1f %16s\n", f.prompt, f.first_token.median * 1e3, f.first_token.p99 * 1e3,
                  f.prompt / f.first_token.median, cell(share ? std::optional(*share * 100) : std::nullopt, "%.1f%%").c_str());
  }
  return out;
}

} // namespace troupe::bench
