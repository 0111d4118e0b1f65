// Times the ops of a prefill step at Llama-3.1-8B's shapes without an executor, and the sampler. Prints each op beside what the GPU can do
// at best, measured in the same run, then 32 layers in a row as one graph. Usage: prefill_bench [ROWS]; default 8192.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "device/cuda/graph.hpp"
#include "device/cuda/pinned_ring.hpp"
#include "kernels/ceilings_gpu.hpp"
#include "kernels/elementwise_gpu.hpp"
#include "kernels/matmul_gpu.hpp"
#include "kernels/prefill_attention_gpu.hpp"
#include "kernels/sampling_gpu.hpp"

namespace {

using namespace troupe;
using buffer = cuda::caching_allocator::buffer;

constexpr std::int32_t layers = 32, kept_layers = 4, heads = 32, kv_heads = 8, head_dim = 128, hidden = 4096, inner = 14336, vocab = 128256,
                       block_size = 16, qkv_width = (heads + 2 * kv_heads) * head_dim;
constexpr std::size_t qkv_size = std::size_t{qkv_width} * hidden, o_size = std::size_t{hidden} * hidden,
                      gate_up_size = std::size_t{2 * inner} * hidden, down_size = std::size_t{hidden} * inner;
constexpr std::size_t layer_size = qkv_size + o_size + gate_up_size + down_size;

class bench {
 public:
  explicit bench(const cuda::stream& on) : on_(on), source_(cuda::own_memory()), memory_(*source_, ledger_) {}

  template <class T>
  buffer upload(const std::vector<T>& values) {
    buffer out = memory_.allocate(values.size() * sizeof(T), "bench");
    cuda::pinned_ring ring(1, values.size() * sizeof(T));
    std::memcpy(ring.next(), values.data(), values.size() * sizeof(T));
    cuda::copy_in(on_, out.data(), ring.next(), values.size() * sizeof(T));
    on_.synchronize();
    return out;
  }
  buffer random(std::size_t bytes) {
    buffer out = memory_.allocate(bytes, "bench");
    gpu::fill_random(on_, out.data(), bytes / 16 * 16, static_cast<unsigned>(bytes));
    return out;
  }
  double seconds(const std::function<void()>& work) const { return gpu::median_seconds(on_, 7, 3, work); }
  const cuda::stream& on() const { return on_; }
  cuda::caching_allocator& memory() { return memory_; }

 private:
  const cuda::stream& on_;
  std::unique_ptr<cuda::memory_source> source_;
  cuda::memory_ledger ledger_;
  cuda::caching_allocator memory_;
};

// Several sequences of `rows` rows in all, each from `first` on; what attention does for them.
class attention_load {
 public:
  attention_load(bench& b, std::int32_t sequences, std::int32_t rows, std::int32_t first, std::int32_t dims, std::int32_t window)
      : rows_(rows),
        dims_(dims),
        window_(window),
        stride_((first + rows / sequences + block_size - 1) / block_size),
        blocks_(sequences * stride_) {
    std::vector<gpu::prefill_span> spans;
    for (std::int32_t s = 0, each = rows / sequences; s < sequences; ++s) {
      spans.push_back({s * each, each, first, s});
      for (std::int32_t p = first + 1; p <= first + each; ++p) operations_ += 4.0 * (window > 0 ? std::min(window, p) : p) * dims * heads;
    }
    std::vector<gpu::prefill_tile> tiles;
    gpu::split_prefill(spans, heads, kv_heads, window, tiles);
    tile_count_ = static_cast<std::int32_t>(tiles.size());
    std::vector<std::int32_t> table(static_cast<std::size_t>(blocks_));
    std::iota(table.begin(), table.end(), 0);
    std::shuffle(table.begin(), table.end(), std::mt19937(1));
    tiles_ = b.upload(tiles), tables_ = b.upload(table);
    cache_ = b.random(layout().block_bytes() * static_cast<std::size_t>(blocks_));
  }

  kv_layout layout() const { return {dtype::bf16, block_size, kv_heads, dims_}; }
  kv_layer_view kv() const { return {layout(), cache_.data()}; }
  const std::int32_t* tables() const { return reinterpret_cast<const std::int32_t*>(tables_.data()); }
  std::int64_t table_stride() const { return stride_; }
  double operations() const { return operations_; }

