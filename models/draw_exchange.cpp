#include "models/draw_exchange.hpp"

#include <algorithm>
#include <utility>

namespace troupe {
namespace {

constexpr std::uint64_t kMostAwaited = 32; // plans: more messages than that are not left lying
constexpr std::int32_t kFault = -1;

// A plan's message: for each item that can draw or fail, the number of its draws (or kFault), and a place for each draw.
std::size_t places_of(const work_item& item) {
  return item.kind == work_kind::verify ? static_cast<std::size_t>(item.token_count) : item.sample ? 1 : 0;
}
std::size_t words_of(const work_item& item) { return item.sample || item.prompt_logprobs ? 1 + places_of(item) : 0; }

void write(const work_item& item, const slot_output& output, std::vector<std::int32_t>& to) {
  if (words_of(item) == 0) return;
  to.push_back(output.numeric_fault ? kFault : static_cast<std::int32_t>(output.tokens.size()));
  to.insert(to.end(), output.tokens.begin(), output.tokens.end());
  to.insert(to.end(), places_of(item) - output.tokens.size(), 0);
}

// Returns what follows the item's words.
const std::int32_t* read(const work_item& item, const std::int32_t* from, slot_output& output) {
  if (words_of(item) == 0) return from;
  output.numeric_fault = *from == kFault;
  output.tokens.assign(from + 1, from + 1 + std::max(0, *from));
  return from + words_of(item);
}

} // namespace

void settle(slot_state& slot, const work_item& item, const slot_output& output) {
  slot.faulted = slot.faulted || output.numeric_fault;
  if (slot.faulted) return;
  const std::int32_t rows = item.kind == work_kind::verify ? static_cast<std::int32_t>(output.tokens.size()) : item.token_count;
  slot.position = item.first_position + rows;
  slot.last_token = output.tokens.empty() ? std::nullopt : std::optional(output.tokens.back());
}

draw_exchange::draw_exchange(rank_context rank, std::int32_t max_num_seqs)
    : rank_(std::move(rank)), drawn_by_(static_cast<std::size_t>(max_num_seqs)) {}

void draw_exchange::catch_up(const step_plan& plan, slot_table& slots) {
  if (rank_.last_stage()) return;
  const auto is_slot = [&](slot_id slot) { return slot >= 0 && static_cast<std::size_t>(slot) < drawn_by_.size(); };
  for (const slot_open& opened : plan.opened) {
    if (is_slot(opened.slot)) drawn_by_[static_cast<std::size_t>(opened.slot)] = 0;
  }
  std::uint64_t until = planned_ > kMostAwaited ? planned_ - kMostAwaited : 0;
  for (const work_item& item : plan.items) {
    if (is_slot(item.slot)) until = std::max(until, drawn_by_[static_cast<std::size_t>(item.slot)]);
  }
  while (received_ < until) receive(slots);
}

void draw_exchange::receive(slot_table& slots) {
  const std::vector<awaited_item> items = std::move(awaited_.front());
  awaited_.pop_front();
  ++received_;
  std::size_t words = 0;
  for (const awaited_item& awaited : items) words += words_of(awaited.item);
  if (words == 0) return;
  message_.resize(words);
  with_pipeline(rank_, [&](communicator& stages) { stages.receive({message_.data(), words, dtype::i32}, rank_.stages - 1); });
  const std::int32_t* from = message_.data();
  for (const auto& [item, life] : items) {
    slot_output output;
    from = read(item, from, output);
    slot_state& slot = slots[item.slot];
    const bool same = slot.life == life;                 // else it is another sequence's by now
    if (same && item.sample) settle(slot, item, output); // a fault before the first draw comes with that draw again
  }
}

void draw_exchange::finish(const step_plan& plan, std::vector<slot_output>& outputs, slot_table& slots) {
  if (!rank_.last_stage()) return expect(plan, slots);
  publish(plan, outputs);
  for (std::size_t i = 0; i < plan.items.size(); ++i) settle(slots[plan.items[i].slot], plan.items[i], outputs[i]);
}

void draw_exchange::publish(const step_plan& plan, std::vector<slot_output>& outputs) {
  if (rank_.size() == 1) return;
  message_.clear();
  for (std::size_t i = 0; i < plan.items.size(); ++i) {
    if (rank_.leader()) {
      write(plan.items[i], outputs[i], message_);
    } else {
      message_.resize(message_.size() + words_of(plan.items[i]));
    }
  }
  if (message_.empty()) return;
  const collective_buffer all{message_.data(), message_.size(), dtype::i32};
  if (rank_.tp_size > 1) with_tensor(rank_, [&](communicator& peers) { peers.broadcast(all, 0); });
  for (int stage = 0; stage + 1 < rank_.stages; ++stage) {
    with_pipeline(rank_, [&](communicator& stages) { stages.send(all, stage); });
  }
  const std::int32_t* from = message_.data();
  for (std::size_t i = 0; i < plan.items.size() && !rank_.leader(); ++i) from = read(plan.items[i], from, outputs[i]);
}

void draw_exchange::expect(const step_plan& plan, slot_table& slots) {
  ++planned_;
  std::vector<awaited_item>& items = awaited_.emplace_back();
  for (const work_item& item : plan.items) {
    slot_state& slot = slots[item.slot];
    items.push_back({item, slot.life});
    if (item.sample) drawn_by_[static_cast<std::size_t>(item.slot)] = planned_;
    settle(slot, item, {item.slot, {}, {}, {}, false});
  }
}

} // namespace troupe
