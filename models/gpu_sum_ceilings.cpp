#include "models/gpu_sum_ceilings.hpp"

#include <algorithm>

#include "device/cuda/graph.hpp"
#include "device/cuda/memory.hpp"
#include "kernels/ceilings_gpu.hpp"
#include "kernels/elementwise_gpu.hpp"
#include "models/gpu_rank_sums.hpp"

namespace troupe {
namespace {

constexpr std::int64_t columns = 4096;
constexpr std::size_t row_bytes_each = columns * 2, most_bytes = std::size_t{64} << 20, most_own_bytes = std::size_t{2} << 20;
constexpr float epsilon = 1e-5F;

class sum_bench {
 public:
  sum_bench(const gpu_rank& rank, const gpu_rank_sums::log_line& log) : rank_(rank) {
    for (auto* buffer : {&part_, &hidden_, &normed_}) {
      *buffer = memory_.allocate(most_bytes, "sums");
      gpu::fill_random(on_, buffer->data(), most_bytes, 1);
    }
    weight_ = memory_.allocate(row_bytes_each, "sums");
    gpu::fill_random(on_, weight_.data(), row_bytes_each, 2);
    on_.synchronize();
    const rank_sum_shape shape{dtype::bf16, columns, static_cast<std::int32_t>(most_own_bytes / row_bytes_each)};
    own_ = gpu_rank_sums::open(rank, shape, {memory_, ledger_}, on_, log);
  }

  sum_ceiling at(std::size_t bytes) const {
    const auto rows = static_cast<std::int32_t>(bytes / row_bytes_each);
    sum_ceiling out{bytes};
    out.nccl = seconds(bytes, [&] { all_reduce(bytes); });
    out.nccl_and_norm = seconds(bytes, [&] {
      all_reduce(bytes);
      add_and_normalise(rows);
    });
    if (own_ == nullptr || !own_->takes(rows)) return out;
    out.own = seconds(bytes, [&] { own_->run({part_.data(), hidden_.data(), hidden_.data(), rows, nullptr, epsilon, nullptr, true}); });
    out.own_and_norm = seconds(bytes, [&] {
      own_->run({part_.data(), hidden_.data(), hidden_.data(), rows, weight_.data(), epsilon, normed_.data(), true});
    });
    return out;
  }

 private:
  void all_reduce(std::size_t bytes) const { rank_.devices->all_reduce({part_.data(), bytes / 2, dtype::bf16}, on_.handle()); }
  void add_and_normalise(std::int32_t rows) const {
    gpu::norm_args args;
    args.x = part_.data();
    args.residual = args.sum = hidden_.data();
    args.y = normed_.data();
    args.stride = args.y_stride = args.columns = columns;
    args.rows = rows;
    args.weight = weight_.data();
    args.epsilon = epsilon;
    args.overlaps = true;
    gpu::rms_norm(on_.handle(), args);
  }
  double seconds(std::size_t bytes, const std::function<void()>& call) const {
    const int calls = bytes <= (std::size_t{1} << 20) ? 64 : 8;
    call(); // outside a capture first
    rank_.devices->wait(on_.handle());
    const cuda::graph chain = cuda::graph::capture(on_, [&] {
      for (int i = 0; i < calls; ++i) call();
    });
    const double taken = gpu::median_seconds(on_, 11, 1, [&] { chain.launch(on_); }) / calls;
    rank_.devices->wait(on_.handle());
    return taken;
  }

  const gpu_rank& rank_;
  cuda::stream on_;
  std::unique_ptr<cuda::memory_source> source_ = cuda::own_memory();
  cuda::memory_ledger ledger_;
  cuda::caching_allocator memory_{*source_, ledger_};
  cuda::caching_allocator::buffer part_, hidden_, normed_, weight_;
  std::unique_ptr<gpu_rank_sums> own_;
};

} // namespace

std::vector<sum_ceiling> measure_sums(const gpu_rank& rank, const std::function<void(const std::string&)>& log) {
  const sum_bench bench(rank, log);
  std::vector<sum_ceiling> out;
  for (std::size_t bytes = row_bytes_each; bytes <= most_bytes; bytes *= 2) out.push_back(bench.at(bytes));
  return out;
}

} // namespace troupe
