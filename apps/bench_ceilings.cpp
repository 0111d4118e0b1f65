// `troupe bench ceilings`: what this machine's GPU can do at best.
#include <CLI/CLI.hpp>

#include <chrono>
#include <cstdio>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "apps/bench/text.hpp"
#include "apps/bench_engine.hpp"
#include "apps/bench_ranks.hpp"
#include "apps/commands.hpp"

#ifdef TROUPE_HAVE_CUDA
#include "kernels/ceilings_gpu.hpp"
#include "models/gpu_sum_ceilings.hpp"
#endif

namespace troupe::apps {
namespace {

struct ceilings_command {
  std::int32_t gpus = 1;
  bench_place place;
  std::string json_file;
};

#ifdef TROUPE_HAVE_CUDA

value_array json_of(const std::vector<sum_ceiling>& sums) {
  value_array out;
  for (const sum_ceiling& at : sums) {
    value_object one;
    one.set("bytes", static_cast<std::int64_t>(at.bytes));
    one.set("nccl_seconds", at.nccl);
    one.set("nccl_bytes_per_second", static_cast<double>(at.bytes) / at.nccl);
    one.set("nccl_and_norm_seconds", at.nccl_and_norm);
    if (at.own > 0) {
      one.set("own_seconds", at.own);
      one.set("own_and_norm_seconds", at.own_and_norm);
    }
    out.emplace_back(std::move(one));
  }
  return out;
}

value json_of(const gpu::ceilings& measured, std::int32_t gpus, const std::vector<sum_ceiling>& sums) {
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
  if (gpus > 1) {
    value_object all_reduce;
    all_reduce.set("gpus", std::int64_t{gpus});
    all_reduce.set("sizes", json_of(sums));
    result.set("all_reduce", std::move(all_reduce));
  }
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

std::string table_of(std::int32_t gpus, const std::vector<sum_ceiling>& sums) {
  using bench::format;
  std::string out = format("\nsums over %d GPUs, us of a call in a graph, bf16; the last column is own + norm over NCCL + norm\n",
                           static_cast<int>(gpus));
  out += format("%10s %10s %10s %12s %10s %12s %8s\n", "KiB", "NCCL", "GB/s", "NCCL + norm", "own", "own + norm", "ratio");
  for (const sum_ceiling& at : sums) {
    out += format("%10zu %10.2f %10.1f %12.2f", at.bytes >> 10, at.nccl * 1e6, static_cast<double>(at.bytes) / at.nccl * 1e-9,
                  at.nccl_and_norm * 1e6);
    if (at.own > 0) {
      out += format(" %10.2f %12.2f %8.3f", at.own * 1e6, at.own_and_norm * 1e6, at.own_and_norm / at.nccl_and_norm);
    }
    out += "\n";
  }
  return out;
}

// The group ends with this, on all GPUs at once.
std::vector<sum_ceiling> sums_over(std::int32_t gpus, const bench_place& place, bench_ranks& ranks) {
  const gpu_rank rank = join_gpus(ranks.join(gpus, place), place.rank, std::chrono::seconds(10)).take();
  return measure_sums(rank, [](const std::string& line) { std::fprintf(stderr, "%s\n", line.c_str()); });
}

int run_ceilings(const ceilings_command& o) {
  const int count = cuda::device_count();
  if (count < o.gpus) {
    std::fprintf(stderr, "troupe bench ceilings: %d of %d CUDA devices are on this machine\n", count, static_cast<int>(o.gpus));
    return 1;
  }
  cuda::use_device(o.place.rank);
  bench_ranks ranks;
  std::vector<sum_ceiling> sums;
  if (o.gpus > 1) sums = sums_over(o.gpus, o.place, ranks);
  if (o.place.rank > 0) return 0;
  const gpu::ceilings measured = gpu::measure_ceilings();
  return report_result(o.json_file, table_of(measured) + (o.gpus > 1 ? table_of(o.gpus, sums) : ""), json_of(measured, o.gpus, sums));
}

#else

int run_ceilings(const ceilings_command&) {
  std::fputs("troupe bench ceilings: this program was built without CUDA (configure with -DTROUPE_CUDA=ON)\n", stderr);
  return 1;
}

#endif

} // namespace

void add_bench_ceilings(CLI::App& bench, int& exit_code) {
  auto o = std::make_shared<ceilings_command>();
  auto* app =
      bench.add_subcommand("ceilings", "Measure what GPUs can do at best: bandwidths, launches, a matrix product, sums over several");
  app->add_option("--tensor-parallel-size,--tp", o->gpus, "GPUs; with more than one, sums over them too")
      ->check(CLI::Range(1, 64))
      ->capture_default_str();
  add_place_flags(*app, o->place);
  add_json_flag(*app, o->json_file);
  app->callback([o, &exit_code] { exit_code = run_ceilings(*o); });
}

} // namespace troupe::apps
