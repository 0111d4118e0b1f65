#include "apps/bench_engine.hpp"

#include <spdlog/spdlog.h>
#include <CLI/CLI.hpp>

#include <cstdio>
#include <exception>
#include <fstream>
#include <iterator>
#include <optional>
#include <stdexcept>

#include "apps/device_choice.hpp"
#include "apps/engine.hpp"

#ifdef TROUPE_HAVE_CUDA
#include "device/cuda/device_info.hpp"
#include "kernels/ceilings_gpu.hpp"
#endif

namespace troupe::apps {
namespace {

constexpr std::size_t kCpuReadBytes = std::size_t{512} << 20; // well beyond any cache

value model_json(const engine_options& options, const checkpoint& source, const bench::model_cost& cost) {
  const model_config& c = source.config();
  value_object shape, out;
  shape.set("hidden_size", std::int64_t{c.hidden_size});
  shape.set("intermediate_size", std::int64_t{c.intermediate_size});
  shape.set("num_layers", std::int64_t{c.num_layers});
  shape.set("num_heads", std::int64_t{c.num_heads});
  shape.set("num_kv_heads", std::int64_t{c.num_kv_heads});
  shape.set("head_dim", std::int64_t{c.head_dim});
  shape.set("vocab_size", std::int64_t{c.vocab_size});
  out.set("name", served_names(options).front());
  out.set("load_format", options.load_format);
  out.set("shape", std::move(shape));
  out.set("streamed_weight_bytes", static_cast<std::int64_t>(cost.weight_bytes()));
  return out;
}

bench::rate_ceilings measure(const engine_options& options, const checkpoint& source) {
#ifdef TROUPE_HAVE_CUDA
  if (const auto gpu_number = choose_device(options, source.config()).gpu) {
    cuda::use_device(*gpu_number);
    const gpu::ceilings measured = gpu::measure_ceilings();
    return {measured.read_bandwidth, measured.matmul_rate};
  }
#endif
  static_cast<void>(source);
  return {bench::measure_cpu_read_bandwidth(kCpuReadBytes, options.threads), 0};
}

} // namespace

bench::rate_ceilings measure_ceilings(const engine_options& options, const checkpoint& source) {
  try {
    return measure(options, source);
  } catch (const std::exception& e) {
    spdlog::error("the machine's ceilings could not be measured: {}", e.what());
    return {};
  }
}

void refuse_speculation(const engine_options& options) {
  if (options.speculative_method == "off") return;
  throw std::invalid_argument("--speculative-method: this bench measures plain steps; bench throughput takes it");
}

std::string device_kind(const engine_options& options, const checkpoint& source) {
  return choose_device(options, source.config()).gpu ? "cuda" : "cpu";
}

bench::machine_info machine_of(const std::string& device, std::int32_t gpu_number) {
  bench::machine_info machine = bench::read_machine();
#ifdef TROUPE_HAVE_CUDA
  if (device == "cuda") {
    const cuda::device_info gpu = cuda::describe_device(gpu_number);
    machine.gpu = gpu.name;
    machine.cuda = gpu.runtime_version;
    machine.driver = bench::read_driver_version();
  }
#else
  static_cast<void>(device);
  static_cast<void>(gpu_number);
#endif
  return machine;
}

bench::model_cost cost_of(const engine_options& options, const checkpoint& source) {
  const device_types types = types_on_device(options, source);
  return {source, types.weights, types.kv};
}

value_object begin_result(const std::string& kind, const engine_options& options, const checkpoint& source,
                          const bench::rate_ceilings& ceilings) {
  const std::optional<std::int32_t> gpu = choose_device(options, source.config()).gpu;
  const std::string device = device_kind(options, source);
  value_object out = bench::start_result({kind, TROUPE_VERSION, bench::command_line(), device, machine_of(device, gpu.value_or(0)), ceilings});
  out.set("model", model_json(options, source, cost_of(options, source)));
  value_object parallel;
  parallel.set("tp", std::int64_t{options.tensor_parallel_size});
  parallel.set("pp", std::int64_t{options.pipeline_parallel_size});
  parallel.set("dp", std::int64_t{options.data_parallel_size});
  out.set("parallel", std::move(parallel));
  return out;
}

void add_json_flag(CLI::App& command, std::string& file) {
  command.add_option("--json", file, "Write the figures as JSON to this file; '-': to standard output, without the table");
}

int report_result(const std::string& json_file, const std::string& table, const value& result) {
  if (json_file != "-") std::fputs(table.c_str(), stdout);
  if (!json_file.empty() && !bench::write_result(json_file, result)) {
    std::fprintf(stderr, "troupe bench: %s cannot be written\n", json_file.c_str());
    return 1;
  }
  const value* const reading = result.find("ceilings") ? result.find("ceilings")->find("read_bytes_per_second") : nullptr;
  return reading && reading->is_number() && !result.find("failure") ? 0 : 1;
}

} // namespace troupe::apps
