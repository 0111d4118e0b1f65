#include "apps/engine_options.hpp"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <array>
#include <charconv>
#include <limits>
#include <stdexcept>
#include <utility>

namespace troupe::apps {

namespace {

std::string bad_device(const std::string& text) {
  const bool named = text == "auto" || text == "cpu" || text == "cuda";
  const bool numbered =
      text.starts_with("cuda:") && text.size() > 5 && text.size() < 9 && text.find_first_not_of("0123456789", 5) == std::string::npos;
  return named || numbered ? std::string() : "auto, cpu, cuda or cuda:N, not " + text;
}

void add_device_flags(CLI::App& command, engine_options& o) {
  command.add_option("--device", o.device, "auto (a GPU where one can be used), cpu, cuda or cuda:N")
      ->check(CLI::Validator(bad_device, "DEVICE"))
      ->capture_default_str();
  command.add_option("--dtype", o.dtype, "what a GPU computes in: auto (f16 for files stored as F16, else bf16), bf16 or f16")
      ->check(CLI::IsMember({"auto", "bf16", "f16"}))
      ->capture_default_str();
  command.add_option("--gpu-memory-utilization", o.gpu_memory_utilization, "share of the GPU's memory that may be in use, all in all")
      ->check(CLI::Range(0.01, 1.0))
      ->capture_default_str();
  command.add_flag("--kernel-times", o.kernel_times,
                   "for --trace: the GPU times each group of kernels (launches of steps without a graph no longer overlap)");
  command.add_flag("--enforce-eager{false}", o.gpu.graphs, "launch a GPU's decode steps kernel by kernel instead of replaying graphs");
  command.add_flag("--disable-custom-all-reduce{false}", o.gpu.own_all_reduce,
                   "with --tp: NCCL does all sums over the GPUs, those of few rows too");
  command.add_flag("--batch-invariant", o.gpu.batch_invariant,
                   "a sequence's tokens do not depend on what runs beside it, bit for bit, nor on how its prompt was cut or whether it was "
                   "preempted (the CPU: always)");
  command.add_flag("--reference", o.reference, "the GPU's plain path: unfused, synchronous, without graphs");
}

} // namespace

void add_engine_flags(CLI::App& command, engine_options& o) {
  command.add_option("model", o.model, "Hugging Face folder or .gguf file")->required()->check(CLI::ExistingPath);
  command.add_option("--load-format", o.load_format, "auto, or dummy for random weights of the model's shapes")
      ->check(CLI::IsMember({"auto", "dummy"}));
  command.add_option("--dummy-dtype", o.dummy_type, "stored type of dummy weights")
      ->check(CLI::IsMember({"f32", "f16", "bf16", "q8_0", "q4_0"}));
  command.add_option("--served-model-name", o.served_names, "names accepted in \"model\" (default: the file's or folder's name)");
  command.add_option("--max-model-len", o.max_model_len, "context limit in tokens (default: the model's)")->check(CLI::PositiveNumber);
  add_device_flags(command, o);
  command.add_option("--max-num-seqs", o.max_num_seqs, "sequences that run at once (default: 64 on the CPU, 128 on a GPU)")
      ->check(CLI::Range(1, 65536))
      ->each([&o](const std::string&) { o.max_num_seqs_given = true; });
  command.add_option("--max-num-batched-tokens", o.max_num_batched_tokens, "tokens of one step (default: 512 on the CPU, 2048 on a GPU)")
      ->check(CLI::Range(1, 32768))
      ->each([&o](const std::string&) { o.max_num_batched_tokens_given = true; });
  command.add_option("--block-size", o.block_size, "tokens per KV block")->check(CLI::Range(1, 4096))->capture_default_str();
  command
      .add_option("--kv-cache-memory", o.kv_cache_memory,
                  "memory of the KV cache, as in 512MiB or 4GiB (default: 1GiB on the CPU, on a GPU what --gpu-memory-utilization leaves)")
      ->each([&o](const std::string&) { o.kv_cache_memory_given = true; });
  command.add_option("--num-kv-blocks", o.num_kv_blocks, "KV blocks, instead of --kv-cache-memory")->check(CLI::PositiveNumber);
  command.add_option("--kv-cache-dtype", o.kv_cache_dtype, "auto, f32, f16 or bf16")->check(CLI::IsMember({"auto", "f32", "f16", "bf16"}));
  command.add_option("--threads", o.threads, "threads of the CPU device (0: one per core)")->check(CLI::Range(0, 4096));
  command.add_option("--tensor-parallel-size,--tp", o.tensor_parallel_size, "devices that share each layer")->check(CLI::Range(1, 1024));
  command.add_option("--pipeline-parallel-size,--pp", o.pipeline_parallel_size, "stages of so many devices, each with some of the layers")
      ->check(CLI::Range(1, 1024));
  command.add_option("--data-parallel-size,--dp", o.data_parallel_size, "replicas of such a group, each with the whole model")
      ->check(CLI::Range(1, 1024));
  command.add_flag("--isolate-devices", o.isolate_devices,
                   "run each device in a process of its own, restarted when it dies (several GPUs: always)");
  // CLI11 takes an optional for a number, which is 0 where no flag is given.
  const auto either = [&command](const std::string& names, std::optional<bool>& value, const std::string& text) {
    command.add_flag_function(
        names, [&value](std::int64_t given) { value = given > 0; }, text);
  };
  either("--keep-weights,!--no-keep-weights", o.keep_weights,
         "weights outlive a device's own process, so that the next one need not load them (default: on a GPU)");
  either("--keep-kv,!--no-keep-kv", o.keep_kv,
         "the KV cache outlives a device's own process that is killed or upgraded, so that requests go on from it (default: on a GPU)");
  either("--standby,!--no-standby", o.standby,
         "beside a device's own process another waits that has the device's context, to take the place of one that is killed "
         "(default: off; not in a cluster)");
  command.add_flag("--enable-prefix-caching,!--no-enable-prefix-caching", o.prefix_caching,
                   "keep the KV of prompts and outputs, and reuse it for prompts that begin alike (default: on)");
  command
      .add_option("--speculative-method", o.speculative_method,
                  "who drafts tokens for the model to verify: ngram (what followed the last tokens before), draft (a smaller model) or off")
      ->check(CLI::IsMember({"off", "ngram", "draft"}))
      ->capture_default_str();
  command
      .add_option("--speculative-draft-model", o.draft_model, "the draft model: Hugging Face folder or .gguf file with the same vocabulary")
      ->check(CLI::ExistingPath);
  command.add_option("--num-speculative-tokens", o.num_speculative_tokens, "drafts of a sequence in a step, at most")
      ->check(CLI::Range(1, 64))
      ->capture_default_str();
  command
      .add_option("--max-predicted-ttft", o.max_predicted_ttft_ms,
                  "milliseconds; a request whose first token is expected later gets 429 at once (default: no bound)")
      ->check(CLI::PositiveNumber);
  command.add_option("--max-queue", o.max_queue, "sequences that may wait; beyond it clients get 429")->check(CLI::PositiveNumber);
  command.add_option("--max-device-restarts", o.max_device_restarts, "restarts within a minute before the server gives up")
      ->check(CLI::NonNegativeNumber)
      ->capture_default_str();
  command.add_option("--step-deadline", o.step_deadline_s, "seconds after which a step without a result counts as a lost device")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  command.add_option("--start-deadline", o.start_deadline_s, "seconds that a device may take to load the model")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
}

std::vector<std::string> to_arguments(const engine_options& o) {
  std::vector<std::string> args = {o.model.string(),
                                   "--load-format",
                                   o.load_format,
                                   "--dummy-dtype",
                                   o.dummy_type,
                                   "--device",
                                   o.device,
                                   "--dtype",
                                   o.dtype,
                                   "--gpu-memory-utilization",
                                   std::to_string(o.gpu_memory_utilization),
                                   "--block-size",
                                   std::to_string(o.block_size),
                                   "--kv-cache-dtype",
                                   o.kv_cache_dtype,
                                   "--threads",
                                   std::to_string(o.threads),
                                   "--speculative-method",
                                   o.speculative_method,
                                   "--num-speculative-tokens",
                                   std::to_string(o.num_speculative_tokens),
                                   "--tensor-parallel-size",
                                   std::to_string(o.tensor_parallel_size),
                                   "--pipeline-parallel-size",
                                   std::to_string(o.pipeline_parallel_size),
                                   "--data-parallel-size",
                                   std::to_string(o.data_parallel_size),
                                   "--step-deadline",
                                   std::to_string(o.step_deadline_s),
                                   "--start-deadline",
                                   std::to_string(o.start_deadline_s)};
  if (!o.draft_model.empty()) args.insert(args.end(), {"--speculative-draft-model", o.draft_model.string()});
  auto add = [&](const char* flag, const std::optional<std::int32_t>& value) {
    if (value) args.insert(args.end(), {flag, std::to_string(*value)});
  };
  if (o.max_num_seqs_given) add("--max-num-seqs", o.max_num_seqs);
  if (o.max_num_batched_tokens_given) add("--max-num-batched-tokens", o.max_num_batched_tokens);
  if (o.kv_cache_memory_given) args.insert(args.end(), {"--kv-cache-memory", o.kv_cache_memory});
  if (o.keep_weights) args.push_back(*o.keep_weights ? "--keep-weights" : "--no-keep-weights");
  if (o.keep_kv) args.push_back(*o.keep_kv ? "--keep-kv" : "--no-keep-kv");
  if (o.kernel_times) args.push_back("--kernel-times");
  if (o.reference) args.push_back("--reference");
  if (!o.gpu.graphs) args.push_back("--enforce-eager");
  if (!o.gpu.own_all_reduce) args.push_back("--disable-custom-all-reduce");
  if (o.gpu.batch_invariant) args.push_back("--batch-invariant");
  add("--max-model-len", o.max_model_len);
  add("--num-kv-blocks", o.num_kv_blocks);
  return args;
}

engine_options parse_arguments(std::vector<std::string> arguments) {
  engine_options o;
  CLI::App app;
  add_engine_flags(app, o);
  std::reverse(arguments.begin(), arguments.end()); // as CLI11 wants them
  try {
    app.parse(std::move(arguments));
  } catch (const CLI::ParseError& e) {
    throw std::invalid_argument(e.what());
  }
  return o;
}

dtype parse_type(const std::string& name) {
  if (name == "f32") return dtype::f32;
  if (name == "f16") return dtype::f16;
  if (name == "q8_0") return dtype::q8_0;
  if (name == "q4_0") return dtype::q4_0;
  return dtype::bf16;
}

std::size_t parse_bytes(const std::string& text, const std::string& flag) {
  constexpr std::array<std::pair<const char*, unsigned>, 5> units = {{{"", 0}, {"B", 0}, {"KiB", 10}, {"MiB", 20}, {"GiB", 30}}};
  std::size_t number = 0;
  const auto [end, failed] = std::from_chars(text.data(), text.data() + text.size(), number);
  const std::string unit(end, text.data() + text.size());
  for (const auto& [name, shift] : units) {
    if (failed == std::errc() && number > 0 && unit == name && number <= (std::numeric_limits<std::size_t>::max() >> shift)) {
      return number << shift;
    }
  }
  throw std::invalid_argument(flag + ": \"" + text + "\" is no size; give a number with KiB, MiB or GiB");
}

} // namespace troupe::apps
