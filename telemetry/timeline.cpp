#include "telemetry/timeline.hpp"

#include <algorithm>
#include <array>
#include <cstdio>
#include <exception>

#include "core/json.hpp"

namespace troupe::telemetry {
namespace {

constexpr std::array<const char*, 10> kGroupNames = {"gathering", "layers",     "attention input", "attention", "attention output",
                                                     "MLP input", "MLP output", "collectives",     "head",      "sampling"};

struct stages {
  time_span prepare, compute, deliver;
};

// A device that does not date its stages ran them one behind the other, up to the moment when its result was there.
stages place(const stage_times& t, std::uint64_t result_ns) {
  const auto before = [](std::uint64_t end, std::uint64_t length) { return end > length ? end - length : 0; };
  const std::uint64_t deliver = t.deliver_at_ns != 0 ? t.deliver_at_ns : before(result_ns, t.deliver_ns);
  const std::uint64_t compute = t.compute_at_ns != 0 ? t.compute_at_ns : before(deliver, t.compute_ns);
  const std::uint64_t prepare = t.prepare_at_ns != 0 ? t.prepare_at_ns : before(compute, t.prepare_ns);
  return {{prepare, prepare + t.prepare_ns}, {compute, compute + t.compute_ns}, {deliver, deliver + t.deliver_ns}};
}

const char* kind_of(const step_record& r) {
  if (r.decode_rows == 0) return "prefill";
  return r.prefill_tokens == 0 ? "decode" : "decode + prefill";
}

// Groups are sums over all layers, so only their lengths mean something; they are drawn one behind the other from the step's start.
void draw_groups(trace_file& file, std::int32_t replica, const stage_times& times, std::uint64_t begin_ns) {
  for (const group_time& g : times.groups) {
    file.span({trace_track::groups, replica}, name_of(g.group), begin_ns, begin_ns + g.ns);
    begin_ns += g.ns;
  }
}

// Tracing must never harm what it watches.
template <class F>
void quietly(F body) noexcept {
  try {
    body();
  } catch (const std::exception&) { // out of memory: the event is lost
  }
}

} // namespace

const char* name_of(kernel_group group) {
  return kGroupNames[std::min<std::size_t>(static_cast<std::size_t>(group), kGroupNames.size() - 1)];
}

void count_items(const step_plan& plan, step_record& into) {
  for (const work_item& item : plan.items) {
    (item.kind == work_kind::prefill ? into.prefill_tokens : into.decode_rows) += item.token_count;
  }
}

timeline::timeline(group_shape shape) : gaps_(static_cast<std::size_t>(std::max(1, shape.replicas))) {}

timeline::timeline(const std::filesystem::path& trace, group_shape shape)
    : path_(trace.string()),
      gaps_(static_cast<std::size_t>(std::max(1, shape.replicas))),
      file_(std::make_unique<trace_file>(
          trace, [this](std::uint64_t dropped) { return summary_json(dropped); }, trace_limits{}, shape)) {}

void timeline::step(const step_record& record, const stage_times& times) noexcept {
  quietly([&] {
    const stages at = place(times, record.result_ns);
    std::optional<time_span> gap;
    {
      const std::lock_guard lock(guard_);
      gap = gaps_.at(static_cast<std::size_t>(record.replica)).observe(record.epoch, at.compute, record.decode_rows > 0);
    }
    if (file_ == nullptr) return;
    const auto number = static_cast<std::int64_t>(record.step);
    file_->span({trace_track::prepare, record.replica}, "prepare", at.prepare.begin_ns, at.prepare.end_ns, {{"step", number}});
    file_->span({trace_track::compute, record.replica}, kind_of(record), at.compute.begin_ns, at.compute.end_ns,
                {{"step", number}, {"decode_rows", record.decode_rows}, {"prefill_tokens", record.prefill_tokens}});
    file_->span({trace_track::deliver, record.replica}, "deliver", at.deliver.begin_ns, at.deliver.end_ns, {{"step", number}});
    if (gap) file_->span({trace_track::idle, record.replica}, "idle", gap->begin_ns, gap->end_ns, {{"before_step", number}});
    draw_groups(*file_, record.replica, times, at.compute.begin_ns);
  });
}

void timeline::rank_step(const step_record& record, std::int32_t rank, const rank_times& times, std::uint64_t now_ns) noexcept {
  if (file_ == nullptr) return;
  quietly([&] {
    const auto number = static_cast<std::int64_t>(record.step);
    const trace_row row{trace_track::rank, record.replica, rank};
    const std::uint64_t begin = now_ns - std::min(now_ns, times.step_ns);
    file_->span(row, kind_of(record), begin, now_ns, {{"step", number}, {"late_ns", static_cast<std::int64_t>(times.lag_ns)}});
    const std::uint64_t moving = begin + times.wait_ns;
    if (times.wait_ns > 0) file_->span(row, "waiting for peers (sum)", begin, moving);
    if (times.move_ns > 0) file_->span(row, "in collectives (sum)", moving, moving + times.move_ns);
    if (times.lag_ns == 0) return;
    file_->span({trace_track::late, record.replica}, "rank " + std::to_string(rank) + " late", now_ns - times.lag_ns, now_ns,
                {{"step", number}, {"rank", rank}});
  });
}

void timeline::first_token(request_id id, const request_moments& m) noexcept {
  if (file_ == nullptr) return;
  quietly([&] {
    file_->phase(id, "request " + std::to_string(id), true, m.arrival_ns);
    const std::uint64_t scheduled = m.scheduled_ns != 0 ? m.scheduled_ns : m.first_token_ns;
    file_->phase(id, "queued", true, m.arrival_ns);
    file_->phase(id, "queued", false, scheduled);
    file_->phase(id, "prefill", true, scheduled);
    file_->phase(id, "prefill", false, m.first_token_ns);
  });
}

void timeline::ended(request_id id, const request_moments& m, std::uint64_t now_ns, std::int64_t output_tokens,
                     std::string_view how) noexcept {
  if (file_ == nullptr) return;
  quietly([&] {
    const std::string name = "request " + std::to_string(id);
    if (m.first_token_ns == 0) { // it never got that far: its phases are all here
      file_->phase(id, name, true, m.arrival_ns);
      file_->phase(id, "queued", true, m.arrival_ns);
      file_->phase(id, "queued", false, m.scheduled_ns != 0 ? m.scheduled_ns : now_ns);
      if (m.scheduled_ns != 0) {
        file_->phase(id, "prefill", true, m.scheduled_ns);
        file_->phase(id, "prefill", false, now_ns);
      }
    } else {
      file_->phase(id, "decode", true, m.first_token_ns, {{"output_tokens", output_tokens}});
      file_->phase(id, "decode", false, now_ns);
    }
    file_->phase_mark(id, "finished: " + std::string(how), now_ns);
    file_->phase(id, name, false, now_ns);
  });
}

void timeline::mark(std::string_view what, std::uint64_t now_ns) noexcept {
  if (file_ == nullptr) return;
  quietly([&] { file_->mark(what, now_ns); });
}

idle_summary timeline::idle() const {
  const std::lock_guard lock(guard_);
  idle_summary all;
  for (const step_gaps& gaps : gaps_) {
    all.steps += gaps.summary().steps;
    all.busy_ns += gaps.summary().busy_ns;
    all.idle_ns += gaps.summary().idle_ns;
  }
  return all;
}

std::string timeline::describe() const {
  const idle_summary now = idle();
  std::array<char, 160> text{};
  std::snprintf(text.data(), text.size(), "the device stood idle for %.2f%% of %.3f s between %llu decode steps", now.share() * 100,
                static_cast<double>(now.idle_ns + now.busy_ns) * 1e-9, static_cast<unsigned long long>(now.steps));
  if (file_ == nullptr) return text.data();
  file_->flush();
  std::string out = std::to_string(file_->written()) + " events in " + path_;
  if (file_->dropped() > 0) out += ", " + std::to_string(file_->dropped()) + " dropped for lack of room";
  return out + "; " + text.data();
}

std::string timeline::summary_json(std::uint64_t dropped) const {
  const idle_summary now = idle();
  value_object out;
  out.set("decode_steps", static_cast<std::int64_t>(now.steps));
  out.set("idle_ns", static_cast<std::int64_t>(now.idle_ns));
  out.set("busy_ns", static_cast<std::int64_t>(now.busy_ns));
  out.set("idle_share", now.share());
  out.set("events_dropped", static_cast<std::int64_t>(dropped));
  return json::dump(out);
}

} // namespace troupe::telemetry
