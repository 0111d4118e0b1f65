// What a model does as one of several GPUs that share its layers and its head.
#include <algorithm>
#include <utility>

#include "kernels/elementwise_gpu.hpp"
#include "models/gpu_copied_sums.hpp"
#include "models/gpu_model.hpp"

namespace troupe {
namespace {

// In a group: a step of two such parts at least is cut, at a row where cuBLASLt finds all matrices aligned.
constexpr std::int32_t least_part_rows = 512, part_alignment = 128;
constexpr std::int32_t least_part_rows_of_nccl = 2048; // whose kernels take multiprocessors from the products

} // namespace

void gpu_model::share_layers(communicator* tensor, const cuda::stream& sums) {
  tensor_ = tensor;
  sums_ = &sums;
}

std::optional<std::int32_t> cut_in_two(std::int32_t rows, std::int32_t decode_rows, std::int32_t least) {
  std::int32_t first = rows / 2 / part_alignment * part_alignment;
  if (first < decode_rows) first = (decode_rows + part_alignment - 1) / part_alignment * part_alignment;
  if (first < least || rows - first < least) return std::nullopt;
  return first;
}

bool gpu_model::may_cut(const gpu_model_shape& shape) { return shape.overlaps && shape.max_rows >= 2 * least_part_rows; }

std::optional<std::int32_t> gpu_model::second_part(std::int32_t rows, std::int32_t decode_rows) const {
  if (tensor_ == nullptr || !may_cut(shape_)) return std::nullopt;
  const std::int32_t least = part_sums_ != nullptr ? least_part_rows : least_part_rows_of_nccl;
  return cut_in_two(rows, decode_rows, least);
}

// While one part's rows are summed up over the ranks, the other part's are computed. A row sees the keys of all rows before it, so the
// first part goes first.
void gpu_model::layer(const cuda::stream& on, const gpu_batch& batch, std::int32_t index) {
  for (std::size_t i = 0; i < batch.part_count; ++i) {
    shape_.batch_invariant ? invariant_attention_block(on, batch, i, index) : attention_block(on, batch, i, index);
    begin_sum(on, batch, i);
  }
  for (std::size_t i = 0; i < batch.part_count; ++i) {
    shape_.batch_invariant ? invariant_mlp_block(on, batch, i, index) : mlp_block(on, batch, i, index);
    begin_sum(on, batch, i);
  }
}

// The sum over ranks of a part's rows. With two parts it goes beside what follows on `on`, until norm_sum().
void gpu_model::begin_sum(const cuda::stream& on, const gpu_batch& batch, std::size_t number) {
  if (tensor_ == nullptr) return;
  if (batch.part_count == 1) return sum_over_ranks(on, batch.rows);
  const gpu_part& part = batch.parts[number];
  void* const hidden = from_row(hidden_, part.first, config_.hidden_size);
  summing_[number] = true;
  if (part_sums_ != nullptr) return part_sums_->send(on, number, part.first, static_cast<const std::byte*>(hidden), part.rows);
  computed_[number].record(on);
  sums_->wait_for(computed_[number]);
  sum_by_library(*sums_, part.first, part.rows);
  summed_[number].record(*sums_);
}

// normed_ gets the norm of a part's rows, when the sum that was begun of them, if one was, is in hidden_.
// Both belong to `group`, but for the wait.
void gpu_model::norm_sum(const cuda::stream& on, const gpu_batch& batch, std::size_t number, const void* weight, kernel_group group) {
  const gpu_part& part = batch.parts[number];
  void* const hidden = from_row(hidden_, part.first, config_.hidden_size);
  const bool summing = std::exchange(summing_[number], false);
  if (summing) mark(on, kernel_group::collectives); // as far as nothing hides them
  const std::byte* const others = summing && part_sums_ != nullptr ? part_sums_->receive(on, number) : nullptr;
  if (summing && part_sums_ == nullptr) on.wait_for(summed_[number]);
  mark(on, group);
  if (others == nullptr) return norm(on, hidden, weight, part.rows, normed_.data());
  gpu::norm_args args;
  args.type = shape_.type;
  args.x = args.sum = hidden;
  args.residual = others;
  args.y = normed_.data();
  args.stride = args.y_stride = args.columns = config_.hidden_size;
  args.rows = part.rows;
  args.weight = weight;
  args.epsilon = config_.norm_epsilon;
  gpu::rms_norm(on.handle(), args);
}

// Where the logits of this GPU's ids go: [rows][places], in a group at their place among all ranks'.
float* gpu_model::own_logits(std::int32_t rows) const {
  if (shape_.head_parts == 1) return logits_.as<float>();
  return gathered_.as<float>() + std::int64_t{tensor_->rank()} * rows * shape_.ends.ids.places;
}

const float* gpu_model::whole_logits(const cuda::stream& on, std::int32_t rows) {
  if (shape_.head_parts == 1) return logits_.as<float>();
  const auto part = static_cast<std::size_t>(rows) * static_cast<std::size_t>(shape_.ends.ids.places);
  mark(on, kernel_group::collectives);
  tensor_->all_gather({own_logits(rows), part, dtype::f32},
                      {gathered_.data(), part * static_cast<std::size_t>(shape_.head_parts), dtype::f32}, on.handle());
  mark(on, kernel_group::head);
  if (rows == 1) return gathered_.as<float>(); // its parts lie side by side
  gpu::join_parts(on.handle(),
                  {gathered_.as<float>(), shape_.head_parts, rows, shape_.ends.ids.places, logits_.as<float>(), shape_.overlaps});
  return logits_.as<float>();
}

} // namespace troupe
