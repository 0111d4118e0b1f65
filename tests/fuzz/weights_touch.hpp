// Reads every byte that a loaded model claims to own, so that a sanitizer sees a claim that is wrong.
#pragma once

#include <cstddef>
#include <cstdlib>

#include "models/checkpoint.hpp"
#include "models/inspect.hpp"

namespace troupe::fuzz {

inline unsigned touch(const weight_view& view) {
  unsigned sum = 0;
  const std::size_t bytes = static_cast<std::size_t>(view.rows) * row_bytes(view.type, static_cast<std::size_t>(view.columns));
  for (std::size_t i = 0; i < bytes; ++i) sum += std::to_integer<unsigned>(view.data[i]);
  return sum;
}

// Opens by `open`, describes and loads; a load_error is the right answer to a bad file, anything else ends the process.
template <class Open>
void exercise(Open&& open) {
  try {
    const auto source = open();
    volatile unsigned sink = 0;
    sink = static_cast<unsigned>(describe_checkpoint(*source, {.list_tensors = true}).size());
    const model_weights weights = source->load();
    sink = touch(weights.embedding) + touch(weights.head);
    for (const layer_weights& layer : weights.layers) {
      for (const weight_view* view : {&layer.query, &layer.key, &layer.value, &layer.output, &layer.gate, &layer.up, &layer.down})
        sink = sink + touch(*view);
    }
    if (weights.final_norm.size() != static_cast<std::size_t>(weights.config.hidden_size)) std::abort();
  } catch (const load_error&) {
  }
}

} // namespace troupe::fuzz
