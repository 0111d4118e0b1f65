// Puts steps on a GPU's streams: upload, changes of slots, rows, layers (as a graph where there is one), draws, download. Knows no plans.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "device/cuda/graph.hpp"
#include "device/cuda/stream.hpp"
#include "models/gpu_model.hpp"
#include "models/gpu_plan.hpp"
#include "models/gpu_rank.hpp"
#include "models/gpu_results.hpp"
#include "models/gpu_slots.hpp"
#include "models/gpu_stages.hpp"
#include "models/gpu_step.hpp"
#include "models/gpu_transfers.hpp"

namespace troupe {

struct gpu_runner_options {
  bool graphs = true;
  bool asynchronous_copies = true; // else copies go on the compute stream, and each is waited for
  bool kernel_times = false;       // events between the groups of kernels, also within graphs
  // The GPUs that the model is shared with: every wait then has the group's deadline, and throws collective_error. Outlives the runner.
  // Null: no others.
  const gpu_rank* group = nullptr;
};

class gpu_runner {
 public:
  // `model` and `streams` outlive this.
  gpu_runner(gpu_model& model, const gpu_plan& plan, const gpu_runner_options& options, cuda::caching_allocator& memory,
             const cuda::stream_pool& streams);
  ~gpu_runner();

  // Records the graphs of decode steps, after one run of each size that makes the libraries load what they need.
  void capture();

  // Puts `step` on the streams; its results go to download `slot`, whose last use must have been read. Returns how the download is laid
  // out.
  download_layout run(gpu_step& step, std::size_t slot);
  // Of later steps without a graph: called behind each layer, with what gpu_model::forward says. Empty: nobody looks.
  void look_behind_layers(gpu_model::after_layer_fn look) { after_layer_ = std::move(look); }
  // Blocks until the results of `slot` are there.
  const std::byte* wait(std::size_t slot) const;
  // Of the step in `slot`, after wait(): from the arrival of its upload to the end of its work, and the copy behind that. (When the work
  // itself began is not asked: an event with a time between two steps would cost 1 us of each.) In a stage of a pipeline before the last,
  // the end of the work is when its draws are back.
  float compute_ms(std::size_t slot) const { return cuda::elapsed_ms(begun_[slot], downloads_.computed(slot)); }
  float copy_ms(std::size_t slot) const { return downloads_.copy_ms(slot); }
  // From the end of the step in slot `before`, whose place was not used again yet, to the arrival of this one's upload; below 0 when that
  // was there earlier.
  float gap_ms(std::size_t before, std::size_t slot) const { return cuda::elapsed_ms(downloads_.computed(before), begun_[slot]); }
  std::vector<group_time> kernel_times(std::size_t slot) const; // empty unless asked for

 private:
  // What put_changes() and put_rows() left in the open upload, and how far changes have gone up.
  struct uploaded;
  // Rows of the graph that runs this step; 0: none does.
  std::int32_t graph_rows(const gpu_step& step) const;
  bool graph_prepares(std::int32_t rows) const;
  bool replay(const uploaded& at, std::size_t slot); // false: the group has ended, and its graphs with it
  void record(std::int32_t rows, kernel_timer* timer);
  void pad(gpu_step& step, std::int32_t rows) const;
  bool put_changes(const gpu_step& step, uploaded& at);
  void put_rows(const gpu_step& step, const download_layout& layout, std::size_t slot, uploaded& at);
  gpu_tiles put_tiles(const gpu_step& step, const gpu_part& rows, std::int32_t window);
  void put_parts(const gpu_step& step, gpu_batch& batch);
  void apply_changes(const uploaded& at);
  void prepare(const gpu_step& step, const uploaded& at);
  void run_layers(const gpu_batch& batch, std::int32_t heads, kernel_timer* timer, const gpu_model::after_layer_fn& after_layer);
  void pace(std::int32_t layer);
  void sample(const fused_head& of_rows, std::int32_t first, std::int32_t count);
  void mark(kernel_timer* timer, kernel_group group) const {
    if (timer != nullptr) timer->mark(compute(), group);
  }
  void keep(const gpu_step& step, const uploaded& at, const download_layout& layout, std::size_t slot);
  void keep_when_heard(const gpu_step& step, const uploaded& at, const download_layout& layout, std::size_t slot);
  gpu::keep_draws_args draws_of(const gpu_step& step, const download_layout& layout, std::size_t slot);
  void run_rows(const uploaded& at, std::int32_t graph, std::size_t slot, kernel_timer* timer);
  cuda::nccl_communicator* watch() const { return options_.group != nullptr ? options_.group->watch() : nullptr; }
  void settle() const; // waits for the compute stream where copies are not asynchronous
  const cuda::stream& compute() const { return streams_.compute; }

  gpu_model& model_;
  gpu_plan plan_;
  gpu_runner_options options_;
  const cuda::stream_pool& streams_;
  gpu_slots slots_;
  upload_ring uploads_;
  download_ring downloads_;
  std::optional<gpu_stages> stages_;                               // of a pipeline
  std::vector<cuda::event> begun_;                                 // by download slot
  std::vector<kernel_timer> timers_;                               // likewise, or empty
  std::map<std::int32_t, std::vector<kernel_timer>> graph_timers_; // of graphs_, or empty
  mutable std::mutex graphs_guard_;
  // By rows. With kernel_times there is a graph for each download slot, as each has its own events.
  std::map<std::int32_t, std::vector<cuda::graph>> graphs_;
  std::vector<const kernel_timer*> timed_graphs_; // by download slot: of the graph that ran; null: none did
  std::vector<gpu::prefill_span> spans_;          // scratch, as the next
  std::vector<gpu::prefill_tile> tiles_;
  gpu_model::after_layer_fn after_layer_;
  std::vector<cuda::event> paces_; // used in turn
  std::size_t next_pace_ = 0;
  bool trial_ = false; // see gpu_batch
};

} // namespace troupe
