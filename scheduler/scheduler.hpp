// Decides what each step computes and absorbs what came back. Pure: no clock, thread, random number or I/O; time is an argument.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "core/error.hpp"
#include "core/step.hpp"
#include "kvcache/block_hash.hpp"
#include "scheduler/sequence.hpp"

namespace troupe {

// Who guesses what a sequence will say next.
enum class draft_source : std::uint8_t {
  none,
  ngram, // what followed the sequence's last few tokens when they stood in it before
  model, // the device's draft model
};

struct speculation_config {
  draft_source source = draft_source::none;
  std::int32_t max_drafts = 0; // of a sequence in a step; fewer where the device verifies or proposes fewer
  bool measured = true;        // shorter runs, or none, where they cost more than they bring; false: always the longest possible
};

struct scheduler_config {
  executor_info device;
  std::int32_t max_waiting = 1024;                      // sequences; add() beyond it is `overloaded`
  std::int32_t plans_in_flight = 2;                     // 2: one step ahead; at least `stages`
  std::optional<std::uint64_t> max_predicted_ttft_ns{}; // add() of what would come later is `overloaded`; none: no bound
  bool prefix_caching = true;
  speculation_config speculation{};
  std::array<std::uint64_t, 2> hash_key{}; // of the prefix index; random, so that clients cannot make hashes collide
  block_hash hash{};                       // none: keyed_block_hash(hash_key)
  // Of the device's pipeline. With more than one, plans that follow one another hold different sequences, a share of the decodes each, so
  // that all stages work; a sequence whose last draw has not come back waits.
  std::int32_t stages = 1;
};

// Drafts whose verification came back, by place in their run; the last entry counts all further ones, too. Since construction.
struct draft_counts {
  static constexpr std::size_t kPlaces = 8;
  std::array<std::uint64_t, kPlaces> drafted{}, accepted{};
};

// blocks_free + blocks_used + blocks_cached = blocks_total, always.
struct scheduler_stats {
  std::int32_t running = 0;
  std::int32_t waiting = 0;
  std::int32_t plans_in_flight = 0;
  std::int32_t blocks_total = 0;
  std::int32_t blocks_free = 0;
  std::int32_t blocks_used = 0;   // by running sequences; a shared one counts once
  std::int32_t blocks_cached = 0; // hold a prefix that no sequence uses
  std::uint64_t preemptions = 0;  // since construction
  draft_counts drafts;
  bool speculating = false; // drafts are planned where there are any
};

// Why device state is gone. A fault (the device process crashed, a step failed) may be a request's doing; a kill came from outside.
enum class loss_cause : std::uint8_t { fault, killed };

struct scheduler_core;

class scheduler {
 public:
  // Throws std::invalid_argument when the device's limits cannot work together.
  explicit scheduler(scheduler_config config);
  ~scheduler();
  scheduler(scheduler&&) noexcept;

  // Admits or refuses: invalid_request when prompt and max_tokens can never fit (context or an empty pool), overloaded when the queue is
  // full, when the predicted time to its first token is above the bound, or its queue deadline would pass before it is scheduled.
  std::optional<error> add(sequence_request request, std::uint64_t now_ns);
  // The next plan, one step ahead of the results; none when nothing can be planned or plans_in_flight are out. While drafts are being
  // verified, or would be with the next results known, none before these are: a plan without the sequences that wait for them would be a
  // whole step in which they stand still. In a pipeline they alone wait.
  std::optional<step_plan> schedule(std::uint64_t now_ns);
  // Absorbs a result. One of an older epoch, a repeated or unknown step changes nothing.
  std::vector<sequence_update> apply(const step_result& result, std::uint64_t now_ns);
  // Ends a sequence from outside: client gone, stop string found. False when it is not (or no longer) known. Emits no update.
  bool remove(sequence_id id);
  // Ends what is past a deadline, failed with timed_out.
  std::vector<sequence_update> expire(std::uint64_t now_ns);
  // The earliest deadline of any sequence; none when nobody has one.
  std::optional<std::uint64_t> next_deadline_ns() const;
  // All device state is gone: raises the epoch and puts every running sequence back in the queue, to be recomputed. Returns the
  // quarantined ones, failed: those in flight at two faults in a row (or eight losses of any kind) with no new token between.
  // A sequence that was in flight at a fault is replayed beside proven ones alone, so that it alone is blamed for the next.
  // `kv_may_stay`: the next device may have the blocks' content of this one, up to what a step in flight wrote. Then the prefix index stays,
  // which names nothing but rows of results that were applied, and running sequences enter it like preempted ones: they go on from their
  // last full block. Before the next plan forget_cache() must say so when the content is not there. After a fault nothing stays: it may
  // have written anywhere.
  std::vector<sequence_update> device_lost(std::uint64_t now_ns, loss_cause cause = loss_cause::fault, bool kv_may_stay = false);
  // The content of the blocks is gone. No sequence may run.
  void forget_cache();
  // Gives all sequences up, in order of rank, to be readmitted by the scheduler of another group. None may run: device_lost() came before.
  std::vector<sequence_progress> take_all();
  // Goes on with a sequence that another scheduler admitted. It is not refused: what was accepted is not lost to a full queue. The group
  // must have room for it in context and pool. Throws std::logic_error when its id is known.
  void readmit(sequence_progress moved);

  scheduler_stats stats() const;
  epoch_number epoch() const;

 private:
  std::unique_ptr<scheduler_core> core_;
};

} // namespace troupe
