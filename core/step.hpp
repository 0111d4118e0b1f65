// The step protocol: what a scheduler tells every rank of a group to do, and what comes back.
// All integers (floats travel bit-cast). A plan is applied in this order: closed, opened, grants, copies, items.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "core/collective_fault.hpp"
#include "core/ids.hpp"
#include "core/sampling.hpp"

namespace troupe {

// A slot starts a sequence. Outputs are the positions from prompt_tokens on; after a preemption or a lost device the
// refill's chunks carry outputs too, and penalties count them as such.
struct slot_open {
  slot_id slot = 0;
  std::int32_t prompt_tokens = 0;
  sampling_params sampling;

  friend bool operator==(const slot_open&, const slot_open&) = default;
};

// Physical blocks for the slot's logical blocks first_block, first_block + 1, ..; they follow those that the slot has, or take the place
// of some of them: the same content was found in another block, or the old ones held rejected drafts alone and were given to somebody
// else. Several slots may share a block whose rows are all computed.
struct block_grant {
  slot_id slot = 0;
  std::int32_t first_block = 0;
  std::vector<block_id> blocks;

  friend bool operator==(const block_grant&, const block_grant&) = default;
};

// All rows of a block, before the plan's items write any; those of `from` that count were computed by earlier plans.
struct block_copy {
  block_id from = 0;
  block_id to = 0;

  friend bool operator==(const block_copy&, const block_copy&) = default;
};

enum class work_kind : std::uint8_t {
  prefill, // token_count tokens come with the plan; without penalties it may go back, over rows that then are as if never computed
  decode,  // one token: the one this slot sampled last; it is not in the plan
  // The slot's last sample, then token_count - 1 drafts that come with the plan. Every row draws; the draws count up to the first that is
  // not the draft behind it, which is itself one of them. Rows of drafts that were not drawn are as if never computed.
  verify,
};

struct work_item {
  slot_id slot = 0;
  work_kind kind = work_kind::prefill;
  // Of the item's first token in its sequence. A slot's first item may start above 0: the blocks before hold the rows already.
  std::int32_t first_position = 0;
  std::int32_t token_count = 0;
  bool sample = false;                         // draw a token from the last row (decode: always true)
  std::optional<std::int32_t> prompt_logprobs; // prefill: score each next prompt token, with this many best ones
  // sample: drafts wanted behind the last drawn token, of a device that has a draft model. The slot has the blocks for propose rows more.
  std::int32_t propose = 0;

  friend bool operator==(const work_item&, const work_item&) = default;
};

struct step_plan {
  epoch_number epoch = 0;
  step_number step = 0;
  std::vector<slot_id> closed;
  std::vector<slot_open> opened;
  std::vector<block_grant> grants;
  std::vector<block_copy> copies;
  std::vector<work_item> items;
  // Tokens of prefill items (and drafts of verify items), in item order. A prefill item that scores prompt tokens and does not
  // end the prompt is followed by one more token, the target of its last row, not to be computed.
  std::vector<token_id> tokens;

  friend bool operator==(const step_plan&, const step_plan&) = default;
};

struct scored_token {
  token_id token = 0;
  float logprob = 0;

  friend bool operator==(const scored_token&, const scored_token&) = default;
};

struct token_scores {
  scored_token chosen;
  std::vector<scored_token> top; // best first

  friend bool operator==(const token_scores&, const token_scores&) = default;
};

struct slot_output {
  slot_id slot = 0;
  std::vector<token_id> tokens;            // sampled, in order; empty for a chunk that samples nothing
  std::vector<token_scores> scores;        // one per token when top_logprobs is set
  std::vector<token_scores> prompt_scores; // rows of a prefill item that asked for them
  bool numeric_fault = false;              // the logits held a NaN or nothing finite: no token, the sequence must end
  std::vector<token_id> proposals{};       // at most as many as the item asked for: guesses of what follows `tokens`

  friend bool operator==(const slot_output&, const slot_output&) = default;
};

// What the kernels of a step are for, in the order in which they run. A device that cannot tell a layer's parts from one another
// reports `layers` for all of them.
enum class kernel_group : std::uint8_t {
  gathering, // rows laid out, embeddings
  layers,
  attention_input, // norm, q, k and v, rotation, KV write
  attention,
  attention_output,
  mlp_input,
  mlp_output,
  collectives, // sums over the ranks that share a layer, waiting for them included
  head,
  sampling,
};

struct group_time {
  kernel_group group = kernel_group::layers;
  std::uint64_t ns = 0; // over all layers

  friend bool operator==(const group_time&, const group_time&) = default;
};

struct stage_times {
  std::uint64_t prepare_ns = 0;
  std::uint64_t compute_ns = 0;
  std::uint64_t deliver_ns = 0;
  // When each began, on the steady clock of the device's machine; 0: the device does not say.
  std::uint64_t prepare_at_ns = 0;
  std::uint64_t compute_at_ns = 0;
  std::uint64_t deliver_at_ns = 0;
  std::vector<group_time> groups; // of compute, where the device measures them
  // Of compute, where the device tells its collectives apart: until the last peer had come, and the rest of the calls. A device that
  // cannot tell the two apart counts all as moving.
  std::uint64_t collective_wait_ns = 0;
  std::uint64_t collective_move_ns = 0;

  friend bool operator==(const stage_times&, const stage_times&) = default;
};

struct step_result {
  epoch_number epoch = 0;
  step_number step = 0;
  std::vector<slot_output> outputs; // of the leading rank: one per item, in item order; of the others none
  stage_times times;

  friend bool operator==(const step_result&, const step_result&) = default;
};

struct step_failure {
  std::string reason;
  bool by_peer = false;                         // this rank waited for another one in vain: the fault lies elsewhere
  std::optional<collective_fault> collective{}; // where it was a collective that failed
};

using step_outcome = std::variant<step_result, step_failure>;

// Planned before anything is taken; what the scheduler needs to know of a device.
struct executor_info {
  std::int32_t block_size = 0; // tokens per KV block
  std::int32_t num_blocks = 0;
  std::int32_t max_num_seqs = 0;       // slots
  std::int32_t max_batched_tokens = 0; // tokens of one plan
  std::int32_t max_model_len = 0;
  std::int32_t vocab_size = 0;
  std::int32_t max_verify_tokens = 0; // rows of one verify item; below 2: the device does not verify
  std::int32_t max_proposals = 0;     // drafts of one item; 0: it has no draft model

  friend bool operator==(const executor_info&, const executor_info&) = default;
};

// One rank's model, KV shard and streams. Used by one thread.
class step_executor {
 public:
  using deliver_fn = std::function<void(step_outcome)>;

  virtual ~step_executor() = default;
  virtual executor_info info() const = 0;
  // The KV blocks hold what those of the executor before this one held, in another process, but for what its last, unanswered plans wrote.
  virtual bool kv_kept() const { return false; }
  // Takes plans in order and calls `deliver` once for each, in order: before it returns (CPU) or later from the executor's
  // deliver thread (GPU). A plan that breaks the protocol is a step_failure, as is a lost device.
  virtual void submit(const step_plan& plan, deliver_fn deliver) = 0;
};

} // namespace troupe
