// What happened when: the phases of requests, the stages of steps, the gaps between them. Counts idle time always, and writes a trace
// when it has a file. Thread-safe; nothing here throws.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/ids.hpp"
#include "core/step.hpp"
#include "telemetry/group_shape.hpp"
#include "telemetry/step_gaps.hpp"
#include "telemetry/trace_file.hpp"

namespace troupe::telemetry {

// One step, seen from the scheduler. Times are steady-clock nanoseconds.
struct step_record {
  epoch_number epoch = 0;
  step_number step = 0;
  std::uint64_t result_ns = 0;  // when the result arrived; stages that the device does not date are laid before it
  std::int64_t decode_rows = 0; // verified drafts among them
  std::int64_t prefill_tokens = 0;
  std::int32_t replica = 0;
};

// 0: not reached.
struct request_moments {
  std::uint64_t arrival_ns = 0;
  std::uint64_t scheduled_ns = 0;
  std::uint64_t first_token_ns = 0;
};

// "attention input" and the like.
const char* name_of(kernel_group group);

// Rows and tokens of a plan's items.
void count_items(const step_plan& plan, step_record& into);

class timeline {
 public:
  explicit timeline(group_shape shape = {}); // counts, and writes nothing
  // Throws std::runtime_error when the file cannot be made.
  explicit timeline(const std::filesystem::path& trace, group_shape shape = {});

  void step(const step_record& record, const stage_times& times) noexcept;
  // `rank`, of a group of several, answered the step at `now_ns`.
  void rank_step(const step_record& record, std::int32_t rank, const rank_times& times, std::uint64_t now_ns) noexcept;
  void first_token(request_id id, const request_moments& moments) noexcept;
  // `how`: stop, length, or why it failed. `now_ns` is its end.
  void ended(request_id id, const request_moments& moments, std::uint64_t now_ns, std::int64_t output_tokens,
             std::string_view how) noexcept;
  void mark(std::string_view what, std::uint64_t now_ns) noexcept; // of the whole process

  idle_summary idle() const;
  // "1234 events in FILE; .. idle .. of .." for a log line at the end.
  std::string describe() const;

 private:
  std::string summary_json(std::uint64_t dropped) const;

  std::string path_;
  mutable std::mutex guard_;
  std::vector<step_gaps> gaps_;      // by replica
  std::unique_ptr<trace_file> file_; // null: none. Last: its writer reads what is above
};

} // namespace troupe::telemetry
