// Gathers what an executor on one GPU is made of: the plan that its group agrees on, memory of its own or a keeper's, and weights.
#include "models/gpu_executor.hpp"

#include <algorithm>
#include <utility>

#include "core/error.hpp"
#include "device/cpu/host_limits.hpp"
#include "device/cuda/kept_memory.hpp"
#include "models/config_fields.hpp"
#include "models/drafting_executor.hpp"
#include "models/gpu_executor_parts.hpp"
#include "models/group_agreement.hpp"
#include "models/kept_weights.hpp"
#include "models/shard.hpp"

namespace troupe {
namespace {

using make_weights_on = std::function<gpu_weights(const gpu_model_shape& shape, std::byte* memory, const cuda::stream& on)>;

// What a keeper holds already of these weights and of their KV cache: the plan need not find room for it again.
std::size_t kept_already(const weight_source& source, const gpu_executor_options& options) {
  if (!options.keep && !options.keep_kv) return 0;
  const std::string device = cuda::device_uuid(options.device);
  return kept_bytes(options.keep, source, device) + kept_kv_bytes(options.keep_kv, source, device);
}

cuda::memory_state with(cuda::memory_state device, std::size_t kept) { return {device.unused + kept, device.whole}; }

keeper::region_request region_of(const model_config& config, const gpu_model_shape& shape, const weight_source& source,
                                 std::int32_t device) {
  return kept_region(source, cuda::device_uuid(device), gpu_weight_layout(config, shape.ends, shape.type),
                     cuda::kept_size(gpu_weight_bytes(config, shape.ends), device), keeper::memory_kind::cuda);
}

gpu_kv_memory claim_kv_memory(const model_config& config, const gpu_plan& plan, const weight_source& source,
                              const gpu_executor_options& options) {
  if (!options.keep_kv) return {cuda::own_memory(), false};
  const gpu_model_shape& s = plan.shape;
  const kv_pool pool{{s.type, s.block_size, config.num_kv_heads, config.head_dim},
                     config.num_layers,
                     s.num_blocks,
                     cuda::kept_size(plan.kv_bytes, options.device)};
  keeper::claim claim = claim_kv(options.keep_kv, source, cuda::device_uuid(options.device), pool, keeper::memory_kind::cuda);
  const bool found = claim.now() == keeper::claim::state::complete;
  tell_kv(options.keep_kv, pool.bytes, found, claim);
  if (claim.now() == keeper::claim::state::alone) return {cuda::own_memory(), false};
  return {std::make_unique<cuda::kept_memory>(std::move(claim), options.device, keeper::region_use::leased),
          found && options.keep_kv->usable};
}

// `config` and `source` are the rank's own.
std::unique_ptr<step_executor> make(const model_config& config, dtype stored, const weight_source& source, gpu_executor_options options,
                                    gpu_joining rank, const make_weights_on& make_weights) {
  const std::int32_t count = gpu_count();
  if (options.device < 0 || options.device >= count) {
    throw load_error("there is no GPU " + std::to_string(options.device) + ": this process can use " + std::to_string(count));
  }
  cuda::use_device(options.device);
  const cuda::memory_state device = with(rank.memory_before().value_or(cuda::device_memory()), kept_already(source, options));
  const auto planned = [&] { return plan_gpu(config, stored, options, device, rank.host()); };
  gpu_plan plan = planned();
  if (rank.host().size() > 1) {
    options.num_blocks = agree(plan.info, {}, rank.host()).num_blocks;
    plan = planned();
  }
  const gpu_model_shape& shape = plan.shape;
  const weight_start start(options.keep);
  keeper::claim claim;
  if (options.keep) claim = claim_weights(options.keep, source, region_of(config, shape, source, options.device));
  gpu_kv_memory kv = claim_kv_memory(config, plan, source, options);
  if (claim.now() == keeper::claim::state::alone) {
    return assemble_gpu_executor(config, plan, options, std::move(rank), cuda::own_memory(), std::move(kv),
                                 [&](std::byte* memory, const cuda::stream& on) {
                                   gpu_weights made = make_weights(shape, memory, on);
                                   start.tell(plan.weight_bytes, false, claim);
                                   reached(options.start, "weights");
                                   return made;
                                 });
  }
  auto kept = std::make_unique<cuda::kept_memory>(std::move(claim), options.device);
  cuda::kept_memory& block = *kept;
  return assemble_gpu_executor(
      config, plan, options, std::move(rank), std::move(kept), std::move(kv), [&](std::byte* memory, const cuda::stream& on) {
        const bool mapped = block.filled();
        gpu_weights made = mapped ? filled_weights(config, shape.ends, shape.type, memory) : make_weights(shape, memory, on);
        block.seal();
        start.tell(plan.weight_bytes, mapped, block.claim());
        reached(options.start, "weights");
        return made;
      });
}

} // namespace

std::unique_ptr<step_executor> make_gpu_executor(const model_weights& whole, const gpu_executor_options& options, gpu_joining rank) {
  if (whole.layers.empty()) throw load_error("the weights hold no layer");
  const model_weights weights = gpu_share(whole, rank.host());
  const std::int32_t threads = options.loader_threads > 0 ? options.loader_threads : static_cast<std::int32_t>(cpu::usable_cores());
  const auto upload = [&](const gpu_model_shape& shape, std::byte* memory, const cuda::stream& on) {
    return upload_weights(weights, shape.ends, shape.type, memory, on, options.device, threads);
  };
  return make(weights.config, weights.layers.front().query.type, weights.source, options, std::move(rank), upload);
}

std::unique_ptr<step_executor> make_gpu_executor_with_dummy_weights(const model_config& whole, const gpu_executor_options& options,
                                                                    gpu_joining rank) {
  check_config(whole, "dummy weights");
  const model_config config = gpu_share(whole, rank.host());
  weight_source source;
  source.origin =
      "dummy weights of " + std::to_string(gpu_weight_bytes(config, ends_of(config, rank.host()))) + " bytes, made on the device";
  source.part = part_of(rank.host());
  return make(config, dtype::bf16, source, options, std::move(rank),
              [&](const gpu_model_shape& shape, std::byte* memory, const cuda::stream& on) {
                return make_dummy_gpu_weights(config, shape.ends, shape.type, memory, on, 1);
              });
}

std::unique_ptr<step_executor> make_drafting_gpu_executor(const model_weights& target, const model_weights& draft,
                                                          const gpu_executor_options& options, gpu_joining rank) {
  if (target.layers.empty() || draft.layers.empty()) throw load_error("the weights hold no layer");
  gpu_executor_options its = options, drafts = options;
  drafts.start = nullptr;
  its.max_proposals = most_proposals;
  if (!rank.host().leader()) return make_gpu_executor(target, its, std::move(rank));
  drafts.max_model_len = std::min(options.max_model_len.value_or(target.config.max_position), draft.config.max_position);
  cuda::use_device(options.device);
  const model_weights share = gpu_share(target, rank.host());
  const bool same = share.source.origin == draft.source.origin && share.source.part == draft.source.part;
  if (same) drafts.keep.reset(); // one region, which the plans would count twice
  if (drafts.keep_kv) drafts.keep_kv->owner += ", draft model";
  if (drafts.log) drafts.log = [log = options.log](const std::string& line) { log("draft model: " + line); };
  const std::size_t kept = kept_already(share.source, its) + kept_already(draft.source, drafts);
  its.num_blocks = shared_blocks({share.config, share.layers.front().query.type, its, rank.host()},
                                 {draft.config, draft.layers.front().query.type, drafts, {}},
                                 with(rank.memory_before().value_or(cuda::device_memory()), kept));
  auto executor = make_gpu_executor(target, its, std::move(rank));
  drafts.num_blocks = executor->info().num_blocks; // a peer may have had room for fewer
  return make_drafting_executor(std::move(executor), make_gpu_executor(draft, drafts));
}

std::int32_t gpu_count() { return cuda::device_count(); }
std::string gpu_name(std::int32_t device) { return cuda::device_name(device); }

std::optional<std::string> gpu_hindrance(std::int32_t device, const model_config& config) {
  const std::int32_t count = gpu_count();
  if (count == 0) return "there is no CUDA driver or GPU here";
  if (device < 0 || device >= count) return "there is no GPU " + std::to_string(device) + ", this process can use " + std::to_string(count);
  if (!cuda::is_hopper(device)) {
    return "GPU " + std::to_string(device) + ", " + gpu_name(device) +
           ", is not of compute capability 9.0, which the kernels are built for";
  }
  const std::string unsupported = gpu_model::unsupported(config);
  if (!unsupported.empty()) return "a GPU cannot run this model: " + unsupported;
  return std::nullopt;
}

} // namespace troupe
