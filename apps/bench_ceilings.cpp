// `troupe bench ceilings`: what this machine's GPU can do at best.
#include <CLI/CLI.hpp>

#include <cstdio>
#include <fstream>
#include <memory>
#include <string>

#include "apps/commands.hpp"
#include "core/json.hpp"

#ifdef TROUPE_HAVE_CUDA
#include "kernels/ceilings_gpu.hpp"
#endif

namespace troupe::apps {
namespace {

#ifdef TROUPE_HAVE_CUDA

value json_of(const gpu::ceilings& measured) {
  value_object out;
  out.set("device", measured.device);
  out.set("read_bytes_per_second", measured.read_bandwidth);
  out.set("copy_bytes_per_second", measured.copy_bandwidth);
  out.set("launch_eager_seconds", measured.launch_eager);
  out.set("launch_graph_seconds", measured.launch_graph);
  out.set("launch_overlapped_seconds", measured.launch_overlapped);
  out.set("pinned_up_bytes_per_second", measured.pinned_up);
  out.set("pinned_down_bytes_per_second", measured.pinned_down);
  out.set("small_download_seconds", measured.small_download);
  out.set("matmul_flops_per_second", measured.matmul_rate);
  return out;
}

void print(const gpu::ceilings& measured) {
  std::printf("%s\n", measured.device.c_str());
  std::printf("read                       %8.3f TB/s\n", measured.read_bandwidth * 1e-12);
  std::printf("copy, both ways counted    %8.3f TB/s\n", measured.copy_bandwidth * 1e-12);
  std::printf("bf16 matrix product        %8.0f TFLOP/s\n", measured.matmul_rate * 1e-12);
  std::printf("empty kernel: eager        %8.2f us\n", measured.launch_eager * 1e6);
  std::printf("  in a graph               %8.2f us\n", measured.launch_graph * 1e6);
  std::printf("  in a graph, overlapping  %8.2f us\n", measured.launch_overlapped * 1e6);
  std::printf("pinned memory, up          %8.1f GB/s\n", measured.pinned_up * 1e-9);
  std::printf("  down                     %8.1f GB/s\n", measured.pinned_down * 1e-9);
  std::printf("1 KiB down, and its wait   %8.2f us\n", measured.small_download * 1e6);
}

int run_ceilings(const std::string& json_file) {
  if (cuda::device_count() == 0) {
    std::fputs("troupe bench ceilings: no CUDA device on this machine\n", stderr);
    return 1;
  }
  cuda::use_device(0);
  const gpu::ceilings measured = gpu::measure_ceilings();
  const std::string text = json::dump(json_of(measured)) + "\n";
  if (json_file == "-") {
    std::fputs(text.c_str(), stdout);
    return 0;
  }
  print(measured);
  if (json_file.empty()) return 0;
  std::ofstream file(json_file);
  file << text << std::flush;
  if (file) return 0;
  std::fprintf(stderr, "troupe bench ceilings: %s cannot be written\n", json_file.c_str());
  return 1;
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
  app->add_option("--json", *json_file, "Write the figures as JSON to this file; '-': to standard output, without the table");
  app->callback([json_file, &exit_code] { exit_code = run_ceilings(*json_file); });
}

} // namespace troupe::apps
