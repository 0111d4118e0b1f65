#include "models/gpu_weights.hpp"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>
#include <exception>
#include <mutex>
#include <span>
#include <string>
#include <thread>

#include "core/error.hpp"
#include "core/half.hpp"
#include "device/cuda/pinned_ring.hpp"
#include "kernels/fill_gpu.hpp"
#include "kernels/linear.hpp"

namespace troupe {
namespace {

constexpr int layout_version = 1; // raised with every change of what lies where that the lines of gpu_weight_layout() do not show
constexpr std::size_t alignment = 256;
constexpr std::size_t staging_bytes = std::size_t{4} << 20; // of one copy
constexpr std::size_t staging_slots = 3;                    // of each thread
constexpr std::size_t element = 2;                          // bytes of bf16 and f16

enum class spread : std::uint8_t { matrix, norm, bias };

// A matrix (or a vector, as one row) and where it goes. Sources are null where there is no checkpoint.
struct piece {
  std::size_t offset = 0;
  std::int64_t rows = 0;
  std::int64_t columns = 0;
  std::int64_t interleaved_head = 0; // head_dim where pairs (2i, 2i + 1) become halves of a head; 0: rows stay in order
  spread dummy = spread::matrix;
  const weight_view* matrix = nullptr;
  const std::vector<float>* vector = nullptr;
  std::int64_t rows_before = 0; // of the whole matrix, that other GPUs hold

  std::size_t bytes() const { return static_cast<std::size_t>(rows * columns) * element; }
  // The stored row (or element) that belongs at `row`.
  std::int64_t source(std::int64_t row) const {
    if (interleaved_head == 0) return row;
    const std::int64_t inside = row % interleaved_head, half = interleaved_head / 2;
    return row - inside + (inside < half ? 2 * inside : 2 * (inside - half) + 1);
  }
};

// Lays pieces one behind the other; addresses are offsets until a base is added.
class layout {
 public:
  layout(const model_config& config, const vocab_slice& head, const model_weights* weights) : config_(config) {
    const std::int64_t hidden = config.hidden_size;
    embedding_ = matrix(config.vocab_size, hidden, weights != nullptr ? &weights->embedding : nullptr);
    if (config.tied_head) add_places(head.first + head.places - config.vocab_size);
    for (std::int32_t i = 0; i < config.num_layers; ++i) {
      add_layer(weights != nullptr ? &weights->layers[static_cast<std::size_t>(i)] : nullptr);
    }
    final_norm_ = vector(hidden, spread::norm, weights != nullptr ? &weights->final_norm : nullptr);
    if (config.tied_head) {
      head_ = embedding_ + static_cast<std::size_t>(head.first * hidden) * element;
    } else {
      head_ = matrix(head.rows, hidden, weights != nullptr ? &weights->head : nullptr);
      pieces_.back().rows_before = head.first;
      add_places(head.places - head.rows);
    }
  }

  std::size_t bytes() const { return used_; }
  const std::vector<piece>& pieces() const { return pieces_; }

  gpu_weights at(std::byte* base, dtype type) const {
    gpu_weights out;
    out.type = type;
    out.embedding = base + embedding_;
    out.final_norm = base + final_norm_;
    out.head = base + head_;
    for (const layer_offsets& from : layers_) {
      gpu_layer_weights to;
      to.attention_norm = base + from.attention_norm;
      to.qkv = base + from.qkv;
      if (config_.query_key_value_bias) to.qkv_bias = base + from.qkv_bias;
      if (config_.query_key_norm) to.query_norm = base + from.query_norm, to.key_norm = base + from.key_norm;
      to.output = base + from.output;
      if (config_.output_bias) to.output_bias = base + from.output_bias;
      to.mlp_norm = base + from.mlp_norm;
      to.gate_up = base + from.gate_up;
      to.down = base + from.down;
      out.layers.push_back(to);
    }
    return out;
  }

 private:
  struct layer_offsets {
    std::size_t attention_norm = 0, qkv = 0, qkv_bias = 0, query_norm = 0, key_norm = 0, output = 0, output_bias = 0, mlp_norm = 0,
                gate_up = 0, down = 0;
  };

