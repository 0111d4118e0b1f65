#include "apps/device_choice.hpp"

#include <spdlog/spdlog.h>

#include <cstdlib>
#include <filesystem>
#include <stdexcept>

#include "core/error.hpp"
#ifdef TROUPE_HAVE_CUDA
#include "device/cuda/memory.hpp"
#include "device/cuda/stream.hpp"
#include "models/gpu_weights.hpp"
#include "models/kept_weights.hpp"
#endif

namespace troupe::apps {
namespace {

device_choice the_cpu(const engine_options& o, std::string why) {
  if (o.dtype != "auto") throw load_error("--dtype " + o.dtype + " is for GPUs; the CPU computes with what is stored (" + why + ")");
  if (o.reference) throw load_error("--reference is a GPU's plain path; the CPU has one path alone (" + why + ")");
  if (o.gpu.batch_invariant) why += "; batch-invariant, as a CPU always is";
  return {std::nullopt, "device: CPU, " + std::move(why)};
}

#ifdef TROUPE_HAVE_CUDA

std::int32_t asked_gpu(const std::string& device) { return device.size() > 5 ? std::stoi(device.substr(5)) : 0; }

// Where chosen algorithms are kept from start to start, or nowhere.
std::filesystem::path tuning_cache() {
  const char* const cache = std::getenv("XDG_CACHE_HOME");
  if (cache != nullptr && *cache == '/') return std::filesystem::path(cache) / "troupe" / "matmul";
  const char* const home = std::getenv("HOME");
  if (home != nullptr && *home == '/') return std::filesystem::path(home) / ".cache" / "troupe" / "matmul";
  return {};
}

constexpr std::size_t least_unused_bytes = std::size_t{2} << 30;      // beside a standby's context
constexpr std::size_t most_host_dummy_bytes = std::size_t{256} << 20; // of weights: more takes the host too long

std::optional<dtype> cache_type(const engine_options& o) {
  if (o.kv_cache_dtype == "auto") return std::nullopt;
  return parse_type(o.kv_cache_dtype);
}

#endif

} // namespace

#ifdef TROUPE_HAVE_CUDA

gpu_executor_options gpu_options(std::int32_t device, const engine_options& o, std::int32_t tokenizer_vocab) {
  gpu_executor_options g;
  g.device = device;
  if (o.dtype != "auto") g.type = parse_type(o.dtype);
  const std::optional<dtype> cache = cache_type(o);
  if (cache && g.type && *cache != *g.type) {
    throw load_error("--kv-cache-dtype " + o.kv_cache_dtype + ": on a GPU the cache is of the type of --dtype, which is " + o.dtype);
  }
  if (cache) g.type = cache;
  g.block_size = o.block_size;
  if (o.max_num_seqs_given) g.max_num_seqs = o.max_num_seqs;
  if (o.max_num_batched_tokens_given) g.max_batched_tokens = o.max_num_batched_tokens;
  g.max_model_len = o.max_model_len;
  g.memory_utilization = o.gpu_memory_utilization;
  if (o.kv_cache_memory_given) g.kv_bytes = parse_bytes(o.kv_cache_memory, "--kv-cache-memory");
  g.num_blocks = o.num_kv_blocks;
  g.tokenizer_vocab_size = tokenizer_vocab;
  g.loader_threads = o.threads;
  g.tuning_cache = tuning_cache();
  g.log = [](const std::string& line) { spdlog::info("{}", line); };
  g.fused = o.gpu.fused;
  g.graphs = o.gpu.graphs;
  g.overlapping_launches = o.gpu.overlapping_launches;
  g.asynchronous_copies = o.gpu.asynchronous_copies;
  g.own_all_reduce = o.gpu.own_all_reduce;
  g.batch_invariant = o.gpu.batch_invariant;
  g.kernel_times = o.kernel_times;
  if (o.reference && g.batch_invariant) throw load_error("--reference and --batch-invariant: the plain path is not batch-invariant");
  return o.reference ? reference(std::move(g)) : g;
}

device_choice choose_device(const engine_options& o, const model_config& config) {
  if (o.device == "cpu") return the_cpu(o, "as --device says");
  const bool asked = o.device != "auto";
  const std::int32_t device = asked ? asked_gpu(o.device) : 0;
  const std::optional<std::string> hindrance = gpu_hindrance(device, config);
  if (hindrance && asked) throw load_error("--device " + o.device + ": " + *hindrance);
  if (hindrance) return the_cpu(o, *hindrance);
  return {device, "device: GPU " + std::to_string(device) + ", " + gpu_name(device) +
                      (asked ? ", as --device says" : ", which can be used") + (o.gpu.batch_invariant ? "; batch-invariant" : "")};
}

int count_gpus() { return gpu_count(); }

void check_gpu_ranks(const engine_options& o, std::int32_t first) {
  const std::int32_t count = gpu_count();
  if (o.devices() > count - first) {
    throw load_error("--tp " + std::to_string(o.tensor_parallel_size) + ", --pp " + std::to_string(o.pipeline_parallel_size) +
                     " and --dp " + std::to_string(o.data_parallel_size) + " take " + std::to_string(o.devices()) + " GPUs from " +
                     std::to_string(first) + " on, but this machine has " + std::to_string(count));
  }
}

void make_gpu_ready(std::int32_t device, bool grouped) {
  cuda::use_device(device);
  const std::size_t unused = cuda::device_memory().unused;
  if (unused < least_unused_bytes)
    throw std::runtime_error("GPU " + std::to_string(device) + " has " + size_text(unused) + " left, too little for a standby");
  if (grouped) prepare_to_join();
}

std::unique_ptr<step_executor> make_executor_on_gpu(std::int32_t device, const engine_options& o, const checkpoint& source,
                                                    const checkpoint* draft, std::int32_t tokenizer_vocab, const rank_context& host,
                                                    std::chrono::milliseconds deadline, const kept_memories& keep, start_times* start) {
  gpu_executor_options options = gpu_options(device, o, tokenizer_vocab);
  options.keep = keep.weights;
  options.keep_kv = keep.kv;
  const bool dummy = o.load_format == "dummy";
  options.start = start;
  cuda::use_device(device);
  reached(start, "context");
  gpu_joining rank = join_gpus(host, device, deadline, [start] { reached(start, "joined"); });
  const bool on_device = dummy && draft == nullptr && gpu_weight_bytes(source.config(), ends_of(source.config())) > most_host_dummy_bytes;
  if (on_device) return make_gpu_executor_with_dummy_weights(source.config(), options, std::move(rank));
  const auto load = [&](const checkpoint& from) { return dummy ? plan_dummy_weights(from.config(), dtype::bf16, 1) : from.load(); };
  if (draft != nullptr) return make_drafting_gpu_executor(load(source), load(*draft), options, std::move(rank));
  return make_gpu_executor(load(source), options, std::move(rank));
}

#else

device_choice choose_device(const engine_options& o, const model_config&) {
  if (o.device != "cpu" && o.device != "auto") {
    throw load_error("--device " + o.device + ": this program was built without CUDA");
  }
  return the_cpu(o, o.device == "cpu" ? "as --device says" : "this program was built without CUDA");
}

int count_gpus() { return 0; }

void make_gpu_ready(std::int32_t, bool) {}

void check_gpu_ranks(const engine_options&, std::int32_t) {}

std::unique_ptr<step_executor> make_executor_on_gpu(std::int32_t, const engine_options&, const checkpoint&, const checkpoint*, std::int32_t,
                                                    const rank_context&, std::chrono::milliseconds, const kept_memories&, start_times*) {
  throw std::logic_error("no GPU was chosen");
}

#endif

} // namespace troupe::apps
