// Times the GPU part of a decode step without an executor: the layers' five ops each and the head, in one graph, over random weights.
// Prints milliseconds and the ratio to the floor: bytes of weights and KV cache over the read bandwidth measured just before. Then the same
// without overlapping launches, and with one op left out at a time: what the step gains by that is the op's share.
// Usage: decode_chain_bench [8b|1b [CONTEXT [BATCH ...]]]; default 8b 1024 1 8 32 128.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <numeric>
#include <random>
#include <string_view>
#include <vector>

#include "core/error.hpp"
#include "device/cuda/graph.hpp"
#include "device/cuda/pinned_ring.hpp"
#include "kernels/attention_gpu.hpp"
#include "kernels/ceilings_gpu.hpp"
#include "kernels/linear_gpu.hpp"

namespace {

using namespace troupe;

constexpr std::int32_t block_size = 16;

struct model_shape {
  const char* name;
  std::int32_t layers, heads, kv_heads, head_dim, hidden, inner, vocab;
};
constexpr model_shape llama_8b{"Llama-3.1-8B", 32, 32, 8, 128, 4096, 14336, 128256};
constexpr model_shape llama_1b{"Llama-3.2-1B", 16, 32, 8, 64, 2048, 8192, 128256};

enum op { qkv, attention, output, gate_up, down, head, op_count, none = op_count };
constexpr const char* op_names[] = {"qkv", "attention", "output", "gate_up", "down", "head"};

struct matrix {
  std::int64_t rows, columns;
  std::size_t bytes() const { return static_cast<std::size_t>(rows * columns) * 2; }
};
matrix weight_of(const model_shape& m, op which) {
  const std::int32_t queries = m.heads * m.head_dim;
  switch (which) {
    case qkv:
      return {queries + 2 * m.kv_heads * m.head_dim, m.hidden};
    case output:
      return {m.hidden, queries};
    case gate_up:
      return {2 * m.inner, m.hidden};
    case down:
      return {m.hidden, m.inner};
    default:
      return {m.vocab, m.hidden};
  }
}

std::size_t layer_bytes(const model_shape& m) {
  std::size_t bytes = 0;
  for (const op which : {qkv, output, gate_up, down}) bytes += weight_of(m, which).bytes();
  return bytes;
}
std::size_t weight_bytes(const model_shape& m) { return static_cast<std::size_t>(m.layers) * layer_bytes(m) + weight_of(m, head).bytes(); }

class decode_chain {
 public:
  decode_chain(cuda::caching_allocator& memory, const cuda::stream& on, const model_shape& model, const std::byte* weights,
               std::int32_t batch, std::int32_t context)
      : memory_(memory), on_(on), m_(model), weights_(weights), batch_(batch), context_(context) {
    const auto rows = static_cast<std::size_t>(batch) * 2;
    const auto wide = static_cast<std::size_t>(std::max(m_.hidden, m_.heads * m_.head_dim));
    norm_ = random(2 * static_cast<std::size_t>(m_.hidden));
    cache_ = random(static_cast<std::size_t>(m_.layers) * layer_cache_bytes());
    hidden_ = random(rows * wide), query_ = random(rows * wide), attended_ = random(rows * wide);
    inner_ = random(rows * static_cast<std::size_t>(m_.inner)), logits_ = random(rows * 2 * static_cast<std::size_t>(m_.vocab));
    table_ = random(static_cast<std::size_t>((context + 1) * m_.head_dim) * 4);
    splits_ = gpu::decode_attention_splits(batch, m_.heads, m_.kv_heads, context);
    linear_workspace_ = zeros(gpu::linear_workspace(batch, m_.hidden) + 16);
    std::vector<std::int32_t> places(static_cast<std::size_t>(batch), context - 1);
    places.resize(places.size() + static_cast<std::size_t>(blocks()));
    std::iota(places.begin() + batch, places.end(), 0);
    std::shuffle(places.begin() + batch, places.end(), std::mt19937(1));
    places_ = memory_.allocate(places.size() * 4, "bench");
    copy_in(places_, places.data(), places.size() * 4);
  }

