#include "scheduler/planner.hpp"

#include <algorithm>
#include <utility>

namespace troupe {

namespace {

constexpr std::size_t kParameterBytes = 64U << 10; // sampling parameters that one plan opens: plans stay small messages

std::size_t bytes_of(const sampling_params& p) {
  return sizeof p + p.logit_bias.size() * sizeof(token_bias) + p.suppressed.size() * sizeof(token_id);
}

} // namespace

planner::planner(scheduler_core& core, std::uint64_t now_ns)
    : core_(core), now_ns_(now_ns), budget_(core.config.device.max_batched_tokens) {}

std::optional<step_plan> planner::run() {
  plan_.items.reserve(core_.sequences.running().size() + 1);
  record_.rows.reserve(plan_.items.capacity());
  plan_decodes();
  plan_prefills();
  if (!preempted_) admit(); // else the victim would come straight back
  if (plan_.items.empty()) return std::nullopt;
  add_drafts();
  add_changes();
  plan_.closed = std::exchange(core_.to_close, {});
  plan_.epoch = core_.epoch;
  plan_.step = record_.step = ++core_.last_step;
  record_.planned_ns = now_ns_;
  record_.tokens = core_.config.device.max_batched_tokens - budget_;
  core_.in_flight.push_back(std::move(record_));
  return std::move(plan_);
}

// Decodes come before prefills: a long prompt never holds up those who already speak. Whoever is preempted stands behind in rank, so
// that nobody is moved who is still to be looked at before it.
void planner::plan_decodes() {
  for (sequence_state* s : choose_decodes()) {
    if (budget_ == 0) return;
    if (!s->can_decode() || !ensure_block(*s)) continue;
    add_item(*s, {*s->slot, work_kind::decode, s->planned, 1, true, std::nullopt});
  }
}

// In order of rank. In a pipeline a stage's equal share of them, of those whose last draw is there the ones whose turn is longest ago; and
// whoever has stood aside for as many plans as are in flight, for the share shrinks when others end.
std::vector<sequence_state*> planner::choose_decodes() const {
  const auto stages = static_cast<std::size_t>(core_.config.stages);
  const auto ahead = static_cast<step_number>(core_.config.plans_in_flight);
  std::vector<sequence_state*> chosen;
  chosen.reserve(core_.sequences.running().size());
  std::size_t decoding = 0;
  for (sequence_state* s : core_.sequences.running()) {
    if (!s->can_decode()) continue;
    ++decoding;
    if (stages == 1 || s->samples_in_flight == 0) chosen.push_back(s);
  }
  const auto overdue = std::count_if(chosen.begin(), chosen.end(), [&](const auto* s) { return s->last_draw + ahead <= core_.last_step; });
  const std::size_t share = std::max((decoding + stages - 1) / stages, static_cast<std::size_t>(overdue));
  if (chosen.size() <= share) return chosen;
  std::stable_sort(chosen.begin(), chosen.end(), [](const auto* a, const auto* b) { return a->last_draw < b->last_draw; });
  chosen.resize(share);
  std::sort(chosen.begin(), chosen.end(), earlier_rank{});
  return chosen;
}

void planner::plan_prefills() {
  for (sequence_state* s : core_.sequences.running()) {
    if (budget_ == 0) return;
    if (s->can_prefill()) add_chunk(*s);
  }
}

// In rank order, whole refills only; the first that does not fit keeps its place, so that nobody overtakes it for ever. A further choice
// of a prompt waits while the first one computes the prompt's rows. A suspect runs beside proven sequences alone, and nobody is admitted
// beside it before it is one of them: the next fault has one culprit.
void planner::admit() {
  bool suspects = any_running([](const sequence_state& s) { return s.suspect(); });
  bool unproven = any_running([](const sequence_state& s) { return !s.proven; });
  std::size_t parameter_bytes = 0;
  const auto& waiting = core_.sequences.waiting();
  for (auto next = waiting.begin(); next != waiting.end() && budget_ > 0 && core_.sequences.has_free_slot();) {
    sequence_state& s = **next++;
    if (suspects || (s.suspect() && unproven)) return;
    const sequence_state* first = running_first_choice(s);
    if (first != nullptr && first->confirmed < first->prompt_size()) continue;
    parameter_bytes += bytes_of(s.request.sampling);
    if (parameter_bytes > kParameterBytes && !plan_.items.empty()) return;
    if (first != nullptr ? !open_beside(s, *first) : !open(s)) return;
    suspects = s.suspect();
    unproven = true;
    add_chunk(s);
  }
}

// The choice whose rows `s` may share, if that runs; a choice with outputs of its own goes on from those.
const sequence_state* planner::running_first_choice(const sequence_state& s) {
  if (!s.request.same_prompt_as || s.output_size() > 0 || s.needs_every_row()) return nullptr;
  const sequence_state* first = core_.sequences.find({s.request.id.request, *s.request.same_prompt_as});
  return first != nullptr && first->slot ? first : nullptr;
}

bool planner::has_room(std::int32_t blocks) const {
  const std::int32_t reserve = core_.sequences.running().empty() ? 0 : (core_.cache.total() + 99) / 100; // for the running to grow
  return core_.cache.available() >= blocks + reserve;
}

// Takes what it needs beyond its cached prefix. False when that is not there.
bool planner::open(sequence_state& s) {
  std::vector<block_id> blocks = core_.find_prefix(s);
  const auto cached = static_cast<std::int32_t>(blocks.size());
  const std::int32_t need = core_.blocks_of(s.known()) - cached;
  if (!has_room(need)) {
    core_.cache.give_back(blocks);
    return false;
  }
  const std::vector<block_id> fresh = *core_.cache.take(need);
  blocks.insert(blocks.end(), fresh.begin(), fresh.end());
  s.indexed = cached;
  start(s, std::move(blocks), cached * core_.config.device.block_size);
  return true;
}

// Shares the blocks of the prompt's rows, all of which `first` has, up to the one that holds the last: that is copied, and the last row
// computed again, for a token must be drawn from it.
bool planner::open_beside(sequence_state& s, const sequence_state& first) {
  if (!has_room(1)) return false;
  const std::int32_t last = s.prompt_size() - 1;
  const std::int32_t shared = last / core_.config.device.block_size;
  std::vector<block_id> blocks(first.blocks.begin(), first.blocks.begin() + shared);
  for (const block_id block : blocks) core_.cache.share(block);
  blocks.push_back(core_.cache.take(1)->front());
  if (last % core_.config.device.block_size != 0) plan_.copies.push_back({first.blocks[static_cast<std::size_t>(shared)], blocks.back()});
  s.indexed = std::min(shared, first.indexed); // none without prefix caching
  s.block_hashes.assign(first.block_hashes.begin(), first.block_hashes.begin() + s.indexed);
  start(s, std::move(blocks), last);
  return true;
}

// `computed` positions are there already.
void planner::start(sequence_state& s, std::vector<block_id> blocks, std::int32_t computed) {
  core_.sequences.start(s);
  s.blocks = std::move(blocks);
  s.planned = s.confirmed = computed;
  if (s.times.scheduled_ns == 0) {
    s.times.scheduled_ns = now_ns_;
    s.cached_tokens = computed;
  }
  plan_.opened.push_back({*s.slot, s.prompt_size(), s.request.sampling});
  plan_.grants.push_back({*s.slot, 0, s.blocks});
}

bool planner::any_running(bool (*is)(const sequence_state&)) const {
  const auto& running = core_.sequences.running();
  return std::any_of(running.begin(), running.end(), [is](const sequence_state* s) { return is(*s); });
}

void planner::add_item(sequence_state& s, work_item item) {
  record_.rows.push_back({s.life, *s.slot, item.first_position, item.token_count, 0, s.draft_kind(), item.sample, false});
  budget_ -= item.token_count;
  s.planned += item.token_count;
  if (item.sample) {
    ++s.samples_in_flight;
    s.last_draw = core_.last_step + 1;
    s.primed = true;
  }
  plan_.items.push_back(item);
}

void planner::add_chunk(sequence_state& s) {
  work_item item{*s.slot, work_kind::prefill, s.planned, std::min(budget_, s.known() - s.planned), false, std::nullopt};
  const std::int32_t end = item.first_position + item.token_count;
  item.sample = end == s.known() && s.wants_output();
  for (std::int32_t p = item.first_position; p < end; ++p) plan_.tokens.push_back(s.token_at(p));
  if (s.wants_scores() && item.first_position + 1 < s.prompt_size()) {
    item.prompt_logprobs = s.request.prompt_logprobs;
    if (end < s.prompt_size()) plan_.tokens.push_back(s.token_at(end)); // target of the chunk's last row
  }
  record_.prefill_tokens += item.token_count;
  add_item(s, item);
}

// Decodes become verifications where there are drafts; in order of rank, with what budget and blocks the others leave. The decodes stand
// first in the plan, and so do their tokens.
void planner::add_drafts() {
  speculation& drafting = core_.drafting;
  if (!drafting.on()) return;
  const auto draws = std::count_if(plan_.items.begin(), plan_.items.end(), [](const work_item& item) { return item.sample; });
  drafting.set_price(draws, core_.config.device.max_batched_tokens - budget_);
  std::vector<token_id> drafts;
  for (std::size_t i = 0; i < plan_.items.size(); ++i) {
    if (!plan_.items[i].sample) continue;
    sequence_state& s = *core_.sequences.at(record_.rows[i].slot, record_.rows[i].life);
    const bool all_known = s.samples_in_flight == 1; // this plan's own
    if (plan_.items[i].kind == work_kind::decode && all_known) verify(i, s, drafts);
    if (drafting.source() == draft_source::model) propose(i, s);
  }
  plan_.tokens.insert(plan_.tokens.begin(), drafts.begin(), drafts.end());
}

void planner::verify(std::size_t index, sequence_state& s, std::vector<token_id>& drafts) {
  const bool guesses = core_.drafting.source() == draft_source::ngram;
  std::int32_t count = core_.drafts_for(s);
  if (count == 0 && guesses && s.ngrams.matches()) s.accepted[s.draft_kind()].fade();
  if (!guesses) count = std::min(count, static_cast<std::int32_t>(s.proposals.size()));
  count = room_for_drafts(s, std::min(count, budget_));
  if (count == 0) return;
  if (guesses) {
    s.ngrams.propose(s.tokens(), count, drafts);
  } else {
    drafts.insert(drafts.end(), s.proposals.begin(), s.proposals.begin() + count);
  }
  plan_.items[index].kind = work_kind::verify;
  plan_.items[index].token_count = record_.rows[index].token_count = 1 + count;
  record_.rows[index].drafts = count;
  record_.verifies = true;
  s.planned += count;
  budget_ -= count;
}

// Drafts for the next step, as many as are likely to be worth it. The draft model's rows take their places in the blocks already.
void planner::propose(std::size_t index, sequence_state& s) {
  const std::int32_t most = std::min(core_.drafting.max_drafts(), s.outputs_left() - 1);
  if (most < 1) return;
  const std::int32_t wanted = core_.drafting.run_length(s.accepted[s.draft_kind()], most);
  if (wanted == 0) return s.accepted[s.draft_kind()].fade();
  plan_.items[index].propose = room_for_drafts(s, wanted);
  if (plan_.items[index].propose == 0) return;
  record_.rows[index].proposes = record_.proposes = true;
}

// How many of `count` drafts behind the last planned row have a block. Drafts take no block that a running sequence may need soon.
std::int32_t planner::room_for_drafts(sequence_state& s, std::int32_t count) {
  const std::int32_t lacking = core_.blocks_of(s.planned + count) - static_cast<std::int32_t>(s.blocks.size());
  const std::int32_t spare = core_.cache.available() - static_cast<std::int32_t>(core_.sequences.running().size());
  if (const std::int32_t taken = std::min(lacking, spare); taken > 0) {
    const std::vector<block_id> blocks = *core_.cache.take(taken);
    plan_.grants.push_back({*s.slot, static_cast<std::int32_t>(s.blocks.size()), blocks});
    s.blocks.insert(s.blocks.end(), blocks.begin(), blocks.end());
  }
  return std::min(count, static_cast<std::int32_t>(s.blocks.size()) * core_.config.device.block_size - s.planned);
}

// Last, when it is known who keeps its slot.
void planner::add_changes() {
  for (const block_change& change : std::exchange(core_.changes, {})) {
    if (core_.sequences.at(change.slot, change.life) != nullptr) plan_.grants.push_back({change.slot, change.index, {change.block}});
  }
}

// Makes room for position `s.planned`, at the cost of the last in rank, which this plan does not hold yet. False when `s` itself had to
// go.
bool planner::ensure_block(sequence_state& s) {
  if (s.planned < static_cast<std::int32_t>(s.blocks.size()) * core_.config.device.block_size) return true;
  auto block = core_.cache.take(1);
  while (!block) {
    sequence_state& victim = *core_.sequences.running().back();
    const bool self = &victim == &s;
    preempt(victim);
    if (self) return false;
    block = core_.cache.take(1);
  }
  plan_.grants.push_back({*s.slot, static_cast<std::int32_t>(s.blocks.size()), *block});
  s.blocks.push_back(block->front());
  return true;
}

void planner::preempt(sequence_state& s) {
  core_.release(s);
  preempted_ = true;
  ++core_.preemptions;
}

} // namespace troupe
