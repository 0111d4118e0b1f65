// Times the GPU part of a decode step at Llama-3.1-8B's shapes without an executor: 32 layers of five launches and the head, in one
// graph, over random weights. Prints milliseconds, and the ratio to the floor: bytes of weights and KV cache over the read bandwidth
// measured just before; launches overlap, then not, then overlap with attention left out. Usage: decode_chain_bench [CONTEXT [BATCH ...]];
// default 1024 positions, batches 1 and 8.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <numeric>
#include <vector>

#include "core/error.hpp"
#include "device/cuda/graph.hpp"
#include "device/cuda/pinned_ring.hpp"
#include "kernels/attention_gpu.hpp"
#include "kernels/ceilings_gpu.hpp"
#include "kernels/linear_gpu.hpp"

namespace {

using namespace troupe;

constexpr std::int32_t layers = 32, heads = 32, kv_heads = 8, head_dim = 128, hidden = 4096, inner = 14336, vocab = 128256, block_size = 16;
constexpr std::int32_t qkv_rows = (heads + 2 * kv_heads) * head_dim;

struct matrix {
  std::int64_t rows, columns;
  std::size_t bytes() const { return gpu::packed_bytes(rows, columns); }
};
constexpr matrix qkv{qkv_rows, hidden}, o{hidden, hidden}, gate_up{2 * inner, hidden}, down{hidden, inner}, head{vocab, hidden};

class decode_chain {
 public:
  decode_chain(cuda::caching_allocator& memory, const cuda::stream& on, std::int32_t batch, std::int32_t context, std::int32_t splits)
      : memory_(memory), on_(on), batch_(batch), context_(context), splits_(splits) {
    const std::int32_t blocks = batch * (context / block_size + 1);
    weights_ = random(layers * layer_bytes() + head.bytes());
    norm_ = random(2 * hidden);
    cache_ = random(static_cast<std::size_t>(layers) * layer_cache_bytes());
    const std::size_t rows = static_cast<std::size_t>(batch) * 2;
    hidden_ = random(rows * hidden), query_ = random(rows * hidden), attended_ = random(rows * hidden), inner_ = random(rows * inner);
    logits_ = random(rows * 2 * vocab);
    table_ = random(static_cast<std::size_t>(context + 1) * head_dim * 4);
    std::vector<std::int32_t> places(static_cast<std::size_t>(batch), context - 1);
    places.resize(places.size() + static_cast<std::size_t>(blocks));
    std::iota(places.begin() + batch, places.end(), 0);
    places_ = memory_.allocate(places.size() * 4, "bench");
    workspace_ = memory_.allocate(gpu::decode_attention_workspace(batch, heads, head_dim, splits), "bench");
    cuda::pinned_ring ring(1, std::max(places.size() * 4, workspace_.size()));
    std::byte* host = ring.next();
    std::memcpy(host, places.data(), places.size() * 4);
    cuda::copy_in(on, places_.data(), host, places.size() * 4);
    on.synchronize();
    std::memset(host, 0, workspace_.size());
    cuda::copy_in(on, workspace_.data(), host, workspace_.size());
    on.synchronize();
  }

  std::size_t floor_bytes() const {
    const std::size_t kv = static_cast<std::size_t>(batch_) * static_cast<std::size_t>(context_) * kv_heads * head_dim * 4;
    return layers * (layer_bytes() + kv) + head.bytes();
  }
  const std::byte* weights() const { return weights_.data(); }

  double seconds(bool overlaps, bool attention) {
    const cuda::graph step = cuda::graph::capture(on_, [&] { run(overlaps, attention); });
    return gpu::median_seconds(on_, 21, 1, [&] { step.launch(on_); });
  }

 private:
  using buffer = cuda::caching_allocator::buffer;

  static std::size_t layer_bytes() { return qkv.bytes() + o.bytes() + gate_up.bytes() + down.bytes(); }
  std::size_t layer_cache_bytes() const {
    return kv_layout{dtype::bf16, block_size, kv_heads, head_dim}.block_bytes() *
           static_cast<std::size_t>(batch_ * (context_ / block_size + 1));
  }

  buffer random(std::size_t bytes) {
    buffer out = memory_.allocate(bytes, "bench");
    gpu::fill_random(on_, out.data(), bytes / 16 * 16, static_cast<unsigned>(bytes));
    return out;
  }