  std::size_t add(piece p, bool joined = false) {
    if (!joined) used_ = (used_ + alignment - 1) / alignment * alignment;
    p.offset = used_;
    used_ += p.bytes();
    pieces_.push_back(p);
    return p.offset;
  }
  // For rows of a vocabulary that there are not.
  void add_places(std::int64_t rows) { used_ += static_cast<std::size_t>(std::max<std::int64_t>(0, rows) * config_.hidden_size) * element; }
  std::size_t matrix(std::int64_t rows, std::int64_t columns, const weight_view* from, std::int64_t interleaved = 0, bool joined = false) {
    return add({0, rows, columns, interleaved, spread::matrix, from, nullptr}, joined);
  }
  std::size_t vector(std::int64_t size, spread dummy, const std::vector<float>* from, std::int64_t interleaved = 0, bool joined = false) {
    return add({0, 1, size, interleaved, dummy, nullptr, from}, joined);
  }

  void add_layer(const layer_weights* w) {
    const model_config& c = config_;
    const std::int64_t hidden = c.hidden_size, wide = c.intermediate_size;
    const std::int64_t queries = std::int64_t{c.num_heads} * c.head_dim, keys = std::int64_t{c.num_kv_heads} * c.head_dim;
    const std::int64_t pairs = c.rope.interleaved ? c.head_dim : 0;
    layer_offsets at;
    at.attention_norm = vector(hidden, spread::norm, w != nullptr ? &w->attention_norm : nullptr);
    at.qkv = matrix(queries, hidden, w != nullptr ? &w->query : nullptr, pairs);
    matrix(keys, hidden, w != nullptr ? &w->key : nullptr, pairs, true);
    matrix(keys, hidden, w != nullptr ? &w->value : nullptr, 0, true);
    if (c.query_key_value_bias) {
      at.qkv_bias = vector(queries, spread::bias, w != nullptr ? &w->query_bias : nullptr, pairs);
      vector(keys, spread::bias, w != nullptr ? &w->key_bias : nullptr, pairs, true);
      vector(keys, spread::bias, w != nullptr ? &w->value_bias : nullptr, 0, true);
    }
    if (c.query_key_norm) {
      at.query_norm = vector(c.head_dim, spread::norm, w != nullptr ? &w->query_norm : nullptr, pairs);
      at.key_norm = vector(c.head_dim, spread::norm, w != nullptr ? &w->key_norm : nullptr, pairs);
    }
    at.output = matrix(hidden, queries, w != nullptr ? &w->output : nullptr);
    if (c.output_bias) at.output_bias = vector(hidden, spread::bias, w != nullptr ? &w->output_bias : nullptr);
    at.mlp_norm = vector(hidden, spread::norm, w != nullptr ? &w->mlp_norm : nullptr);
    at.gate_up = matrix(wide, hidden, w != nullptr ? &w->gate : nullptr);
    matrix(wide, hidden, w != nullptr ? &w->up : nullptr, 0, true);
    at.down = matrix(hidden, wide, w != nullptr ? &w->down : nullptr);
    layers_.push_back(at);
  }

