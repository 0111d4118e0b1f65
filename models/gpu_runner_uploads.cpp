// The way of a step's changes and rows to the device, and what is made of them there before its layers. Part of gpu_runner.
#include "models/gpu_runner_uploads.hpp"

#include <algorithm>
#include <optional>
#include <vector>

namespace troupe {
namespace {

template <class T>
std::span<const T> view(const std::vector<T>& values) {
  return {values.data(), values.size()};
}

// The longest beginning whose copies do not depend on each other.
std::size_t independent(std::span<const gpu::copied_block> copies) {
  for (std::size_t i = 1; i < copies.size(); ++i) {
    for (std::size_t j = 0; j < i; ++j) {
      if (copies[j].to == copies[i].from || copies[j].to == copies[i].to || copies[j].from == copies[i].to) return i;
    }
  }
  return copies.size();
}

// What `part` has of the spans.
void cut_spans(const std::vector<gpu::prefill_span>& spans, const gpu_part& part, std::vector<gpu::prefill_span>& to) {
  to.clear();
  for (const gpu::prefill_span& span : spans) {
    const std::int32_t begin = std::max(span.first_row, part.first);
    const std::int32_t end = std::min(span.first_row + span.rows, part.first + part.rows);
    if (begin < end) to.push_back({begin, end - begin, span.first_position + begin - span.first_row, span.table});
  }
}

// Whether head i is the one draw of item i, and all that it has: then sampling itself sees to the results.
bool draws_stand_alone(const gpu_step& step) {
  if (step.reports || step.items.size() > step.heads.size()) return false;
  for (std::size_t i = 0; i < step.items.size(); ++i) {
    const gpu::step_item& item = step.items[i];
    if (item.first_head != count_of(i) || item.draws != 1 || item.scores != 0) return false;
    if (step.heads[i].sampling.kind != gpu::sampling_row::work::draw) return false;
  }
  return true;
}

} // namespace

// Puts as many changes as fit; true when none is left.
bool gpu_runner::put_changes(const gpu_step& step, uploaded& at) {
  bool all = true;
  const auto next = [&](const auto& values, std::size_t& done) {
    const auto part = view(values).subspan(done, std::min(values.size() - done, changes_per_upload));
    done += part.size();
    all = all && done == values.size();
    return part;
  };
  at.changes = {};
  at.changes.slots = slots_.arrays();
  const auto opened = next(step.opened, at.opened_done);
  at.changes.opened = uploads_.put(opened);
  at.changes.opened_count = count_of(opened.size());
  const auto tables = next(step.tables, at.tables_done);
  at.changes.tables = uploads_.put(tables);
  at.changes.table_count = count_of(tables.size());
  const auto biases = next(step.biases, at.biases_done);
  at.changes.biases = uploads_.put(biases);
  at.changes.bias_count = count_of(biases.size());
  const auto suppressed = next(step.suppressed, at.suppressed_done);
  at.changes.suppressed = uploads_.put(suppressed);
  at.changes.suppressed_count = count_of(suppressed.size());
  at.copies = next(step.copies, at.copies_done);
  at.copies_at = uploads_.put(at.copies);
  return all;
}

void gpu_runner::apply_changes(const uploaded& at) {
  gpu::change_slots(compute().handle(), at.changes);
  for (std::size_t done = 0; done < at.copies.size();) {
    const std::size_t count = independent(at.copies.subspan(done));
    gpu::copy_blocks_args args;
    args.data = model_.kv_data();
    args.layer_bytes = model_.kv_layer_bytes();
    args.block_bytes = args.layer_bytes / static_cast<std::size_t>(model_.shape().num_blocks);
    args.layers = model_.config().num_layers;
    args.pairs = at.copies_at + done;
    args.pair_count = count_of(count);
    gpu::copy_blocks(compute().handle(), args);
    done += count;
  }
}

gpu_tiles gpu_runner::put_tiles(const gpu_step& step, const gpu_part& rows, std::int32_t window) {
  tiles_.clear();
  cut_spans(step.spans, rows, spans_);
  if (!spans_.empty()) {
    gpu::split_prefill(view(spans_), model_.config().num_heads, model_.config().num_kv_heads, window, tiles_);
  }
  std::int32_t end = 0;
  for (const gpu::prefill_tile& tile : tiles_) end = std::max(end, tile.end_position);
  return {uploads_.put(view(tiles_)), count_of(tiles_.size()), end};
}

// The rows as they go through a layer.
void gpu_runner::put_parts(const gpu_step& step, gpu_batch& batch) {
  batch.parts[0].rows = batch.rows;
  if (const auto second = model_.second_part(batch.rows, batch.decode_rows)) {
    batch.parts[0].rows = *second;
    batch.parts[1].first = *second;
    batch.parts[1].rows = batch.rows - *second;
    batch.part_count = 2;
  }
  const std::optional<std::int32_t> window = model_.config().sliding_window;
  for (std::size_t i = 0; i < batch.part_count; ++i) {
    gpu_part& part = batch.parts[i];
    part.tiles = put_tiles(step, part, 0);
    if (window) part.sliding_tiles = put_tiles(step, part, *window);
  }
}

void gpu_runner::put_rows(const gpu_step& step, const download_layout& layout, std::size_t slot, uploaded& at) {
  at.items = uploads_.put(view(step.items));
  at.counted = uploads_.put(view(step.counted));
  gpu::prepare_rows_args& rows = at.rows;
  const gpu_model::row_arrays& out = model_.rows();
  rows.slots = slots_.arrays();
  rows.rows = uploads_.put(view(step.rows));
  rows.row_count = count_of(step.rows.size());
  rows.table_rows = step.decode_rows;
  rows.heads = uploads_.put(view(step.heads));
  rows.head_count = count_of(step.heads.size());
  rows.block_size = plan_.info.block_size;
  rows.tokens = out.tokens;
  rows.positions = out.positions;
  rows.tables = out.tables;
  rows.row_tables = out.row_tables;
  rows.row_tiles = out.row_tiles;
  rows.last_position = out.last_position;
  for (std::int32_t i = 0; i < step.decode_rows; ++i) {
    rows.longest_row = std::max(rows.longest_row, step.rows[static_cast<std::size_t>(i)].position);
  }
  rows.head_rows = out.head_rows;
  rows.head_inputs = slots_.head_inputs();
  rows.sampling = slots_.sampling();
  std::byte* const results = downloads_.device(slot);
  rows.kept_count = !stages_ && draws_stand_alone(step) ? count_of(step.items.size()) : 0;
  rows.kept = reinterpret_cast<gpu::sampled_token*>(results + layout.drawn);
  rows.results = reinterpret_cast<gpu::item_result*>(results);
  at.batch.rows = rows.row_count;
  at.batch.decode_rows = step.decode_rows;
  at.batch.trial = trial_;
  at.batch.block_tables = slots_.arrays().block_tables;
  at.batch.embedded = model_.fuses(at.batch) && model_.embedding() != nullptr;
  if (at.batch.embedded) {
    rows.embedding = model_.embedding();
    rows.hidden = model_.hidden();
    rows.row_bytes = model_.config().hidden_size * std::int64_t{2};
  }
  put_parts(step, at.batch);
}

void gpu_runner::prepare(const gpu_step& step, const uploaded& at) {
  for (const slot_id slot : step.forgotten) gpu::clear_history(compute().handle(), slots_.history(), plan_.info.vocab_size, slot);
  if (!step.counted.empty()) {
    gpu::count_tokens(compute().handle(), at.counted, count_of(step.counted.size()), slots_.history(), plan_.info.vocab_size);
  }
  if (!step.rows.empty() && !at.by_graph) gpu::prepare_rows(compute().handle(), at.rows);
}

} // namespace troupe