  void run(const cuda::stream& on, const std::byte* query, std::int64_t stride, std::byte* output) const {
    gpu::prefill_attention_args args;
    args.query = query;
    args.query_stride = stride;
    args.output = output;
    args.output_stride = heads * dims_;
    args.rows = rows_;
    args.heads = heads;
    args.scale = 1.0F / std::sqrt(static_cast<float>(dims_));
    args.window = window_;
    args.tiles = reinterpret_cast<const gpu::prefill_tile*>(tiles_.data());
    args.tile_count = tile_count_;
    args.block_tables = tables();
    args.table_stride = stride_;
    args.kv = kv();
    args.blocks = blocks_;
    gpu::prefill_attention(on.handle(), args);
  }

 private:
  std::int32_t rows_, dims_, window_, stride_, blocks_, tile_count_ = 0;
  double operations_ = 0;
  buffer tiles_, tables_, cache_;
};

class layer_load {
 public:
  layer_load(bench& b, std::int32_t rows)
      : b_(b),
        rows_(rows),
        attention_(b, 1, rows, 0, head_dim, 0),
        product_(b.memory(), {}, [](const std::string& line) { std::puts(line.c_str()); }) {
    const std::size_t count = static_cast<std::size_t>(rows) * 2;
    weights_ = b.random(layer_size * kept_layers * 2), norm_ = b.random(hidden * 2);
    hidden_ = b.random(count * hidden), between_ = b.random(count * hidden), normed_ = b.random(count * hidden),
    qkv_ = b.random(count * qkv_width);
    attended_ = b.random(count * hidden), gate_up_ = b.random(count * 2 * inner), inner_ = b.random(count * inner);
    table_ = b.random(static_cast<std::size_t>(rows) * head_dim * 4);
    std::vector<std::int32_t> positions(static_cast<std::size_t>(rows));
    std::iota(positions.begin(), positions.end(), 0);
    positions_ = b.upload(positions), sequences_ = b.upload(std::vector<std::int32_t>(positions.size()));
    for (const auto which : {0, 1, 2, 3}) {
      std::vector<const void*> all;
      for (int l = 0; l < kept_layers; ++l) all.push_back(matmul_args(which, l).weight);
      product_.tune(b.on(), matmul_args(which, 0), all, std::span(&rows_, 1));
    }
  }

  static constexpr const char* names[] = {"qkv", "o + residual", "gate, up", "down + residual"};
  gpu::matmul_args matmul_args(int which, int layer) const {
    const std::byte* w = weights_.data() + static_cast<std::size_t>(layer % kept_layers) * layer_size * 2;
    gpu::matmul_args a;
    const auto set = [&](std::size_t skipped, std::int64_t out_rows, const buffer& x, std::int64_t columns, const buffer& y) {
      a.weight = w + skipped * 2;
      a.out_rows = a.y_stride = out_rows;
      a.columns = a.x_stride = columns;
      a.x = x.data();
      a.y = y.data();
    };
    a.rows = rows_;
    if (which == 0) set(0, qkv_width, normed_, hidden, qkv_);
    if (which == 1) set(qkv_size, hidden, attended_, hidden, between_);
    if (which == 2) set(qkv_size + o_size, 2 * inner, normed_, hidden, gate_up_);
    if (which == 3) set(qkv_size + o_size + gate_up_size, hidden, inner_, inner, hidden_);
    if (which == 1) a.residual = hidden_.data();
    if (which == 3) a.residual = between_.data();
    return a;
  }
  double matmul_operations(int which) const {
    const gpu::matmul_args a = matmul_args(which, 0);
    return 2.0 * rows_ * static_cast<double>(a.out_rows) * static_cast<double>(a.columns);
  }
  void matmul(int which, int layer) { product_.run(b_.on().handle(), matmul_args(which, layer)); }
  void norm(const buffer& x) {
    gpu::norm_args a;
    a.x = x.data();
    a.y = normed_.data();
    a.stride = a.y_stride = a.columns = hidden;
    a.rows = rows_;
    a.weight = norm_.data();
    a.epsilon = 1e-5F;
    gpu::rms_norm(b_.on().handle(), a);
  }
  void norm_first() { norm(hidden_); }
  void rope() {
    gpu::rope_kv_args a;
    a.qkv = qkv_.data();
    a.stride = qkv_width;
    a.rows = rows_;
    a.heads = heads;
    a.places = {reinterpret_cast<const std::int32_t*>(positions_.data()), attention_.tables(), attention_.table_stride()};
    a.tables = reinterpret_cast<const std::int32_t*>(sequences_.data());
    a.table = {reinterpret_cast<const float*>(table_.data()),
               reinterpret_cast<const float*>(table_.data()) + std::size_t{1} * static_cast<std::size_t>(rows_) * head_dim / 2};
    a.kv = attention_.kv();
    gpu::rope_and_kv_write(b_.on().handle(), a);
  }
  void attend() { attention_.run(b_.on(), qkv_.data(), qkv_width, attended_.data()); }
  void swiglu() { gpu::swiglu(b_.on().handle(), {dtype::bf16, gate_up_.data(), 2 * inner, inner_.data(), inner, rows_, inner, false}); }
  void layer(int l) {
    norm(hidden_);
    matmul(0, l);
    rope();
    attend();
    matmul(1, l);
    norm(between_);
    matmul(2, l);
    swiglu();
    matmul(3, l);
  }
  double attention_operations() const { return attention_.operations(); }

