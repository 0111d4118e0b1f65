// Flags that say which model to serve and how; shared by serve, run and worker.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "core/dtype.hpp"

namespace CLI {
class App;
}

namespace troupe::apps {

// What a GPU device can do without or another way (models/gpu_executor.hpp). A CPU device has none of it.
struct gpu_switches {
  bool fused = true;
  bool graphs = true;
  bool overlapping_launches = true;
  bool asynchronous_copies = true;
  bool own_all_reduce = true;
  bool batch_invariant = false;

  friend bool operator==(const gpu_switches&, const gpu_switches&) = default;
};

struct engine_options {
  std::filesystem::path model;               // a Hugging Face folder or a .gguf file
  std::string load_format = "auto";          // auto | dummy
  std::string dummy_type = "bf16";           // stored type of dummy weights
  std::vector<std::string> served_names;     // empty: the folder's or file's name
  std::optional<std::int32_t> max_model_len; // none: the model's own
  std::string device = "auto";               // auto | cpu | cuda | cuda:N
  std::string dtype = "auto";                // of a GPU's weights, activations and KV cache: auto | bf16 | f16
  double gpu_memory_utilization = 0.9;       // share of a GPU's memory
  bool reference = false;                    // the GPU's plain path
  std::int32_t max_num_seqs = 64;            // on a GPU 128, unless given
  std::int32_t max_num_batched_tokens = 512; // on a GPU 2048, unless given
  bool max_num_seqs_given = false;
  bool max_num_batched_tokens_given = false;
  bool kv_cache_memory_given = false;
  std::int32_t block_size = 16;
  std::string kv_cache_memory = "1GiB";      // bytes, with an optional KiB, MiB or GiB
  std::optional<std::int32_t> num_kv_blocks; // instead of kv_cache_memory
  std::string kv_cache_dtype = "auto";       // auto | f32 | f16 | bf16
  std::int32_t threads = 0;                  // 0: one per core
  gpu_switches gpu;                          // but for those that have a flag, set by the benches alone
  bool kernel_times = false;                 // for traces: a GPU times its groups of kernels
  std::int32_t tensor_parallel_size = 1;     // ranks that share each layer
  std::int32_t pipeline_parallel_size = 1;   // stages, each a run of layers
  std::int32_t data_parallel_size = 1;       // groups of such ranks, each with the whole model
  bool isolate_devices = false;
  std::optional<bool> keep_weights; // beyond devices' own processes; none: those of GPUs
  std::optional<bool> keep_kv;      // likewise the KV cache
  std::optional<bool> standby;      // a process beside each device's own; none: no
  bool prefix_caching = true;
  std::string speculative_method = "off"; // off | ngram | draft
  std::filesystem::path draft_model;      // of draft: a Hugging Face folder or a .gguf file
  std::int32_t num_speculative_tokens = 7;
  std::optional<std::int32_t> max_predicted_ttft_ms; // none: no bound
  std::int32_t max_queue = 1024;
  std::int32_t max_device_restarts = 10; // within 60 s
  std::int32_t step_deadline_s = 120;
  std::int32_t start_deadline_s = 300;

  // Of a worker in a cluster: whoever started it chose its --device and --threads for it alone, and the interface of its links.
  std::string interface;
  bool across_nodes = false;

  bool in_cluster() const { return !interface.empty(); }
  std::int32_t group_size() const { return tensor_parallel_size * pipeline_parallel_size; }
  std::int32_t devices() const { return group_size() * data_parallel_size; }
};

// Adds the flags to `command`.
void add_engine_flags(CLI::App& command, engine_options& options);

// The same flags as a command line, for a worker process. Values come out as they are, one argument each.
std::vector<std::string> to_arguments(const engine_options& options);

// The reverse. Throws std::invalid_argument: what is wrong with which flag.
engine_options parse_arguments(std::vector<std::string> arguments);

// The type that a flag names, which has been checked.
dtype parse_type(const std::string& name);

// "1GiB" -> bytes. Throws std::invalid_argument naming `flag`.
std::size_t parse_bytes(const std::string& text, const std::string& flag);

} // namespace troupe::apps