  std::size_t floor_bytes() const {
    const std::size_t kv = static_cast<std::size_t>(batch_) * static_cast<std::size_t>(context_ * m_.kv_heads * m_.head_dim) * 4;
    return weight_bytes(m_) + static_cast<std::size_t>(m_.layers) * kv;
  }
  std::int32_t splits() const { return splits_; }

  double seconds(bool overlaps, op left_out) {
    const cuda::graph step = cuda::graph::capture(on_, [&] { run(overlaps, left_out); });
    return gpu::median_seconds(on_, 21, 1, [&] { step.launch(on_); });
  }

 private:
  using buffer = cuda::caching_allocator::buffer;

  std::int32_t blocks() const { return batch_ * (context_ / block_size + 1); }
  std::size_t layer_cache_bytes() const {
    return kv_layout{dtype::bf16, block_size, m_.kv_heads, m_.head_dim}.block_bytes() * static_cast<std::size_t>(blocks());
  }

  buffer random(std::size_t bytes) {
    buffer out = memory_.allocate(bytes, "bench");
    gpu::fill_random(on_, out.data(), bytes / 16 * 16, static_cast<unsigned>(bytes));
    return out;
  }
  buffer zeros(std::size_t bytes) {
    buffer out = memory_.allocate(bytes, "bench");
    const std::vector<std::byte> host(bytes);
    copy_in(out, host.data(), bytes);
    return out;
  }
  void copy_in(const buffer& to, const void* from, std::size_t bytes) {
    cuda::pinned_ring ring(1, bytes);
    std::byte* host = ring.next();
    std::memcpy(host, from, bytes);
    cuda::copy_in(on_, to.data(), host, bytes);
    on_.synchronize();
  }

  gpu::linear_args args(op which, const std::byte* weight, const buffer& x, const buffer& y, std::int64_t y_stride, bool norm,
                        bool overlaps) const {
    gpu::linear_args out;
    out.weight = weight;
    out.out_rows = weight_of(m_, which).rows;
    out.columns = out.x_stride = weight_of(m_, which).columns;
    out.x = x.data();
    out.rows = batch_;
    if (norm) out.norm_weight = norm_.data();
    out.epsilon = 1e-5F;
    out.y = y.data();
    out.y_stride = y_stride;
    out.workspace = linear_workspace_.data();
    out.overlaps = overlaps;
    return out;
  }

  void run(bool overlaps, op left_out) {
    const std::byte* weight = weights_;
    const auto next = [&weight, this](op which) {
      const std::byte* at = weight;
      weight += weight_of(m_, which).bytes();
      return at;
    };
    const std::int32_t queries = m_.heads * m_.head_dim;
    const auto* table = reinterpret_cast<const float*>(table_.data());
    const gpu::rotary rotary{table, table + (context_ + 1) * m_.head_dim / 2};
    for (std::int32_t layer = 0; layer < m_.layers; ++layer) {
      const kv_layer_view kv{{dtype::bf16, block_size, m_.kv_heads, m_.head_dim},
                             cache_.data() + static_cast<std::size_t>(layer) * layer_cache_bytes()};
      const auto qkv_args = args(qkv, next(qkv), hidden_, query_, queries, true, overlaps);
      if (left_out != qkv) gpu::linear_qkv(on_.handle(), qkv_args, {m_.heads, places(), rotary, kv});
      if (left_out != attention) attend(kv, overlaps);
      const auto output_args = args(output, next(output), attended_, hidden_, m_.hidden, false, overlaps);
      if (left_out != output) gpu::linear_residual(on_.handle(), output_args, hidden_.data());
      const auto gate_up_args = args(gate_up, next(gate_up), hidden_, inner_, m_.inner, true, overlaps);
      if (left_out != gate_up) gpu::linear_swiglu(on_.handle(), gate_up_args);
      const auto down_args = args(down, next(down), inner_, hidden_, m_.hidden, false, overlaps);
      if (left_out != down) gpu::linear_residual(on_.handle(), down_args, hidden_.data());
    }
    if (left_out != head) gpu::linear_to_f32(on_.handle(), args(head, next(head), hidden_, logits_, m_.vocab, true, overlaps));
  }

