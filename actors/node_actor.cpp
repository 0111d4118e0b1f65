#include "actors/node_actor.hpp"

#include <sys/wait.h>

#include <caf/exit_reason.hpp>
#include <caf/send.hpp>
#include <caf/stateful_actor.hpp>
#include <caf/typed_event_based_actor.hpp>
#include <exception>
#include <utility>

#include "actors/worker_process.hpp"

namespace troupe::actors {

void membership_board::end(membership_result result) {
  const std::lock_guard lock(mutex_);
  if (!result_) result_ = std::move(result);
  news_.notify_all();
}

std::optional<membership_result> membership_board::result() const {
  const std::lock_guard lock(mutex_);
  return result_;
}

namespace {

std::string broken_off(const membership_result& stay) {
  if (stay.how == membership_end::lost) return "the head is gone, or cut off, and with it all ranks that ran here";
  return stay.reason.empty() ? "the node has left the cluster" : "the node is not in the cluster: " + stay.reason;
}

} // namespace

std::optional<std::string> membership_board::await_change(const std::function<void()>& ask, const tell_fn& tell) {
  const std::lock_guard alone(one_change_);
  std::unique_lock lock(mutex_);
  notes_.clear();
  change_.reset();
  ask();
  while (true) {
    news_.wait(lock, [this] { return !notes_.empty() || change_ || result_; });
    const auto notes = std::exchange(notes_, {});
    lock.unlock();
    for (const std::string& line : notes) tell(line);
    lock.lock();
    if (!notes_.empty()) continue;
    if (change_) return change_->empty() ? std::nullopt : change_;
    if (result_) return broken_off(*result_);
  }
}

void membership_board::note_change(std::string text) {
  const std::lock_guard lock(mutex_);
  notes_.push_back(std::move(text));
  news_.notify_all();
}

void membership_board::end_change(std::string failure) {
  const std::lock_guard lock(mutex_);
  change_ = std::move(failure);
  news_.notify_all();
}

namespace {

using self_pointer = actor_pointer<node_actor, node_state>;

void count_ranks(node_state& s) { s.board->ranks = static_cast<std::int32_t>(s.workers.size()); }

void end_stay(self_pointer self, membership_end how, const std::string& reason) {
  auto& s = self->state;
  s.workers.clear(); // kills and reaps
  count_ranks(s);
  s.board->end({how, reason});
  self->quit(caf::exit_reason::user_shutdown);
}

void head_is_known(self_pointer self, const node_welcome& welcome) {
  auto& s = self->state;
  try {
    s.plan = s.parts.prepare(welcome.head);
  } catch (const std::exception& e) {
    self->send(s.cluster, node_refusal{e.what(), false});
    return end_stay(self, membership_end::refused, e.what());
  }
  s.programs.emplace(s.plan->command.front());
  self->send(s.cluster, node_ready{static_cast<std::int32_t>(s.plan->slot_arguments.size()), s.plan->device});
}

// Whoever still holds the slot, or was this rank before, goes first.
void make_room(node_state& s, const start_worker& order) {
  for (auto it = s.workers.begin(); it != s.workers.end();) {
    const bool in_the_way = it->second.slot == order.slot || it->first == node_state::rank_key{order.replica, order.rank};
    it = in_the_way ? s.workers.erase(it) : std::next(it);
  }
}

void start(self_pointer self, const start_worker& order) {
  auto& s = self->state;
  make_room(s, order);
  try {
    const auto& slots = s.plan.value().slot_arguments;
    worker_start start{s.plan->command, slots.at(static_cast<std::size_t>(order.slot)), s.plan->preamble, s.parts.lead_to(order.port),
                       order.token};
    start.command.front() = s.programs->at(order.program);
    const auto report = [me = node_actor(self), order](int status) {
      caf::anon_send(me, worker_changed{order.replica, order.rank, order.generation, status, {}});
    };
    s.workers[{order.replica, order.rank}] = {order.generation, order.slot, start_worker_process(std::move(start), report)};
  } catch (const std::exception& e) {
    self->send(s.cluster, worker_changed{order.replica, order.rank, order.generation, 0, e.what()});
  }
  count_ranks(s);
}

// The one that is meant, and not its successor.
auto find_worker(node_state& s, std::int32_t replica, std::int32_t rank, std::uint64_t generation) {
  const auto found = s.workers.find({replica, rank});
  return found != s.workers.end() && found->second.generation == generation ? found : s.workers.end();
}

void stop(self_pointer self, const stop_worker& order) {
  const auto found = find_worker(self->state, order.replica, order.rank, order.generation);
  if (found != self->state.workers.end()) found->second.child->kill(); // its end is told as any other
}

void worker_has_changed(self_pointer self, const worker_changed& news) {
  auto& s = self->state;
  const auto found = find_worker(s, news.replica, news.rank, news.generation);
  if (found == s.workers.end()) return;
  if (!WIFSTOPPED(news.status)) s.workers.erase(found);
  count_ranks(s);
  self->send(s.cluster, news);
}

// -- the program ------------------------------------------------------------------------------------------------------------------

void change_program(self_pointer self, const program_offer& offer) {
  auto& s = self->state;
  if (!s.plan) return s.board->end_change("the node has not joined yet");
  s.offered = s.programs->add(offer.program);
  self->send(s.cluster, machine_upgrade{this_machine, "node " + s.parts.about.name, s.program, s.offered, offer.start_deadline_ms});
}

void program_has_changed(self_pointer self, const upgrade_end& end) {
  auto& s = self->state;
  s.programs->forget(end.failure.empty() ? std::exchange(s.program, s.offered) : s.offered);
  s.board->end_change(end.failure);
}

} // namespace

node_actor::behavior_type run_node(self_pointer self, node_parts parts, cluster_actor cluster, std::shared_ptr<membership_board> board) {
  auto& s = self->state;
  s.parts = std::move(parts);
  s.cluster = std::move(cluster);
  s.board = std::move(board);
  self->monitor(s.cluster);
  self->set_down_handler([self](caf::scheduled_actor*, caf::down_msg&) { end_stay(self, membership_end::lost, {}); });
  self->send(s.cluster, node_hello{s.parts.about});
  return {
      [self](const node_welcome& welcome) { head_is_known(self, welcome); },
      [self](const node_refusal& no) { end_stay(self, no.passing ? membership_end::passing : membership_end::refused, no.reason); },
      [self](const start_worker& order) { start(self, order); },
      [self](const stop_worker& order) { stop(self, order); },
      [self](const worker_changed& news) { worker_has_changed(self, news); },
      [self](const program_offer& offer) { change_program(self, offer); },
      [self](upgrade_note& note) { self->state.board->note_change(std::move(note.text)); },
      [self](const upgrade_end& end) { program_has_changed(self, end); },
      [self](caf::leave_atom) { self->send(self->state.cluster, caf::leave_atom::value); },
      [self](caf::close_atom) { end_stay(self, membership_end::left, {}); },
  };
}

} // namespace troupe::actors
