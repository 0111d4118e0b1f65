#include "models/cpu_weights.hpp"

#include <algorithm>
#include <string>
#include <utility>

namespace troupe {
namespace {

// A rank may have no row of the embedding or of the head.
bool is_there(const weight_view& view) { return view && view.rows > 0; }

std::size_t stored_bytes(const weight_view& view) {
  return static_cast<std::size_t>(view.rows) * row_bytes(view.type, static_cast<std::size_t>(view.columns));
}

// Hands out pieces of a block from its beginning on, and writes down what lies where.
class layout {
 public:
  std::size_t stored(const weight_view& view) {
    if (!is_there(view)) return used_;
    const std::size_t at = next(stored_bytes(view));
    note("stored", view, at);
    return at;
  }
  std::size_t packed(std::initializer_list<weight_view> views) {
    if (!is_there(*views.begin())) return used_; // a linear is there as a whole or not at all
    const std::size_t at = next(cpu::linear::packed_bytes({views.begin(), views.size()}));
    for (const weight_view& view : views) note("packed", view, at);
    return at;
  }
  std::size_t bytes() const { return used_; }
  const std::string& lines() const { return lines_; }

 private:
  std::size_t next(std::size_t bytes) {
    const std::size_t at = used_;
    used_ += (bytes + 63) / 64 * 64;
    return at;
  }
  void note(const char* how, const weight_view& view, std::size_t at) {
    lines_ += std::string(how) + " " + std::string(traits(view.type).name) + " " + std::to_string(view.rows) + "x" +
              std::to_string(view.columns) + " at " + std::to_string(at);
    if (view.padding_rows != 0) lines_ += ", the last " + std::to_string(view.padding_rows) + " rows zeros";
    if (view.padding_columns != 0) lines_ += ", the last " + std::to_string(view.padding_columns) + " columns zeros";
    lines_ += "\n";
  }

  std::size_t used_ = 0;
  std::string lines_ = "packing " + std::to_string(cpu::packed_layout_version) + "\n";
};

struct layer_places {
  std::size_t qkv, output, gate_up, down;
};

struct model_places {
  layout all;
  std::size_t embedding, head;
  std::vector<layer_places> layers;

  explicit model_places(const model_weights& w) : embedding(all.stored(w.embedding)), head(all.packed({w.head})) {
    for (const layer_weights& l : w.layers) {
      layer_places at{};
      at.qkv = all.packed({l.query, l.key, l.value});
      at.output = all.packed({l.output});
      at.gate_up = all.packed({l.gate, l.up});
      at.down = all.packed({l.down});
      layers.push_back(at);
    }
  }
};

// Packs linears into a block, or finds them packed there.
struct packer {
  const cpu::weight_block& block;
  cpu::thread_pool& pool;

  cpu::linear operator()(std::initializer_list<weight_view> views, std::size_t at, std::vector<std::vector<float>> biases = {}) const {
    const bool any = std::any_of(biases.begin(), biases.end(), [](const auto& bias) { return !bias.empty(); });
    if (!any) biases.clear();
    return cpu::linear({views.begin(), views.size()}, biases, &pool, {block.data() + at, block.filled()});
  }
};

} // namespace

cpu_weights::cpu_weights(const model_weights& weights, const std::optional<keeper::access>& keep, cpu::thread_pool& pool) {
  const weight_start start(keep);
  const model_places at(weights);
  const std::size_t bytes = at.all.bytes();
  const auto region = kept_region(weights.source, "cpu", at.all.lines(), bytes, keeper::memory_kind::host);
  block_ = cpu::weight_block(bytes, claim_weights(keep, weights.source, region));
  const bool mapped = block_.filled();
  if (!mapped && weights.source.make) weights.source.make();
  if (is_there(weights.embedding)) {
    embedding_ = {weights.embedding.type, weights.embedding.rows, weights.embedding.columns, block_.data() + at.embedding};
    if (!mapped) std::copy_n(weights.embedding.data, stored_bytes(weights.embedding), block_.data() + at.embedding);
  }
  const packer pack{block_, pool};
  if (is_there(weights.head)) head_ = pack({weights.head}, at.head);
  layers_.reserve(weights.layers.size());
  for (std::size_t i = 0; i < weights.layers.size(); ++i) {
    const layer_weights& w = weights.layers[i];
    const layer_places& to = at.layers[i];
    layers_.push_back({pack({w.query, w.key, w.value}, to.qkv, {w.query_bias, w.key_bias, w.value_bias}),
                       pack({w.output}, to.output, {w.output_bias}), pack({w.gate, w.up}, to.gate_up), pack({w.down}, to.down)});
  }
  block_.seal();
  start.tell(bytes, mapped, block_.claim());
}

} // namespace troupe
