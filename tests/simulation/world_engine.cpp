#include <algorithm>
#include <utility>

#include "tests/simulation/world.hpp"

namespace troupe::test {

// -- scheduler --------------------------------------------------------------------------------------------------------------------

void world::add_sequences(std::vector<sequence_request> sequences) {
  std::vector<sequence_id> added;
  for (sequence_request& s : sequences) {
    const sequence_id id = s.id;
    if (auto refused = core_.add(std::move(s), queue_.now())) {
      note("scheduler refuses", id.request);
      for (const sequence_id& before : added) core_.remove(before);
      detokenizer_.send([this, id, refused] { fail_open(id.request, *refused); });
      break;
    }
    added.push_back(id);
  }
  pump();
}

void world::pump() {
  if (device_ && pausing_ && sent_.empty()) return let_device_go();
  while (device_ && !pausing_) {
    auto plan = core_.schedule(queue_.now());
    if (!plan) break;
    note("plan", plan->step, plan->items.size());
    if (sent_.empty()) last_news_ns_ = queue_.now();
    sent_.push_back(*plan);
    follow(*plan);
    promise(static_cast<std::int32_t>(sent_.size()) <= scene_.plans_in_flight, "a device's queue holds no more than the plans in flight");
    device_->last_arrival = std::max(device_->last_arrival + 1, queue_.now() + random_.below(scene_.mail_ns + 1) / 8); // in order
    queue_.after(device_->last_arrival - queue_.now(), [this, d = device_, p = std::move(*plan)] { run_plan(d, p); });
  }
  watch();
}

void world::absorb(const step_result& result) {
  if (!device_ || result.epoch != core_.epoch()) { // of a device that was given up
    ++seen_.stale;
    // The scheduler itself must not care either.
    promise(result.epoch == core_.epoch() || core_.apply(result, queue_.now()).empty(), "a stale result changes nothing");
    return;
  }
  const scheduler_stats before = core_.stats();
  auto updates = core_.apply(result, queue_.now());
  const scheduler_stats after = core_.stats();
  const auto ends = std::count_if(updates.begin(), updates.end(), [](const sequence_update& u) { return u.finish.has_value(); });
  promise(after.running + after.waiting + ends == before.running + before.waiting, "who has ended is forgotten, and nobody else");
  if (sent_.empty() || after.plans_in_flight == before.plans_in_flight) {
    promise(updates.empty(), "a result out of turn changes nothing");
    ++seen_.duplicates;
    return give_device_up();
  }
  promise(sent_.front().step == result.step, "results are absorbed in order");
  settle(sent_.front(), result);
  sent_.pop_front();
  note("result", result.step, updates.size());
  last_news_ns_ = queue_.now();
  ++completed_;
  pausing_ = pausing_ || chance(scene_.faults.changes);
  detokenizer_.send([this, updates = std::move(updates), now = queue_.now()] { absorb_updates(updates, now); });
  pump();
}

void world::forget_device(loss_cause cause, bool let_go) {
  device_ = nullptr;
  pausing_ = false;
  sent_.clear();
  slots_.clear();
  ++(let_go ? seen_.changes : cause == loss_cause::fault ? seen_.faults : seen_.kills);
  const scheduler_stats before = core_.stats();
  auto updates = core_.device_lost(queue_.now(), cause, cause == loss_cause::killed);
  promise(!let_go || updates.empty(), "nobody is blamed for a device that was let go");
  note("device lost", core_.epoch(), updates.size());
  seen_.quarantined += updates.size();
  const scheduler_stats s = core_.stats();
  promise(s.running == 0 && s.plans_in_flight == 0 && s.blocks_free + s.blocks_cached == s.blocks_total, "a lost device holds nothing");
  promise(s.waiting + static_cast<std::int32_t>(updates.size()) == before.running + before.waiting, "who does not fail is queued again");
  detokenizer_.send([this, updates = std::move(updates), now = queue_.now()] { absorb_updates(updates, now); });
}

void world::let_device_go() {
  const auto gone = device_;
  forget_device(loss_cause::killed, true);
  supervisor_.send([this, gone] {
    if (gone != newest_ || !up_) return;
    up_ = false;
    gone->alive = false;
    kv_of_ = gone;
    start_device();
  });
}

void world::give_device_up() {
  if (!device_) return;
  auto lost = device_;
  forget_device(loss_cause::fault);
  supervisor_.send([this, lost] { suspect(lost); });
}

void world::watch() {
  if (sent_.empty() || std::exchange(ticking_, true)) return;
  queue_.after(scene_.step_deadline_ns / 8, [this] {
    scheduler_.send([this] {
      ticking_ = false;
      if (sent_.empty()) return;
      if (queue_.now() - last_news_ns_ <= scene_.step_deadline_ns) return watch();
      note("step deadline missed");
      ++seen_.missed;
      give_device_up();
    });
  });
}

void world::join(device_pointer fresh, bool kv_kept) {
  device_ = std::move(fresh);
  if (!kv_kept) core_.forget_cache();
  note("device joins", core_.epoch());
  if (step_limit_) set_step_limit(); // what a late fault destroyed is computed again
  pump();
}

// Block tables as a device builds them: what is in use is what they name.
void world::follow(const step_plan& plan) {
  for (const slot_id slot : plan.closed) promise(slots_.erase(slot) == 1, "a closed slot was open");
  for (const slot_open& o : plan.opened)
    promise(slots_.emplace(o.slot, followed_slot{plan.step, o.prompt_tokens, 0, 0, {}}).second, "an opened slot was closed");
  for (const block_grant& g : plan.grants) {
    auto& table = slots_.at(g.slot).table;
    const auto first = static_cast<std::size_t>(g.first_block); // a grant may also replace what the slot has
    promise(first <= table.size(), "a grant leaves no gap");
    table.resize(std::max(table.size(), first + g.blocks.size()));
    std::copy(g.blocks.begin(), g.blocks.end(), table.begin() + g.first_block);
  }
  const bool prefill_due =
      std::any_of(slots_.begin(), slots_.end(), [](const auto& s) { return s.second.planned < s.second.prompt_tokens; });
  bool prefills = false;
  std::int32_t tokens = 0;
  for (const work_item& item : plan.items) {
    followed_slot& slot = slots_.at(item.slot);
    const bool known = slot.last_draw < sent_.front().step;
    promise(scene_.stages == 1 || item.kind == work_kind::prefill || known, "in a pipeline a sequence waits for its last draw");
    if (scene_.stages > 1 && plan.step > sent_.front().step && item.kind != work_kind::prefill) ++seen_.overlapped;
    if (item.sample) slot.last_draw = plan.step;
    slot.planned = item.first_position + item.token_count;
    prefills = prefills || item.kind == work_kind::prefill;
    tokens += item.token_count;
  }
  promise(!prefill_due || prefills || tokens == scene_.device.max_batched_tokens, "decodes leave prefills what they do not need");
  std::set<block_id> used;
  for (const auto& [slot, s] : slots_) used.insert(s.table.begin(), s.table.end());
  const scheduler_stats s = core_.stats();
  promise(static_cast<std::int32_t>(used.size()) + s.blocks_free + s.blocks_cached == s.blocks_total, "free + used + cached = total");
}

// Behind a verification or proposals, a slot has the blocks of its rows and of those that were proposed.
void world::settle(const step_plan& plan, const step_result& result) {
  for (std::size_t i = 0; i < plan.items.size(); ++i) {
    const work_item& item = plan.items[i];
    const slot_output& out = result.outputs[i];
    const bool verifies = item.kind == work_kind::verify;
    if ((!verifies && item.propose == 0) || out.numeric_fault) continue;
    const auto slot = slots_.find(item.slot);
    if (slot == slots_.end() || slot->second.opened > plan.step) continue; // another sequence's by now
    const auto drawn = static_cast<std::int32_t>(out.tokens.size());
    const std::int32_t rows = item.first_position + (verifies ? drawn : item.token_count) + static_cast<std::int32_t>(out.proposals.size());
    slot->second.table.resize(static_cast<std::size_t>(blocks_for(rows, scene_.device.block_size)));
    if (!verifies) continue;
    seen_.accepted += static_cast<std::uint64_t>(drawn) - 1;
    seen_.rejected += static_cast<std::uint64_t>(item.token_count - drawn);
  }
}

// -- devices ----------------------------------------------------------------------------------------------------------------------

void world::run_plan(const device_pointer& d, const step_plan& plan) {
  if (!d->alive || d->frozen) return;
  ++seen_.steps;
  const fault_rates& f = scene_.faults;
  if (chance(f.crash)) return device_died(d, loss_cause::fault);
  if (chance(f.kill)) {
    if (random_.one_in(2)) d->model.tear(plan, [this] { return random_.one_in(2); }), ++seen_.torn;
    return device_died(d, loss_cause::killed);
  }
  if (chance(f.freeze)) {
    note("device freezes", plan.step);
    d->frozen = true;
    return;
  }
  if (chance(f.step_fails)) {
    note("step fails", plan.step);
    d->frozen = true;
    scheduler_.send([this, epoch = plan.epoch] {
      if (device_ && epoch == core_.epoch()) give_device_up();
    });
    return;
  }
  answer(d, plan, d->model.run(plan));
}

void world::answer(const device_pointer& d, const step_plan& plan, step_result result) {
  std::uint64_t tokens = 0;
  for (const work_item& item : plan.items) tokens += static_cast<std::uint64_t>(item.token_count);
  const std::uint64_t cost = scene_.step_ns + tokens * scene_.token_ns;
  d->busy_until = std::max(d->busy_until, queue_.now()) + cost / 2 + random_.below(cost);
  std::uint64_t arrives = d->busy_until;
  if (chance(scene_.faults.late)) arrives += scene_.step_deadline_ns + random_.below(scene_.step_deadline_ns);
  d->last_delivery = std::max(d->last_delivery + 1, arrives); // a device answers in order
  if (chance(scene_.faults.numeric)) {
    slot_output& row = result.outputs[random_.below(result.outputs.size())];
    row.numeric_fault = true;
    row.tokens.clear();
    ++seen_.numeric;
    note("not finite", plan.step);
  }
  const auto deliver = [this, result] { scheduler_.send([this, result] { absorb(result); }); };
  queue_.after(d->last_delivery - queue_.now(), deliver);
  if (chance(scene_.faults.duplicate)) queue_.after(d->last_delivery - queue_.now() + random_.below(400 * kMs), deliver);
}

// -- supervisor -------------------------------------------------------------------------------------------------------------------

void world::device_died(const device_pointer& d, loss_cause cause) {
  note(cause == loss_cause::fault ? "device crashes" : "device is killed");
  d->alive = false;
  queue_.after(random_.below(20 * kMs), [this, d, cause] {
    supervisor_.send([this, d, cause] {
      if (d != newest_ || !up_) return;
      up_ = false;
      kv_of_ = cause == loss_cause::killed ? d : nullptr;
      scheduler_.send([this, d, cause] {
        if (device_ == d) forget_device(cause);
      });
      replace();
    });
  });
}

void world::suspect(const device_pointer& d) {
  if (d != newest_ || !up_) return;
  up_ = false;
  kv_of_ = nullptr;
  d->alive = false; // a result that is on its way still arrives
  queue_.after(random_.below(20 * kMs), [this] { supervisor_.send([this] { replace(); }); });
}

void world::replace() {
  const bool no_step = completed_ == std::exchange(completed_before_, completed_);
  const bool barren = no_step && (!was_up_ || registry_.load(0) > 0);
  if (policy_.allow(queue_.now(), barren)) return start_device();
  note("supervisor gives up");
  ++seen_.escalations;
  failed_ = true;
  const error reason{error_kind::unavailable, "the device was lost too often", "", std::nullopt};
  gateway_.send([this, reason] { end_everything(reason); });
}

void world::start_device() {
  newest_ = std::make_shared<device>(scene_.device);
  was_up_ = false;
  const bool fails = chance(scene_.faults.start_fails);
  const bool kept = kv_of_ != nullptr && scene_.keeps_kv && !random_.one_in(6);
  if (kept) newest_->model.adopt_kv(kv_of_->model);
  if (kv_of_ != nullptr) ++(kept ? seen_.kept : seen_.unkept);
  if (!kept) kv_of_ = nullptr; // what was forgotten does not come back
  queue_.after(random_.below(100 * kMs), [this, fails, kept] {
    supervisor_.send([this, fails, kept] {
      if (fails) return replace();
      up_ = was_up_ = true;
      scheduler_.send([this, d = newest_, kept] { join(d, kept); });
    });
  });
}

} // namespace troupe::test