 private:
  bench& b_;
  std::int32_t rows_;
  attention_load attention_;
  gpu::matmul product_;
  buffer weights_, norm_, hidden_, between_, normed_, qkv_, attended_, gate_up_, inner_, table_, positions_, sequences_;
};

void time_layer(bench& b, std::int32_t rows, const gpu::ceilings& best) {
  layer_load load(b, rows);
  double sum = 0, operations = 0;
  const auto arithmetic = [&](const char* name, double count, const std::function<void()>& work) {
    const double s = b.seconds(work);
    sum += s, operations += count;
    std::printf("  %-16s %7.3f ms %7.1f TFLOP/s  %.2f of the peak\n", name, s * 1e3, count / s * 1e-12, count / s / best.matmul_rate);
  };
  const auto traffic = [&](const char* name, double columns, int times, const std::function<void()>& work) {
    const double s = b.seconds(work), bytes = columns * 2 * rows;
    sum += s * times;
    std::printf("  %-16s %7.3f ms %7.2f TB/s  %.2f of a copy\n", name, s * 1e3, bytes / s * 1e-12, bytes / s / best.copy_bandwidth);
  };
  std::printf("one layer, %d rows\n", rows);
  int turn = 0;
  for (const int which : {0, 1, 2, 3})
    arithmetic(layer_load::names[which], load.matmul_operations(which), [&] { load.matmul(which, turn++); });
  arithmetic("attention", load.attention_operations(), [&] { load.attend(); });
  traffic("norm", 2 * hidden, 2, [&] { load.norm_first(); });
  traffic("rope, KV write", 2 * qkv_width, 1, [&] { load.rope(); });
  traffic("swiglu", 3 * inner, 1, [&] { load.swiglu(); });
  std::printf("  sum %.3f ms, %.2f of the peak\n", sum * 1e3, operations / sum / best.matmul_rate);
  const cuda::graph all = cuda::graph::capture(b.on(), [&] {
    for (int l = 0; l < layers; ++l) load.layer(l);
  });
  const double s = gpu::median_seconds(b.on(), 5, 1, [&] { all.launch(b.on()); });
  std::printf("%d layers in one graph: %.2f ms, %.2f of the peak\n", layers, s * 1e3, layers * operations / s / best.matmul_rate);
}

void time_attention(bench& b, const gpu::ceilings& best) {
  struct {
    const char* name;
    std::int32_t sequences, rows, first, dims, window;
  } const cases[] = {{"2048 from 6144 on", 1, 2048, 6144, 128, 0}, {"4 x 2048", 4, 8192, 0, 128, 0},
                     {"8192, window 1024", 1, 8192, 0, 128, 1024}, {"8192, head_dim 64", 1, 8192, 0, 64, 0},
                     {"64 x 1 at 1024", 64, 64, 1023, 128, 0},     {"512 from 0 on", 1, 512, 0, 128, 0}};
  std::printf("attention\n");
  for (const auto& c : cases) {
    const attention_load load(b, c.sequences, c.rows, c.first, c.dims, c.window);
    const buffer query = b.random(static_cast<std::size_t>(c.rows) * heads * static_cast<std::size_t>(c.dims) * 2),
                 out = b.random(query.size());
    const double s = b.seconds([&] { load.run(b.on(), query.data(), heads * c.dims, out.data()); });
    std::printf("  %-18s %8.3f ms %7.1f TFLOP/s  %.2f of the peak\n", c.name, s * 1e3, load.operations() / s * 1e-12,
                load.operations() / s / best.matmul_rate);
  }
}

void time_sampling(bench& b) {
  constexpr std::int32_t most = 128;
  std::mt19937 random(3);
  std::normal_distribution<float> normal(0.0F, 2.0F);
  std::vector<float> some(1 << 20), logits(std::size_t{most} * vocab);
  for (float& x : some) x = normal(random) + (random() % 5000 == 0 ? 12.0F : 0.0F);
  for (std::size_t i = 0; i < logits.size(); ++i) logits[i] = some[(i * 7 + i / vocab * 12345) % some.size()];
  const buffer device = b.upload(logits), history = b.upload(std::vector<std::uint32_t>(std::size_t{most} * vocab)),
               sampled = b.random(most * sizeof(gpu::sampled_token)),
               best = b.random(std::size_t{most} * gpu::most_best_tokens * sizeof(scored_token)), biases = b.random(most * 64 * 8);
  struct {
    const char* name;
    float temperature, top_p;
    std::int32_t top_k;
    float repetition;
    std::int32_t reported;
  } const cases[] = {{"greedy", 0, 1, 0, 1, 0},           {"temperature", 1, 1, 0, 1, 0},
                     {"top_p 0.9", 1, 0.9F, 0, 1, 0},     {"top_p 0.9, hot", 3, 0.9F, 0, 1, 0},
                     {"top_k 50", 1, 1, 50, 1, 0},        {"top_k 1000", 1, 1, 1000, 1, 0},
                     {"penalties", 0, 1, 0, 1.1F, 0},     {"20 logprobs", 0, 1, 0, 1, 21},
                     {"all of it", 1, 0.9F, 50, 1.1F, 21}};
  std::printf("sampling of %d ids, us for 1, 32 and %d rows\n", vocab, most);
  for (const auto& c : cases) {
    std::vector<gpu::sampling_row> rows;
    std::vector<gpu::sampling_slot> slots;
    for (std::int32_t r = 0; r < most; ++r) {
      rows.push_back({gpu::sampling_row::work::draw, r, r, 0, 0, 0});
      gpu::sampling_slot slot;
      slot.temperature = c.temperature, slot.top_p = c.top_p, slot.top_k = c.top_k, slot.repetition_penalty = c.repetition,
      slot.reported = c.reported;
      slot.seed = random();
      slots.push_back(slot);
    }
    const buffer device_rows = b.upload(rows), device_slots = b.upload(slots);
    gpu::sampling_args args;
    args.logits = reinterpret_cast<const float*>(device.data());
    args.stride = args.vocab = vocab;
    args.row = reinterpret_cast<const gpu::sampling_row*>(device_rows.data());
    args.slots = reinterpret_cast<const gpu::sampling_slot*>(device_slots.data());
    args.history = reinterpret_cast<std::uint32_t*>(history.data());
    args.sampled = reinterpret_cast<gpu::sampled_token*>(sampled.data());
    args.best = reinterpret_cast<scored_token*>(best.data());
    std::printf("  %-16s", c.name);
    for (const std::int32_t count : {1, 32, most}) {
      args.rows = count;
      std::printf(" %7.1f", gpu::median_seconds(b.on(), 9, 20, [&] { gpu::sample(b.on().handle(), args); }) * 1e6);
    }
    std::printf("\n");
  }
}

} // namespace

int main(int argc, char** argv) {
  const int rows = argc > 1 ? std::atoi(argv[1]) : 8192;
  try {
    if (cuda::device_count() == 0 || rows < 1) {
      std::fprintf(stderr, "prefill_bench: needs a CUDA device, and at least 1 row\n");
      return 1;
    }
    cuda::use_device(0);
    const gpu::ceilings best = gpu::measure_ceilings();
    std::printf("%s: bf16 products %.0f TFLOP/s, copying %.2f TB/s\n", best.device.c_str(), best.matmul_rate * 1e-12,
                best.copy_bandwidth * 1e-12);
    const cuda::stream on;
    bench b(on);
    time_layer(b, rows, best);
    time_attention(b, best);
    time_sampling(b);
    return 0;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "prefill_bench: %s\n", error.what());
    return 1;
  }
}
