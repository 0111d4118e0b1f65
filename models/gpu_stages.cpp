#include "models/gpu_stages.hpp"

#include <algorithm>

#include "device/cuda/pinned_ring.hpp"

namespace troupe {
namespace {

collective_buffer bytes_at(const void* data, std::size_t bytes) {
  return {const_cast<void*>(data), bytes / sizeof(std::int32_t), dtype::i32};
}

struct sizes {
  explicit sizes(const gpu_plan& plan)
      : items(static_cast<std::size_t>(plan.info.max_num_seqs) * sizeof(gpu::step_item)),
        sampled(heads(plan) * sizeof(gpu::sampled_token)),
        head_inputs(heads(plan) * sizeof(token_id)),
        counted(heads(plan) * sizeof(gpu::counted_token)) {}
  static std::size_t heads(const gpu_plan& plan) { return static_cast<std::size_t>(plan.shape.max_head_rows); }
  std::size_t items, sampled, head_inputs, counted;
};

} // namespace

std::size_t gpu_stages::device_bytes(const gpu_plan& plan, std::size_t row_bytes) {
  const sizes each(plan);
  return rows_ahead * static_cast<std::size_t>(plan.shape.max_rows) * row_bytes +
         steps_in_flight * (each.items + each.sampled + each.head_inputs + each.counted);
}

gpu_stages::gpu_stages(const gpu_rank& rank, const gpu_plan& plan, std::size_t row_bytes, cuda::caching_allocator& memory,
                       const cuda::stream_pool& streams)
    : rank_(rank),
      compute_(streams.compute),
      row_bytes_(row_bytes),
      copied_(rows_ahead),
      sent_(rows_ahead),
      drawn_(steps_in_flight),
      kept_(steps_in_flight),
      drew_(static_cast<std::size_t>(plan.info.max_num_seqs) + 1),
      download_of_(steps_in_flight) {
  const auto take = [&](std::size_t bytes) { return memory.allocate(std::max<std::size_t>(bytes, 1), "between stages"); };
  const sizes each(plan);
  if (!last()) {
    for (std::size_t i = 0; i < rows_ahead; ++i) leaving_.push_back(take(static_cast<std::size_t>(plan.shape.max_rows) * row_bytes));
  }
  for (std::size_t i = 0; i < steps_in_flight; ++i) {
    items_.push_back(take(each.items));
    sampled_.push_back(take(each.sampled));
    head_inputs_.push_back(take(each.head_inputs));
    counted_.push_back(take(each.counted));
    awaited_.push_back({items_[i].as<gpu::step_item>(), sampled_[i].as<gpu::sampled_token>(), head_inputs_[i].as<token_id>(),
                        counted_[i].as<gpu::counted_token>()});
  }
}

// A sequence's slot may be another's by now: what was drawn for the one before must have been kept when it is opened.
void gpu_stages::begin(const gpu_step& step) {
  if (last()) return;
  std::uint64_t latest = 0;
  for (const gpu::opened_slot& opened : step.opened) latest = std::max(latest, drew_[static_cast<std::size_t>(opened.slot)]);
  for (const gpu::step_item& item : step.items) latest = std::max(latest, drew_[static_cast<std::size_t>(item.slot)]);
  if (latest > 0 && step_ - latest < steps_in_flight) compute_.wait_for(kept_[download_of_[latest % steps_in_flight]]);
  if (step.heads.empty()) return;
  ++step_;
  for (const gpu::step_item& item : step.items) {
    if (item.scores + item.draws > 0) drew_[static_cast<std::size_t>(item.slot)] = step_;
  }
}

void gpu_stages::receive_rows(std::byte* hidden, std::int32_t rows) {
  if (rank_.host.first_stage()) return;
  rank_.rows->receive(bytes_at(hidden, static_cast<std::size_t>(rows) * row_bytes_), rank_.host.stage - 1, compute_.handle());
}

void gpu_stages::send_rows(const std::byte* hidden, std::int32_t rows) {
  if (last()) return;
  const std::size_t bytes = static_cast<std::size_t>(rows) * row_bytes_, at = next_leaving_;
  next_leaving_ = (next_leaving_ + 1) % rows_ahead;
  compute_.wait_for(sent_[at]); // the copy that lay there
  cuda::copy_across(compute_, leaving_[at].data(), hidden, bytes);
  copied_[at].record(compute_);
  rows_stream_.wait_for(copied_[at]);
  rank_.rows->send(bytes_at(leaving_[at].data(), bytes), rank_.host.stage + 1, rows_stream_.handle());
  sent_[at].record(rows_stream_);
}

void gpu_stages::tell_draws(const gpu::sampled_token* sampled, std::int32_t heads, std::size_t slot) {
  if (heads == 0) return;
  const std::size_t bytes = static_cast<std::size_t>(heads) * sizeof(gpu::sampled_token);
  cuda::copy_across(compute_, sampled_[slot].data(), reinterpret_cast<const std::byte*>(sampled), bytes);
  drawn_[slot].record(compute_);
  draws_stream_.wait_for(drawn_[slot]);
  for (int stage = 0; stage + 1 < rank_.host.stages; ++stage) {
    rank_.draws->send(bytes_at(sampled_[slot].data(), bytes), stage, draws_stream_.handle());
  }
}

const gpu_stages::awaited_draws& gpu_stages::await_draws(const asked_draws& asked, std::size_t slot) {
  const auto copy = [&](const buffer& to, const auto* from, std::int32_t count) {
    cuda::copy_across(compute_, to.data(), reinterpret_cast<const std::byte*>(from), static_cast<std::size_t>(count) * sizeof(*from));
  };
  copy(items_[slot], asked.items, asked.item_count);
  copy(head_inputs_[slot], asked.head_inputs, asked.heads);
  return awaited_[slot];
}

void gpu_stages::hear_draws(std::int32_t heads, std::size_t slot) {
  drawn_[slot].record(compute_); // the step's items and inputs lie where they are read
  draws_stream_.wait_for(drawn_[slot]);
  if (heads == 0) return;
  download_of_[step_ % steps_in_flight] = slot;
  const std::size_t bytes = static_cast<std::size_t>(heads) * sizeof(gpu::sampled_token);
  rank_.draws->receive(bytes_at(sampled_[slot].data(), bytes), rank_.host.stages - 1, draws_stream_.handle());
}

void gpu_stages::draws_kept(const cuda::stream& reader, std::size_t slot) {
  kept_[slot].record(draws_stream_);
  reader.wait_for(kept_[slot]);
}

} // namespace troupe
