#include "models/gpu_weights.hpp"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <exception>
#include <mutex>
#include <string>
#include <thread>

#include "device/cuda/pinned_ring.hpp"
#include "kernels/fill_gpu.hpp"
#include "models/gpu_weight_layout.hpp"

namespace troupe {
namespace {

constexpr int layout_version = 1;        // raised with every change of what lies where that the lines of gpu_weight_layout() do not show
constexpr std::size_t staging_slots = 3; // of each thread

// Zeros where a piece has padding.
void clear_padding(const weight_piece& p, std::byte* memory, const cuda::stream& on) {
  const auto rows = static_cast<std::size_t>(p.rows), width = static_cast<std::size_t>(p.columns) * gpu_element_bytes;
  const std::size_t below = static_cast<std::size_t>(p.padding_rows) * width;
  const std::size_t behind = static_cast<std::size_t>(p.padding_columns) * gpu_element_bytes;
  if (below > 0) cuda::clear(on, memory + p.offset + p.bytes() - below, below);
  if (behind > 0) cuda::clear_columns(on, memory + p.offset + width - behind, width, behind, rows);
}

} // namespace

std::size_t gpu_weight_bytes(const model_config& config, const gpu_ends& ends) { return weight_layout(config, ends, nullptr).bytes(); }

std::string gpu_weight_layout(const model_config& config, const gpu_ends& ends, dtype type) {
  std::string lines = "layout " + std::to_string(layout_version) + "\n";
  const weight_layout placed(config, ends, nullptr);
  for (const weight_piece& p : placed.pieces()) {
    lines +=
        std::string(traits(type).name) + " " + std::to_string(p.rows) + "x" + std::to_string(p.columns) + " at " + std::to_string(p.offset);
    if (p.interleaved_head != 0) lines += ", pairs of heads of " + std::to_string(p.interleaved_head) + " as halves";
    if (p.padding_rows != 0) lines += ", the last " + std::to_string(p.padding_rows) + " rows zeros";
    if (p.padding_columns != 0) lines += ", the last " + std::to_string(p.padding_columns) + " columns zeros";
    lines += "\n";
  }
  return lines;
}

gpu_weights filled_weights(const model_config& config, const gpu_ends& ends, dtype type, std::byte* memory) {
  return weight_layout(config, ends, nullptr).at(memory, type);
}

gpu_weights upload_weights(const model_weights& weights, const gpu_ends& ends, dtype type, std::byte* memory, const cuda::stream& on,
                           std::int32_t device, std::int32_t threads) {
  if (weights.source.make) weights.source.make();
  const weight_layout placed(weights.config, ends, &weights);
  const std::vector<upload_job> jobs = upload_jobs(placed.pieces());
  std::size_t slot = 0;
  for (const upload_job& job : jobs) slot = std::max(slot, job.bytes());
  std::atomic<std::size_t> next{0};
  std::exception_ptr failure;
  std::mutex guard;
  const auto work = [&] {
    try {
      cuda::use_device(device);
      cuda::pinned_ring staging(staging_slots, slot);
      std::vector<float> row;
      for (std::size_t i = next++; i < jobs.size(); i = next++) {
        const upload_job& job = jobs[i];
        std::byte* const to = staging.next();
        convert(job, type, to, row);
        cuda::copy_in(on, memory + job.offset(), to, job.bytes());
        staging.fence(on);
      }
      on.synchronize(); // the staging memory ends here
    } catch (...) {
      const std::lock_guard lock(guard);
      if (!failure) failure = std::current_exception();
      next = jobs.size();
    }
  };
  {
    std::vector<std::jthread> helpers;
    const std::size_t wanted = std::min<std::size_t>(static_cast<std::size_t>(std::max(1, threads)), jobs.size());
    for (std::size_t i = 1; i < wanted; ++i) helpers.emplace_back(work);
    work();
  }
  if (failure) std::rethrow_exception(failure);
  return placed.at(memory, type);
}

gpu_weights make_dummy_gpu_weights(const model_config& config, const gpu_ends& ends, dtype type, std::byte* memory, const cuda::stream& on,
                                   std::uint64_t seed) {
  const weight_layout placed(config, ends, nullptr);
  for (const weight_piece& p : placed.pieces()) {
    const bool norm = p.dummy == dummy_spread::norm;
    const float reach = p.dummy == dummy_spread::matrix ? std::sqrt(3.0F / static_cast<float>(p.columns)) : norm ? 0.1F : 0.02F;
    // Numbers follow each other by this step, so what lies in the middle of a matrix can be made by itself.
    constexpr std::uint64_t step = 0x9e3779b97f4a7c15U;
    const auto before = static_cast<std::uint64_t>(p.rows_before * p.columns);
    gpu::fill_uniform(on.handle(), {type, memory + p.offset, p.rows * p.columns, norm ? 1.0F : 0.0F, reach, (seed++ + before) * step});
    clear_padding(p, memory, on);
  }
  on.synchronize();
  return placed.at(memory, type);
}

} // namespace troupe
