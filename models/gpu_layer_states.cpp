#include "models/gpu_layer_states.hpp"

#include "core/error.hpp"
#include "core/half.hpp"
#include "device/cpu/host_limits.hpp"
#include "device/cuda/pinned_ring.hpp"
#include "models/gpu_runner.hpp"

namespace troupe {
namespace {

// Copies the hidden states of a step's rows out behind each layer.
class onlooker {
 public:
  onlooker(const gpu_model& model, const cuda::stream& on, layer_states& out)
      : model_(model), on_(on), out_(out), pinned_(1, static_cast<std::size_t>(out.tokens * out.width) * sizeof(std::uint16_t)) {}

  void look(std::int32_t layer, std::int32_t first, std::int32_t rows) {
    const std::size_t count = static_cast<std::size_t>(rows) * static_cast<std::size_t>(out_.width);
    std::byte* const bytes = pinned_.next();
    cuda::copy_out(on_, bytes, model_.hidden(), count * sizeof(std::uint16_t));
    on_.synchronize();
    const auto* halves = reinterpret_cast<const std::uint16_t*>(bytes);
    const std::size_t row = static_cast<std::size_t>(layer) * static_cast<std::size_t>(out_.tokens) + static_cast<std::size_t>(first);
    float* const to = out_.hidden.data() + row * static_cast<std::size_t>(out_.width);
    const bool f16 = model_.shape().type == dtype::f16;
    for (std::size_t i = 0; i < count; ++i) to[i] = f16 ? half_to_float(halves[i]) : bfloat16_to_float(halves[i]);
  }

 private:
  const gpu_model& model_;
  const cuda::stream& on_;
  layer_states& out_;
  cuda::pinned_ring pinned_;
};

// The slot opened, with blocks for all tokens.
gpu_step opening(std::int32_t tokens, std::int32_t block_size) {
  gpu_step step;
  step.opened.push_back({0, {}});
  step.opened.back().sampling.temperature = 0;
  for (std::int32_t block = 0; block * block_size < tokens; ++block) step.tables.push_back({0, block, block});
  return step;
}

void add_rows(gpu_step& step, std::span<const token_id> tokens, std::int32_t first, bool decode) {
  for (std::size_t i = 0; i < tokens.size(); ++i) step.rows.push_back({0, first + static_cast<std::int32_t>(i), tokens[i]});
  const auto rows = static_cast<std::int32_t>(tokens.size());
  if (decode) {
    step.decode_rows = rows;
  } else {
    step.spans.push_back({0, rows, first, 0});
  }
  gpu::step_head head;
  head.row = rows - 1;
  head.sampling.position = std::int64_t{first} + rows;
  step.heads.push_back(head);
}

gpu_executor_options for_one_text(gpu_executor_options options, std::size_t tokens) {
  options.graphs = false;
  options.max_num_seqs = 1;
  options.max_batched_tokens = static_cast<std::int32_t>(tokens);
  options.num_blocks =
      static_cast<std::int32_t>((tokens + static_cast<std::size_t>(options.block_size) - 1) / static_cast<std::size_t>(options.block_size));
  return options;
}

} // namespace

dtype gpu_type(const model_weights& weights, const gpu_executor_options& options) {
  return options.type.value_or(weights.layers.at(0).query.type == dtype::f16 ? dtype::f16 : dtype::bf16);
}

layer_states gpu_layer_states(const model_weights& weights, const gpu_executor_options& wanted, std::span<const token_id> tokens,
                              token_feed feed) {
  if (tokens.empty()) throw load_error("there is no token to compare layers with");
  const gpu_executor_options options = for_one_text(wanted, tokens.size());
  const model_config& config = weights.config;
  cuda::use_device(options.device);
  const gpu_plan plan = plan_gpu(config, weights.layers.at(0).query.type, options, cuda::device_memory());
  const std::unique_ptr<cuda::memory_source> source = cuda::own_memory();
  cuda::memory_ledger ledger;
  cuda::caching_allocator memory(*source, ledger);
  const cuda::stream_pool streams;
  const cuda::device_block matrices(*source, ledger, plan.weight_bytes, "weights"), kv(*source, ledger, plan.kv_bytes, "KV cache");
  gpu_weights placed = upload_weights(weights, plan.shape.ends, plan.shape.type, matrices.data(), streams.compute, options.device,
                                      static_cast<std::int32_t>(cpu::usable_cores()));
  gpu_model model(config, plan.shape, std::move(placed), kv.data(), false, memory, streams.compute, {}, [](const std::string&) {});
  gpu_runner runner(model, plan, {false, options.asynchronous_copies, false, nullptr}, memory, streams);

  layer_states out{config.num_layers, static_cast<std::int32_t>(tokens.size()), config.hidden_size, {}};
  out.hidden.resize(static_cast<std::size_t>(out.layers) * tokens.size() * static_cast<std::size_t>(out.width));
  onlooker looker(model, streams.compute, out);
  const std::size_t step_tokens = feed == token_feed::at_once ? tokens.size() : 1;
  for (std::size_t at = 0; at < tokens.size(); at += step_tokens) {
    gpu_step step = at == 0 ? opening(out.tokens, options.block_size) : gpu_step();
    const auto first = static_cast<std::int32_t>(at);
    add_rows(step, tokens.subspan(at, step_tokens), first, feed == token_feed::one_by_one);
    runner.look_behind_layers([&](std::int32_t layer) { looker.look(layer, first, static_cast<std::int32_t>(step_tokens)); });
    runner.run(step, 0);
    runner.wait(0);
  }
  return out;
}

} // namespace troupe
