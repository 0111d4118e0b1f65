// What passes between the stages of a pipeline of GPUs: hidden rows go on from stage to stage, and what the last one draws comes back to
// the others, which wait for it where a step goes on from it and not before.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "device/cuda/memory.hpp"
#include "device/cuda/stream.hpp"
#include "models/gpu_plan.hpp"
#include "models/gpu_rank.hpp"
#include "models/gpu_step.hpp"

namespace troupe {

class gpu_stages {
 public:
  // What the draws of a step need until they come; device memory of a stage before the last, one for each step in flight.
  struct awaited_draws {
    gpu::step_item* items = nullptr;       // [max_num_seqs]
    gpu::sampled_token* sampled = nullptr; // [max_head_rows]
    token_id* head_inputs = nullptr;       // likewise
    gpu::counted_token* counted = nullptr; // likewise, written and not looked at
  };

  // Of a pipeline of two stages or more. `rank` and `streams` outlive this.
  gpu_stages(const gpu_rank& rank, const gpu_plan& plan, std::size_t row_bytes, cuda::caching_allocator& memory,
             const cuda::stream_pool& streams);
  static std::size_t device_bytes(const gpu_plan& plan, std::size_t row_bytes);

  bool last() const { return rank_.host.last_stage(); }
  // Before anything of `step` is put on the compute stream, in the order of plans.
  void begin(const gpu_step& step);
  // Brings the stage before's rows to `hidden`, [rows] of row_bytes: on the compute stream.
  void receive_rows(std::byte* hidden, std::int32_t rows);
  // Sends a copy of them on, beside what follows on the compute stream.
  void send_rows(const std::byte* hidden, std::int32_t rows);

  // The last stage tells the others the draws of a step's heads, beside what follows.
  void tell_draws(const gpu::sampled_token* sampled, std::int32_t heads, std::size_t slot);
  // What the running step has of it; device memory that the next one overwrites.
  struct asked_draws {
    const gpu::step_item* items = nullptr;
    std::int32_t item_count = 0;
    const token_id* head_inputs = nullptr;
    std::int32_t heads = 0;
  };
  // The others: a copy of it, for the step in download `slot`.
  const awaited_draws& await_draws(const asked_draws& asked, std::size_t slot);
  // Behind what was put on the compute stream since: the draws come to awaited_draws::sampled on draws_stream(), where they are to be kept
  // ..
  void hear_draws(std::int32_t heads, std::size_t slot);
  const cuda::stream& draws_stream() const { return draws_stream_; }
  // .. and once that is queued, steps that go on from them, and `reader`, wait for it.
  void draws_kept(const cuda::stream& reader, std::size_t slot);

 private:
  using buffer = cuda::caching_allocator::buffer;
  static constexpr std::size_t rows_ahead = 2; // steps whose rows are on their way

  const gpu_rank& rank_;
  const cuda::stream& compute_;
  std::size_t row_bytes_;
  cuda::stream rows_stream_{cuda::stream::priority::first}, draws_stream_{cuda::stream::priority::first};
  std::vector<buffer> leaving_; // [rows_ahead] copies of hidden rows
  std::vector<cuda::event> copied_, sent_;
  std::size_t next_leaving_ = 0;
  std::vector<buffer> items_, sampled_, head_inputs_, counted_; // by download slot
  std::vector<awaited_draws> awaited_;                          // likewise
  std::vector<cuda::event> drawn_, kept_;                       // likewise
  // Steps whose draws were awaited: the number of the running one, and by sequence slot of the last that drew for it; the first is 1.
  std::uint64_t step_ = 0;
  std::vector<std::uint64_t> drew_;
  std::vector<std::size_t> download_of_; // by number modulo steps_in_flight
};

} // namespace troupe
