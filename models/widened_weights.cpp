#include "models/widened_weights.hpp"

#include <algorithm>
#include <atomic>
#include <random>
#include <thread>
#include <vector>

#include "kernels/linear.hpp"

namespace troupe {
namespace {

// `change` is given each matrix's number and floats.
template <class Change>
model_weights widened(const model_weights& weights, std::int32_t threads, const Change& change) {
  model_weights out = weights;
  std::vector<weight_view*> views{&out.embedding};
  if (!out.config.tied_head) views.push_back(&out.head);
  for (layer_weights& w : out.layers) views.insert(views.end(), {&w.query, &w.key, &w.value, &w.output, &w.gate, &w.up, &w.down});
  auto matrices = std::make_shared<std::vector<std::vector<float>>>(views.size());
  std::atomic<std::size_t> next{0};
  const auto work = [&] {
    for (std::size_t i = next++; i < views.size(); i = next++) {
      weight_view& view = *views[i];
      std::vector<float>& floats = (*matrices)[i];
      floats.resize(static_cast<std::size_t>(view.rows * view.columns));
      for (std::int64_t row = 0; row < view.rows; ++row) cpu::dequantise_row(view, row, floats.data() + row * view.columns);
      change(i, floats);
      view.type = dtype::f32;
      view.data = reinterpret_cast<const std::byte*>(floats.data());
      view.stride = 0;
      view.padding_rows = view.padding_columns = 0; // written down with the others
    }
  };
  {
    std::vector<std::jthread> helpers;
    for (std::int32_t i = 1; i < threads; ++i) helpers.emplace_back(work);
    work();
  }
  if (out.config.tied_head) out.head = out.embedding;
  out.total_bytes = 0;
  for (const std::vector<float>& floats : *matrices) out.total_bytes += floats.size() * sizeof(float);
  out.storage = std::move(matrices);
  return out;
}

} // namespace

model_weights widened(const model_weights& weights, std::int32_t threads) {
  return widened(weights, threads, [](std::size_t, std::vector<float>&) {});
}

model_weights jittered(const model_weights& weights, double unit, std::uint32_t seed, std::int32_t threads) {
  const auto jitter = [&](std::size_t number, std::vector<float>& floats) {
    std::minstd_rand random(seed * 65'537U + static_cast<std::uint32_t>(number) + 1);
    const double scale = 2 / static_cast<double>(std::minstd_rand::max());
    for (float& w : floats) w = static_cast<float>(static_cast<double>(w) * (1 + unit * (static_cast<double>(random()) * scale - 1)));
  };
  model_weights out = widened(weights, threads, jitter);
  std::size_t number = 8 * weights.layers.size(); // beyond the matrices'
  for (layer_weights& w : out.layers) {
    for (std::vector<float>* norm : {&w.attention_norm, &w.query_norm, &w.key_norm, &w.mlp_norm}) jitter(number++, *norm);
  }
  jitter(number, out.final_norm);
  return out;
}

} // namespace troupe
