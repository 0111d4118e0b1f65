// step_plan -> ops -> step_result on one CUDA GPU. No CUDA headers here; compiled with the CUDA side only.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "core/dtype.hpp"
#include "core/step.hpp"
#include "device/keeper/client.hpp"
#include "models/gpu_rank.hpp"
#include "models/kept_kv.hpp"
#include "models/model.hpp"
#include "models/start_times.hpp"

namespace troupe {

struct gpu_executor_options {
  std::int32_t device = 0;      // CUDA's number
  std::optional<dtype> type;    // bf16 or f16, of weights, activations and KV cache; none: f16 for checkpoints stored as F16, else bf16
  std::int32_t block_size = 16; // tokens per KV block, a multiple of 16
  std::int32_t max_num_seqs = 128;
  std::int32_t max_batched_tokens = 2048;
  std::optional<std::int32_t> max_model_len; // none: the model's max_position
  // The KV cache takes what is left of this share of the device's memory after weights, activations and what others hold ..
  double memory_utilization = 0.9;
  std::optional<std::size_t> kv_bytes;    // .. or this much,
  std::optional<std::int32_t> num_blocks; // .. or this many blocks.
  // Logits beyond this many ids (padding rows of the head) are masked. none: config.vocab_size.
  std::optional<std::int32_t> tokenizer_vocab_size;
  std::int32_t max_proposals = 0;  // that plans may ask of a draft model beside this one (models/drafting_executor.hpp)
  std::int32_t loader_threads = 0; // that widen and upload weights; 0: one per core

  // What the ablation switches. All on: the product. reference() below: all off.
  bool fused = true;                // decode steps of five launches a layer; else one launch per op
  bool graphs = true;               // decode steps replay a CUDA graph of their batch size; else they are launched kernel by kernel
  bool overlapping_launches = true; // programmatic dependent launch
  bool asynchronous_copies = true;  // else every copy, and the step, is waited for before submit() returns
  bool own_all_reduce = true;       // GPUs sum few rows by a kernel of our own, where they can; else NCCL sums all
  bool plain_attention = false;     // the plainest attention kernel there is, for comparisons
  // A row's bits then depend on its sequence alone: not on the rows beside it, on how its prompt was cut, or on whether its tokens were
  // drawn here or replayed. `fused` has no meaning then.
  bool batch_invariant = false;

  std::optional<keeper::access> keep; // who keeps the weights beyond this process; none: nobody
  std::optional<kv_keeping> keep_kv;  // likewise the KV cache

  bool tune = true;                            // measure at start which algorithms products of many rows take
  std::filesystem::path tuning_cache;          // what was measured, for the next start; empty: not kept
  std::function<void(const std::string&)> log; // one line each: the memory ledger, how ranks sum; none: silent
  start_times* start = nullptr;                // told what the start has reached, until the executor is made
  // For traces: the time of each group of kernels. Steps without a graph are cut by events, which ends the overlap of launches there.
  bool kernel_times = false;
};

// The plain path: unfused, synchronous, without graphs.
inline gpu_executor_options reference(gpu_executor_options options) {
  options.fused = options.graphs = options.overlapping_launches = options.asynchronous_copies = options.tune = false;
  options.own_all_reduce = false;
  options.batch_invariant = false;
  options.plain_attention = true;
  return options;
}

// Throws load_error when model and options cannot work together or do not fit the device (with the ledger's numbers, before anything
// is taken), device_error when the device fails. The weights are read until this returns, and not after.
// `weights` are the whole model's, `rank` says what of it is taken, and may be on its way into its group: what needs no other rank is done
// meanwhile. All ranks of a group are made at once and get the same plans; each
// answers with the same tokens. A peer that does not take part is a step_failure (by_peer) after the group's deadline; every further plan
// is one too. Unlike on the CPU a row's last bits may depend on the rows beside it, unless batch_invariant: batch sizes take different
// kernels. Random draws do not.
std::unique_ptr<step_executor> make_gpu_executor(const model_weights& weights, const gpu_executor_options& options, gpu_joining rank = {});

// The same over random weights that are made on the device (--load-format dummy): of the same distributions as make_dummy_weights, but
// other values. In a group each rank makes its own share, and shares of the same matrix are equal: for measurements of speed.
std::unique_ptr<step_executor> make_gpu_executor_with_dummy_weights(const model_config& config, const gpu_executor_options& options,
                                                                    gpu_joining rank = {});

// A target and a draft model on one GPU (models/drafting_executor.hpp). `options` are the target's, and its KV memory holds the cache of
// both. Of a group the leader has the draft model, whole; the other ranks follow plans that ask for proposals.
std::unique_ptr<step_executor> make_drafting_gpu_executor(const model_weights& target, const model_weights& draft,
                                                          const gpu_executor_options& options, gpu_joining rank = {});

// GPUs that this process can use; 0 where there is no driver.
std::int32_t gpu_count();
// For a log line: name and compute capability.
std::string gpu_name(std::int32_t device);
// Why `device` cannot run a model of this config, or none. Takes nothing of the device.
std::optional<std::string> gpu_hindrance(std::int32_t device, const model_config& config);

} // namespace troupe
