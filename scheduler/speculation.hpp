// How far to speculate: by what drafts were accepted, what a row costs, and what a step without drafts would have cost.
#pragma once

#include <array>
#include <cstdint>

#include "core/step.hpp"
#include "scheduler/scheduler.hpp"
#include "scheduler/step_cost.hpp"

namespace troupe {

// How often the drafts of one sequence were accepted, by place in their run, later ones weighing more.
class acceptance {
 public:
  explicit acceptance(float prior) : prior_(prior) {}
  // Of a run, the first `accepted` drafts were drawn.
  void observe(std::int32_t drafted, std::int32_t accepted);
  // A step towards knowing nothing, so that what was bad once is tried again.
  void fade();
  // Of the draft at `place` (from 0), when those before it are accepted. Before anything is known the prior.
  double rate(std::int32_t place) const;

 private:
  float prior_;
  std::array<float, draft_counts::kPlaces> tried_{}, kept_{};
};

// What a step was, as its cost is judged by.
struct measured_step {
  std::int64_t rows = 0;
  std::int64_t prefill_rows = 0;
  std::int64_t draws = 0;   // items that sample
  std::int64_t outputs = 0; // tokens that these drew
  bool speculative = false; // it verified drafts or made proposals
  std::uint64_t ns = 0;
};

// Steps that hold decodes and verifications alone are measured. Speculation pauses when its steps bring fewer tokens in their time than
// steps without drafts are expected to bring; it is tried again after a pause that doubles from trial to trial. Every 64th step is one
// without drafts, for comparison.
class speculation {
 public:
  speculation(const speculation_config& config, const executor_info& device);

  draft_source source() const { return source_; }
  std::int32_t max_drafts() const { return max_drafts_; }
  // Drafts may be planned.
  bool on() const;
  // A row more costs as much as so many tokens are worth, in a step of `rows` rows that draws `draws` tokens.
  void set_price(std::int64_t draws, std::int64_t rows);
  // Drafts that are likely worth their price, up to `most`.
  std::int32_t run_length(const acceptance& past, std::int32_t most) const;
  void observe(const measured_step& step);

 private:
  void judge(const measured_step& step);

  draft_source source_;
  std::int32_t max_drafts_;
  bool measured_;
  double price_ = 0;
  step_cost rows_;  // of all measured steps
  step_cost plain_; // of those without drafts
  std::int32_t plain_steps_ = 0;
  std::int32_t since_plain_ = 0;
  // The running trial: sums in which later steps weigh more.
  std::int32_t trial_steps_ = 0;
  double outputs_ = 0, ns_ = 0;             // as they were
  double plain_outputs_ = 0, plain_ns_ = 0; // as they would have been
  std::int32_t pause_ = 0;                  // steps left
  std::int32_t next_pause_;
};

} // namespace troupe