  const model_config& config_;
  std::size_t used_ = 0;
  std::size_t embedding_ = 0, final_norm_ = 0, head_ = 0;
  std::vector<piece> pieces_;
  std::vector<layer_offsets> layers_;
};

bool is_infinite(std::uint16_t half) { return (half & 0x7fffU) == 0x7c00U; }

// Elements begin .. of `from`, as `type`. False when f16 cannot hold one.
bool narrow(std::span<const float> from, dtype type, std::uint16_t* to) {
  if (type == dtype::bf16) {
    std::transform(from.begin(), from.end(), to, float_to_bfloat16);
    return true;
  }
  std::transform(from.begin(), from.end(), to, float_to_half);
  return std::none_of(to, to + from.size(), is_infinite);
}

// Rows first .. first + count - 1 of `p` into `to`.
void convert_rows(const piece& p, std::int64_t first, std::int64_t count, dtype type, std::uint16_t* to, std::vector<float>& row) {
  const std::size_t width = static_cast<std::size_t>(p.columns);
  bool held = true;
  if (p.vector != nullptr) {
    row.resize(width);
    for (std::int64_t i = 0; i < p.columns; ++i) {
      row[static_cast<std::size_t>(i)] = (*p.vector)[static_cast<std::size_t>(p.source(i))];
    }
    held = narrow(row, type, to);
  } else {
    row.resize(width);
    for (std::int64_t r = first; r < first + count; ++r, to += width) {
      if (p.matrix->type == type) {
        std::memcpy(to, p.matrix->row(p.source(r)), width * element);
        continue;
      }
      cpu::dequantise_row(*p.matrix, p.source(r), row.data());
      held = narrow(row, type, to) && held;
    }
  }
  if (!held) throw load_error("a weight is too large for F16; --dtype bf16 holds it");
}

struct upload_job {
  const piece* from;
  std::int64_t first, count; // rows
};

std::vector<upload_job> split(const std::vector<piece>& pieces) {
  std::vector<upload_job> jobs;
  for (const piece& p : pieces) {
    const std::int64_t room = std::max<std::int64_t>(1, static_cast<std::int64_t>(staging_bytes / element) / p.columns);
    for (std::int64_t row = 0; row < p.rows; row += room) jobs.push_back({&p, row, std::min(room, p.rows - row)});
  }
  return jobs;
}

std::size_t largest_bytes(const std::vector<upload_job>& jobs) {
  std::size_t most = 0;
  for (const upload_job& job : jobs) most = std::max(most, static_cast<std::size_t>(job.count * job.from->columns) * element);
  return most;
}

} // namespace

std::size_t gpu_weight_bytes(const model_config& config, const vocab_slice& head) { return layout(config, head, nullptr).bytes(); }

std::string gpu_weight_layout(const model_config& config, const vocab_slice& head, dtype type) {
  std::string lines = "layout " + std::to_string(layout_version) + "\n";
  const layout placed(config, head, nullptr);
  for (const piece& p : placed.pieces()) {
    lines +=
        std::string(traits(type).name) + " " + std::to_string(p.rows) + "x" + std::to_string(p.columns) + " at " + std::to_string(p.offset);
    if (p.interleaved_head != 0) lines += ", pairs of heads of " + std::to_string(p.interleaved_head) + " as halves";
    lines += "\n";
  }
  return lines;
}

gpu_weights filled_weights(const model_config& config, const vocab_slice& head, dtype type, std::byte* memory) {
  return layout(config, head, nullptr).at(memory, type);
}

gpu_weights upload_weights(const model_weights& weights, const vocab_slice& head, dtype type, std::byte* memory, const cuda::stream& on,
                           std::int32_t device, std::int32_t threads) {
  if (weights.source.make) weights.source.make();
  const layout placed(weights.config, head, &weights);
  const std::vector<upload_job> jobs = split(placed.pieces());
  const std::size_t slot = largest_bytes(jobs);
  std::atomic<std::size_t> next{0};
  std::exception_ptr failure;
  std::mutex guard;
  const auto work = [&] {
    try {
      cuda::use_device(device);
      cuda::pinned_ring staging(staging_slots, slot);
      std::vector<float> row;
      for (std::size_t i = next++; i < jobs.size(); i = next++) {
        const upload_job& job = jobs[i];
        std::byte* const to = staging.next();
        convert_rows(*job.from, job.first, job.count, type, reinterpret_cast<std::uint16_t*>(to), row);
        const std::size_t width = static_cast<std::size_t>(job.from->columns) * element;
        cuda::copy_in(on, memory + job.from->offset + static_cast<std::size_t>(job.first) * width, to,
                      static_cast<std::size_t>(job.count) * width);
        staging.fence(on);
      }
      on.synchronize(); // the staging memory ends here
    } catch (...) {
      const std::lock_guard lock(guard);
      if (!failure) failure = std::current_exception();
      next = jobs.size();
    }
  };
  {
    std::vector<std::jthread> helpers;
    const std::size_t wanted = std::min<std::size_t>(static_cast<std::size_t>(std::max(1, threads)), jobs.size());
    for (std::size_t i = 1; i < wanted; ++i) helpers.emplace_back(work);
    work();
  }
  if (failure) std::rethrow_exception(failure);
  return placed.at(memory, type);
}

gpu_weights make_dummy_gpu_weights(const model_config& config, const vocab_slice& head, dtype type, std::byte* memory,
                                   const cuda::stream& on, std::uint64_t seed) {
  const layout placed(config, head, nullptr);
  for (const piece& p : placed.pieces()) {
    const bool norm = p.dummy == spread::norm;
    const float reach = p.dummy == spread::matrix ? std::sqrt(3.0F / static_cast<float>(p.columns)) : norm ? 0.1F : 0.02F;
    // Numbers follow each other by this step, so what lies in the middle of a matrix can be made by itself.
    constexpr std::uint64_t step = 0x9e3779b97f4a7c15U;
    const auto before = static_cast<std::uint64_t>(p.rows_before * p.columns);
    gpu::fill_uniform(on.handle(), {type, memory + p.offset, p.rows * p.columns, norm ? 1.0F : 0.0F, reach, (seed++ + before) * step});
  }
  on.synchronize();
  return placed.at(memory, type);
}

} // namespace troupe