  gpu::row_places places() const {
    const auto* first = reinterpret_cast<const std::int32_t*>(places_.data());
    return {first, first + batch_, context_ / block_size + 1};
  }

  void attend(const kv_layer_view& kv, bool overlaps) {
    gpu::decode_attention_args args;
    args.query = query_.data();
    args.output = attended_.data();
    args.query_stride = args.output_stride = m_.heads * m_.head_dim;
    args.rows = batch_;
    args.heads = m_.heads;
    args.scale = 1.0F / std::sqrt(static_cast<float>(m_.head_dim));
    args.places = places();
    args.kv = kv;
    args.splits = splits_;
    args.overlaps = overlaps;
    args.unsettled = 1;
    args.longest = context_;
    gpu::decode_attention(on_.handle(), args);
  }

  cuda::caching_allocator& memory_;
  const cuda::stream& on_;
  const model_shape& m_;
  const std::byte* weights_;
  std::int32_t batch_, context_, splits_ = 1;
  buffer norm_, cache_, hidden_, query_, attended_, inner_, logits_, table_, places_, linear_workspace_;
};

void bench(const model_shape& model, std::int32_t context, const std::vector<std::int32_t>& batches) {
  cuda::use_device(0);
  const cuda::stream on;
  const auto source = cuda::own_memory();
  cuda::memory_ledger ledger;
  cuda::caching_allocator memory(*source, ledger);
  const auto weights = memory.allocate(weight_bytes(model), "weights");
  gpu::fill_random(on, weights.data(), weights.size() / 16 * 16, 1);
  for (const std::int32_t batch : batches) {
    cuda::caching_allocator own(*source, ledger);
    decode_chain chain(own, on, model, weights.data(), batch, context);
    const double bandwidth = gpu::measure_read_bandwidth(on, weights.data(), std::min(weights.size(), std::size_t{8} << 30));
    const double floor = static_cast<double>(chain.floor_bytes()) / bandwidth;
    const double whole = chain.seconds(true, none), apart = chain.seconds(false, none);
    std::printf("%s batch %3d context %d: floor %.3f ms (%.3f TB/s), step %.3f ms = %.3f x floor, without overlap %.3f ms = %.3f\n",
                model.name, batch, context, floor * 1e3, bandwidth * 1e-12, whole * 1e3, whole / floor, apart * 1e3, apart / floor);
    std::printf("  share in us (a layer's, but for the head), %d splits:", chain.splits());
    for (int i = 0; i < op_count; ++i) {
      const auto which = static_cast<op>(i);
      const double share = whole - chain.seconds(true, which);
      std::printf(" %s %.2f", op_names[i], share * 1e6 / (which == head ? 1 : model.layers));
    }
    std::printf("\n");
    std::fflush(stdout);
  }
}

} // namespace

int main(int argc, char** argv) {
  const model_shape& model = argc > 1 && std::string_view(argv[1]) == "1b" ? llama_1b : llama_8b;
  const int context = argc > 2 ? std::atoi(argv[2]) : 1024;
  std::vector<std::int32_t> batches;
  for (int i = 3; i < argc; ++i) batches.push_back(std::atoi(argv[i]));
  if (batches.empty()) batches = {1, 8, 32, 128};
  try {
    if (cuda::device_count() == 0) throw device_error("no CUDA device on this machine");
    bench(model, context, batches);
    return 0;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "decode_chain_bench: %s\n", error.what());
    return 1;
  }
}
