#include "models/gpu_runner.hpp"

#include <algorithm>
#include <utility>

#include "device/cuda/nvtx.hpp"
#include "models/gpu_runner_uploads.hpp"

namespace troupe {
namespace {

// With a full queue of launches (about 1,000) every call of a process blocks while a peer is gone: a group keeps its queue short.
constexpr std::int32_t layers_a_pace = 8;
constexpr std::size_t paces_ahead = 2;

std::vector<cuda::event> timing_events(std::size_t count) {
  std::vector<cuda::event> events;
  for (std::size_t i = 0; i < count; ++i) events.emplace_back(cuda::event::timing::on);
  return events;
}

// Batch sizes that get a graph: a step takes the next larger one.
std::vector<std::int32_t> graph_sizes(std::int32_t most) {
  std::vector<std::int32_t> sizes;
  for (std::int32_t rows = 1; rows < most; rows = rows < 8 ? 2 * rows : rows < 64 ? rows + 8 : rows < 128 ? rows + 16 : rows + 32) {
    sizes.push_back(rows);
  }
  sizes.push_back(most);
  return sizes;
}

// Of a kernel_timer: groups of a layer, whose rows may go through it in two parts, head and sampling for each part of the logits, and what
// stands before and behind.
std::size_t marks_of_step(const gpu_model& model) {
  return 2 * 7 * static_cast<std::size_t>(model.config().num_layers) +
         4 * static_cast<std::size_t>(model.shape().max_head_rows / model.shape().logits_rows + 1) + 3;
}

} // namespace

gpu_runner::gpu_runner(gpu_model& model, const gpu_plan& plan, const gpu_runner_options& options, cuda::caching_allocator& memory,
                       const cuda::stream_pool& streams)
    : model_(model),
      plan_(plan),
      options_(options),
      streams_(streams),
      slots_(plan, memory, streams.compute),
      uploads_(steps_in_flight, upload_bytes(plan), memory, options.asynchronous_copies ? streams.copy_in : streams.compute,
               streams.compute),
      downloads_(steps_in_flight, download_bytes(plan), memory, streams.compute,
                 options.asynchronous_copies ? streams.copy_out : streams.compute),
      begun_(timing_events(steps_in_flight)),
      timed_graphs_(steps_in_flight) {
  if (watch() != nullptr) {
    paces_.resize(paces_ahead);
    after_layer_ = [this](std::int32_t layer) { pace(layer); };
  }
  if (watch() != nullptr && options.group->devices) { // whose sums are in the graphs
    options.group->devices->when_ended([this] {
      const std::lock_guard lock(graphs_guard_);
      graphs_.clear();
    });
  }
  if (options.group != nullptr && options.group->host.stages > 1) {
    stages_.emplace(*options.group, plan, gpu_model::row_bytes(model.config()), memory, streams);
  }
  for (std::size_t i = 0; options.kernel_times && i < steps_in_flight; ++i) timers_.emplace_back(marks_of_step(model));
  gpu_step spare; // padding rows have a sequence like all others, whose blocks are all the same one
  spare.opened.push_back({slots_.spare(), {}});
  spare.opened.back().sampling.temperature = 0;
  for (std::int64_t i = 0; i < model.rows().table_stride; ++i) {
    spare.tables.push_back({slots_.spare(), static_cast<std::int32_t>(i), plan.info.num_blocks});
  }
  run(spare, 0);
  compute().synchronize();
}

gpu_runner::~gpu_runner() {
  if (watch() != nullptr && options_.group->devices) options_.group->devices->when_ended({});
}

void gpu_runner::capture() {
  if (!options_.graphs) return;
  std::vector<std::int32_t> sizes = graph_sizes(plan_.info.max_num_seqs);
  trial_ = true; // no kernel is loaded while a graph is recorded
  for (const std::int32_t rows : sizes) {
    gpu_step step;
    pad(step, rows);
    run(step, 0);
    wait(0);
  }
  trial_ = false;
  std::reverse(sizes.begin(), sizes.end()); // the largest first: the smaller ones' memory comes out of its pool
  for (const std::int32_t rows : sizes) {
    if (timers_.empty()) {
      record(rows, nullptr);
      continue;
    }
    auto& timers = graph_timers_[rows];
    while (timers.size() < steps_in_flight) timers.emplace_back(marks_of_step(model_), kernel_timer::place::in_graph);
    for (kernel_timer& timer : timers) record(rows, &timer);
  }
}

// Records one more graph of a decode step of `rows` rows.
void gpu_runner::record(std::int32_t rows, kernel_timer* timer) {
  gpu_batch batch;
  batch.rows = batch.decode_rows = batch.parts[0].rows = rows;
  batch.block_tables = slots_.arrays().block_tables;
  batch.embedded = model_.fuses(batch);
  gpu::prepare_rows_args later; // each launch has its own
  later.row_count = later.head_count = rows;
  cuda::graph recorded = cuda::graph::capture(compute(), [&] {
    if (graph_prepares(rows)) gpu::prepare_rows(compute().handle(), later);
    run_layers(batch, rows, timer, {});
    if (timer != nullptr) timer->end(compute());
  });
  const std::lock_guard lock(graphs_guard_);
  graphs_[rows].push_back(std::move(recorded));
}

// Adds rows of nobody's sequence until there are `rows`, each with a head. They are decode rows too: their block table must be the spare
// one's.
void gpu_runner::pad(gpu_step& step, std::int32_t rows) const {
  for (std::int32_t row = count_of(step.rows.size()); row < rows; ++row) {
    step.rows.push_back({slots_.spare(), 0, 0});
    gpu::step_head head;
    head.row = row;
    head.sampling.slot = slots_.spare();
    step.heads.push_back(head);
  }
  step.decode_rows = rows;
}

std::int32_t gpu_runner::graph_rows(const gpu_step& step) const {
  const bool plain_decode = !step.rows.empty() && step.decode_rows == count_of(step.rows.size()) && step.heads.size() == step.rows.size();
  if (!plain_decode) return 0;
  const std::lock_guard lock(graphs_guard_);
  const auto found = graphs_.lower_bound(step.decode_rows);
  return found == graphs_.end() ? 0 : found->first;
}

// Whether the graph of so many rows lays them out itself: then its first product's weights are on their way meanwhile. Not in a group,
// whose graphs can be gone when they are to be launched.
bool gpu_runner::graph_prepares(std::int32_t rows) const {
  gpu_batch batch;
  batch.rows = batch.decode_rows = rows;
  return timers_.empty() && watch() == nullptr && model_.fuses(batch);
}

bool gpu_runner::replay(const uploaded& at, std::size_t slot) {
  const std::lock_guard lock(graphs_guard_);
  const auto found = graphs_.find(at.rows.row_count);
  if (found == graphs_.end()) return false;
  const cuda::graph& graph = found->second[slot % found->second.size()];
  at.by_graph ? graph.launch(compute(), at.rows) : graph.launch(compute());
  if (!timers_.empty()) timed_graphs_[slot] = &graph_timers_.at(at.rows.row_count)[slot];
  return true;
}

void gpu_runner::settle() const {
  if (options_.asynchronous_copies) return;
  if (watch() != nullptr) watch()->wait(compute().handle());
  compute().synchronize();
}

const std::byte* gpu_runner::wait(std::size_t slot) const {
  if (watch() != nullptr) watch()->wait_for(downloads_.fetched(slot));
  return downloads_.wait(slot);
}

// Behind a layer of a step without a graph: lets the host be ahead by so many layers, and no more.
void gpu_runner::pace(std::int32_t layer) {
  if (layer % layers_a_pace != layers_a_pace - 1) return;
  paces_[next_pace_].record(compute());
  next_pace_ = (next_pace_ + 1) % paces_.size();
  watch()->wait_for(paces_[next_pace_]);
}

void gpu_runner::run_layers(const gpu_batch& batch, std::int32_t heads, kernel_timer* timer, const gpu_model::after_layer_fn& after_layer) {
  model_.time_with(timer);
  model_.forward(compute(), batch, after_layer);
  if (!model_.shape().ends.head) return;
  const bool whole = model_.fuses(batch) && heads == batch.rows && heads <= model_.shape().logits_rows; // each row has its head
  const std::int32_t most = whole ? heads : model_.shape().logits_rows;
  for (std::int32_t first = 0; first < heads; first += most) {
    const std::int32_t count = std::min(heads - first, most);
    mark(timer, kernel_group::head);
    const fused_head of_rows = whole ? model_.fused_logits(compute(), count) : fused_head{model_.logits(compute(), first, count)};
    mark(timer, kernel_group::sampling);
    sample(of_rows, first, count);
  }
}

void gpu_runner::sample(const fused_head& of_rows, std::int32_t first, std::int32_t count) {
  const gpu::slot_arrays slots = slots_.arrays();
  gpu::sampling_args args;
  args.rows = count;
  args.logits = of_rows.logits;
  args.tops = of_rows.tops;
  args.tops_count = of_rows.tops_count;
  args.stride = model_.logits_stride();
  args.vocab = plan_.info.vocab_size;
  args.row = slots_.sampling() + first;
  args.slots = slots.sampling;
  args.history = slots_.history();
  args.biases = slots.biases;
  args.bias_stride = gpu::most_biased_tokens;
  args.suppressed = slots.suppressed;
  args.suppressed_stride = gpu::most_biased_tokens;
  args.inputs = slots_.head_inputs() + first;
  args.sampled = slots_.sampled() + first;
  args.best = slots_.best() + std::ptrdiff_t{first} * gpu::most_best_tokens;
  args.last_tokens = slots.last_token;
  args.faulted = slots.faulted;
  args.overlaps = model_.shape().overlaps;
  gpu::sample(compute().handle(), args);
}

// A graph's groups take the place of the one that it is seen from outside.
std::vector<group_time> gpu_runner::kernel_times(std::size_t slot) const {
  if (timers_.empty()) return {};
  std::vector<group_time> times = timers_[slot].times();
  if (timed_graphs_[slot] == nullptr) return times;
  std::map<kernel_group, std::uint64_t> sums;
  for (const group_time& g : times) {
    if (g.group != kernel_group::layers) sums[g.group] += g.ns;
  }
  for (const group_time& g : timed_graphs_[slot]->times()) sums[g.group] += g.ns;
  times.clear();
  for (const auto& [group, ns] : sums) times.push_back({group, ns});
  return times;
}

// Results go to download `slot`. Behind it are what the draws lie in, and what they are compared with.
gpu::keep_draws_args gpu_runner::draws_of(const gpu_step& step, const download_layout& layout, std::size_t slot) {
  std::byte* const to = downloads_.device(slot);
  gpu::keep_draws_args args;
  args.slots = slots_.arrays();
  args.item_count = count_of(step.items.size());
  args.head_count = layout.heads;
  args.results = reinterpret_cast<gpu::item_result*>(to);
  args.kept = reinterpret_cast<gpu::sampled_token*>(to + layout.drawn);
  args.spare_slot = slots_.spare();
  return args;
}

void gpu_runner::keep(const gpu_step& step, const uploaded& at, const download_layout& layout, std::size_t slot) {
  gpu::keep_draws_args args = draws_of(step, layout, slot);
  args.items = at.items;
  args.head_inputs = slots_.head_inputs();
  args.sampled = slots_.sampled();
  args.best = slots_.best();
  if (step.reports) args.kept_best = reinterpret_cast<scored_token*>(reinterpret_cast<std::byte*>(args.results) + layout.best);
  args.counted = slots_.counted();
  gpu::keep_draws(compute().handle(), args);
  if (step.verifies) {
    gpu::count_tokens(compute().handle(), slots_.counted(), layout.heads, slots_.history(), plan_.info.vocab_size);
  }
  if (stages_) stages_->tell_draws(slots_.sampled(), layout.heads, slot);
}

// A stage before the last keeps the draws when they come back, beside what follows on the compute stream.
void gpu_runner::keep_when_heard(const gpu_step& step, const uploaded& at, const download_layout& layout, std::size_t slot) {
  gpu::keep_draws_args args = draws_of(step, layout, slot);
  const gpu_stages::awaited_draws& awaited =
      stages_->await_draws({at.items, count_of(step.items.size()), slots_.head_inputs(), layout.heads}, slot);
  args.items = awaited.items;
  args.head_inputs = awaited.head_inputs;
  args.sampled = awaited.sampled;
  args.counted = awaited.counted;
  stages_->hear_draws(layout.heads, slot);
  gpu::keep_draws(stages_->draws_stream().handle(), args);
  stages_->draws_kept(options_.asynchronous_copies ? streams_.copy_out : compute(), slot);
}

// The layers of what was prepared, and what stands before and behind them.
void gpu_runner::run_rows(const uploaded& at, std::int32_t graph, std::size_t slot, kernel_timer* timer) {
  const std::int32_t rows = at.rows.row_count;
  timed_graphs_[slot] = nullptr;
  if (rows == 0) return;
  if (stages_) stages_->receive_rows(model_.hidden(), rows);
  if (graph > 0) mark(timer, kernel_group::layers);
  if (graph == 0 || !replay(at, slot)) run_layers(at.batch, at.rows.head_count, timer, after_layer_);
  if (stages_) stages_->send_rows(model_.hidden(), rows);
}

download_layout gpu_runner::run(gpu_step& step, std::size_t slot) {
  const cuda::nvtx_range range(step.spans.empty() && !step.rows.empty() ? "troupe decode" : "troupe step");
  const download_layout layout(count_of(step.items.size()), count_of(step.heads.size()), step.reports);
  if (stages_) stages_->begin(step);
  const std::int32_t graph = graph_rows(step);
  if (graph > 0) pad(step, graph);
  kernel_timer* const timer = timers_.empty() ? nullptr : &timers_[slot];
  if (timer != nullptr) timer->begin();
  mark(timer, kernel_group::gathering);
  uploaded at;
  at.by_graph = graph > 0 && graph_prepares(graph);
  bool begun = false;
  for (bool all = false; !all;) {
    uploads_.begin();
    all = put_changes(step, at);
    if (all) put_rows(step, layout, slot, at);
    uploads_.send();
    if (!std::exchange(begun, true)) begun_[slot].record(options_.asynchronous_copies ? streams_.copy_in : compute());
    settle();
    apply_changes(at);
    if (all) prepare(step, at);
    if (!all) uploads_.used();
  }
  run_rows(at, graph, slot, timer);
  mark(timer, kernel_group::sampling); // what follows keeps the draws
  if (stages_ && !stages_->last()) {
    keep_when_heard(step, at, layout, slot);
  } else if (at.rows.kept_count < count_of(step.items.size()) || stages_) {
    keep(step, at, layout, slot);
  }
  uploads_.used();
  if (timer != nullptr) timer->end(compute());
  settle();
  downloads_.fetch(slot, layout.end);
  settle();
  return layout;
}

} // namespace troupe