  gpu::linear_args args(const matrix& shape, const std::byte* weight, const buffer& x, const buffer& y, bool norm, bool overlaps) const {
    gpu::linear_args out;
    out.packed = weight;
    out.out_rows = shape.rows;
    out.columns = out.x_stride = shape.columns;
    out.x = x.data();
    out.rows = batch_;
    if (norm) out.norm_weight = norm_.data();
    out.epsilon = 1e-5F;
    out.y = y.data();
    out.overlaps = overlaps;
    return out;
  }

  void run(bool overlaps, bool attention) {
    const std::byte* weight = weights_.data();
    const gpu::row_places places{reinterpret_cast<const std::int32_t*>(places_.data()),
                                 reinterpret_cast<const std::int32_t*>(places_.data()) + batch_, context_ / block_size + 1};
    const auto next = [&weight](const matrix& m) {
      const std::byte* at = weight;
      weight += m.bytes();
      return at;
    };
    for (std::size_t layer = 0; layer < layers; ++layer) {
      const kv_layer_view kv{{dtype::bf16, block_size, kv_heads, head_dim}, cache_.data() + layer * layer_cache_bytes()};
      gpu::linear_args product = args(qkv, next(qkv), hidden_, query_, true, overlaps);
      product.y_stride = hidden;
      const auto* table = reinterpret_cast<const float*>(table_.data());
      gpu::linear_qkv(on_.handle(), product, {heads, places, {table, table + (context_ + 1) * head_dim / 2}, kv});
      if (attention) {
        gpu::decode_attention(on_.handle(), {query_.data(), hidden, attended_.data(), hidden, batch_, heads, 1.0F / std::sqrt(128.0F), 0,
                                             places, kv, splits_, workspace_.data(), overlaps});
      }
      product = args(o, next(o), attended_, hidden_, false, overlaps);
      product.y_stride = hidden;
      gpu::linear_residual(on_.handle(), product, hidden_.data());
      product = args(gate_up, next(gate_up), hidden_, inner_, true, overlaps);
      product.y_stride = inner;
      gpu::linear_swiglu(on_.handle(), product);
      product = args(down, next(down), inner_, hidden_, false, overlaps);
      product.y_stride = hidden;
      gpu::linear_residual(on_.handle(), product, hidden_.data());
    }
    gpu::linear_args product = args(head, next(head), hidden_, logits_, true, overlaps);
    product.y_stride = vocab;
    gpu::linear_to_f32(on_.handle(), product);
  }

  cuda::caching_allocator& memory_;
  const cuda::stream& on_;
  std::int32_t batch_, context_, splits_;
  buffer weights_, norm_, cache_, hidden_, query_, attended_, inner_, logits_, table_, places_, workspace_;
};

int bench(std::int32_t context, const std::vector<std::int32_t>& batches) {
  if (cuda::device_count() == 0) {
    std::fprintf(stderr, "decode_chain_bench: no CUDA device on this machine\n");
    return 1;
  }
  cuda::use_device(0);
  const cuda::stream on;
  const auto source = cuda::own_memory();
  cuda::memory_ledger ledger;
  for (const std::int32_t batch : batches) {
    for (const std::int32_t splits : {8, 16}) {
      cuda::caching_allocator memory(*source, ledger);
      decode_chain chain(memory, on, batch, context, splits);
      const double bandwidth = gpu::measure_read_bandwidth(on, chain.weights(), std::size_t{8} << 30);
      const double floor = static_cast<double>(chain.floor_bytes()) / bandwidth;
      const double plain = chain.seconds(false, true), overlapped = chain.seconds(true, true), products = chain.seconds(true, false);
      std::printf(
          "batch %2d context %d splits %2d: floor %.3f ms (%.3f TB/s), chain %.3f ms = %.3f x floor, without overlap %.3f ms, "
          "without attention %.3f ms\n",
          batch, context, splits, floor * 1e3, bandwidth * 1e-12, overlapped * 1e3, overlapped / floor, plain * 1e3, products * 1e3);
      std::fflush(stdout);
    }
  }
  return 0;
}

} // namespace

int main(int argc, char** argv) {
  const int context = argc > 1 ? std::atoi(argv[1]) : 1024;
  std::vector<std::int32_t> batches;
  for (int i = 2; i < argc; ++i) batches.push_back(std::atoi(argv[i]));
  if (batches.empty()) batches = {1, 8};
  try {
    return bench(context, batches);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "decode_chain_bench: %s\n", error.what());
    return 1;
  }
}
