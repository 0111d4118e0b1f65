// `troupe bench ceilings`: what this machine's GPU can do at best.
#include <CLI/CLI.hpp>

#include <cstdio>
#include <memory>
#include <string>
#include <utility>

#include "apps/bench/text.hpp"
#include "apps/bench_engine.hpp"
#include "apps/commands.hpp"

#ifdef TROUPE_HAVE_CUDA
#include "kernels/ceilings_gpu.hpp"
#endif

namespace troupe::apps {
namespace {

#ifdef TROUPE_HAVE_CUDA

value json_of(const gpu::ceilings& measured) {
  value_object out;
  out.set("read_bytes_per_second", measured.read_bandwidth);
  out.set("copy_bytes_per_second", measured.copy_bandwidth);
  out.set("launch_eager_seconds", measured.launch_eager);
  out.set("launch_graph_seconds", measured.launch_graph);
  out.set("launch_overlapped_seconds", measured.launch_overlapped);
  out.set("pinned_up_bytes_per_second", measured.pinned_up);
  out.set("pinned_down_bytes_per_second", measured.pinned_down);
  out.set("small_download_seconds", measured.small_download);
  out.set("matmul_flops_per_second", measured.matmul_rate);
  bench::result_header header{"ceilings", TROUPE_VERSION, bench::command_line(), "cuda", machine_of("cuda"), {}};
  value_object result = bench::start_result(header);
  result.set("ceilings", std::move(out));
  return result;
}

std::string table_of(const gpu::ceilings& measured) {
  using bench::format;
  std::string out = measured.device + "\n";
  out += format("read                       %8.3f TB/s\n", measured.read_bandwidth * 1e-12);
  out += format("copy, both ways counted    %8.3f TB/s\n", measured.copy_bandwidth * 1e-12);
  out += format("bf16 matrix product        %8.0f TFLOP/s\n", measured.matmul_rate * 1e-12);
  out += format("empty kernel: eager        %8.2f us\n", measured.launch_eager * 1e6);
  out += format("  in a graph               %8.2f us\n", measured.launch_graph * 1e6);
  out += format("  in a graph, overlapping  %8.2f us\n", measured.launch_overlapped * 1e6);
  out += format("pinned memory, up          %8.1f GB/s\n", measured.pinned_up * 1e-9);
  out += format("  down                     %8.1f GB/s\n", measured.pinned_down * 1e-9);
  out += format("1 KiB down, and its wait   %8.2f us\n", measured.small_download * 1e6);
  return out;
}

int run_ceilings(const std::string& json_file) {
  if (cuda::device_count() == 0) {
    std::fputs("troupe bench ceilings: no CUDA device on this machine\n", stderr);
    return 1;
  }
  cuda::use_device(0);
  const gpu::ceilings measured = gpu::measure_ceilings();
  return report_result(json_file, table_of(measured), json_of(measured));
}

#else

int run_ceilings(const std::string&) {
  std::fputs("troupe bench ceilings: this program was built without CUDA (configure with -DTROUPE_CUDA=ON)\n", stderr);
  return 1;
}

#endif

} // namespace

void add_bench_ceilings(CLI::App& bench, int& exit_code) {
  auto json_file = std::make_shared<std::string>();
  auto* app = bench.add_subcommand("ceilings", "Measure what the first GPU can do at best: bandwidths, launches, a matrix product");
  add_json_flag(*app, *json_file);
  app->callback([json_file, &exit_code] { exit_code = run_ceilings(*json_file); });
}

} // namespace troupe::apps
