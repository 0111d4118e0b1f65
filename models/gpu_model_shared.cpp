// What a model does as one of several GPUs that share its layers and its head.
#include <algorithm>

#include "kernels/elementwise_gpu.hpp"
#include "models/gpu_model.hpp"

namespace troupe {
namespace {

// In a group: a step of two such parts at least is cut, at a row where cuBLASLt finds all matrices aligned.
constexpr std::int32_t least_part_rows = 256, part_alignment = 128;

} // namespace

void gpu_model::share_layers(communicator* tensor, const cuda::stream& sums) {
  tensor_ = tensor;
  sums_ = &sums;
}

std::optional<std::int32_t> gpu_model::second_part(std::int32_t rows, std::int32_t decode_rows) const {
  if (tensor_ == nullptr || !shape_.overlaps) return std::nullopt;
  const std::int32_t first = (std::max(rows / 2, decode_rows) + part_alignment - 1) / part_alignment * part_alignment;
  if (first < least_part_rows || rows - first < least_part_rows) return std::nullopt;
  return first;
}

// While one part's rows are summed up over the ranks, the other part's are computed. A row sees the keys of all rows before it, so the
// first part goes first.
void gpu_model::layer(const cuda::stream& on, const gpu_batch& batch, std::int32_t index) {
  for (std::size_t i = 0; i < batch.part_count; ++i) {
    end_sum(on, batch, i);
    shape_.batch_invariant ? invariant_attention_block(on, batch, batch.parts[i], index)
                           : attention_block(on, batch, batch.parts[i], index);
    begin_sum(on, batch, i);
  }
  for (std::size_t i = 0; i < batch.part_count; ++i) {
    end_sum(on, batch, i);
    shape_.batch_invariant ? invariant_mlp_block(on, batch.parts[i], index) : mlp_block(on, batch.parts[i], index);
    begin_sum(on, batch, i);
  }
}

// The sum over ranks of a part's rows. With two parts it goes beside what follows on `on`, until end_sum().
void gpu_model::begin_sum(const cuda::stream& on, const gpu_batch& batch, std::size_t part) {
  if (tensor_ == nullptr) return;
  if (batch.part_count == 1) return sum_over_ranks(on, batch.rows);
  const gpu_part& rows = batch.parts[part];
  computed_[part].record(on);
  sums_->wait_for(computed_[part]);
  sum_by_library(*sums_, rows.first, rows.rows);
  summed_[part].record(*sums_);
}

void gpu_model::end_sum(const cuda::stream& on, const gpu_batch& batch, std::size_t part) {
  if (tensor_ == nullptr || batch.part_count == 1) return;
  mark(on, kernel_group::collectives); // as far as nothing hides them
  on.wait_for(summed_[part]);
}

// Where the logits of this GPU's ids go: [rows][places], in a group at their place among all ranks'.
float* gpu_model::own_logits(std::int32_t rows) const {
  if (shape_.head_parts == 1) return logits_.as<float>();
  return gathered_.as<float>() + std::int64_t{tensor_->rank()} * rows * shape_.head.places;
}

const float* gpu_model::whole_logits(const cuda::stream& on, std::int32_t rows) {
  if (shape_.head_parts == 1) return logits_.as<float>();
  const auto part = static_cast<std::size_t>(rows) * static_cast<std::size_t>(shape_.head.places);
  mark(on, kernel_group::collectives);
  tensor_->all_gather({own_logits(rows), part, dtype::f32},
                      {gathered_.data(), part * static_cast<std::size_t>(shape_.head_parts), dtype::f32}, on.handle());
  mark(on, kernel_group::head);
  if (rows == 1) return gathered_.as<float>(); // its parts lie side by side
  gpu::join_parts(on.handle(), {gathered_.as<float>(), shape_.head_parts, rows, shape_.head.places, logits_.as<float>(), shape_.overlaps});
  return logits_.as<float>();
}

} // namespace troupe
