#include "actors/device_actor.hpp"

#include <caf/actor_cast.hpp>
#include <caf/exit_reason.hpp>
#include <caf/send.hpp>
#include <caf/stateful_actor.hpp>
#include <caf/typed_event_based_actor.hpp>
#include <exception>
#include <utility>

namespace troupe::actors {

namespace {

using self_pointer = actor_pointer<device_actor, device_state>;

struct answer_to {
  scheduler_actor scheduler;
  epoch_number epoch = 0;
  std::int32_t rank = 0;
  std::shared_ptr<std::atomic<bool>> failed;
};

// Called on the device's thread or on the executor's own; sending is thread-safe.
void deliver(const answer_to& to, step_outcome outcome) {
  if (auto* result = std::get_if<step_result>(&outcome)) {
    caf::anon_send(to.scheduler, step_done{to.rank, std::move(*result)});
  } else {
    auto& failure = std::get<step_failure>(outcome);
    *to.failed = true;
    caf::anon_send(to.scheduler, step_failed{to.epoch, to.rank, std::move(failure.reason), failure.by_peer, failure.collective});
  }
}

void execute(self_pointer self, const step_plan& plan) {
  auto& s = self->state;
  const answer_to to{caf::actor_cast<scheduler_actor>(self->current_sender()), plan.epoch, s.rank, s.failed};
  if (s.executor == nullptr || *s.failed) {
    s.executor.reset();
    return deliver(to, step_failure{"an earlier step failed", true}); // which was reported by itself
  }
  try {
    s.executor->submit(plan, [to](step_outcome outcome) { deliver(to, std::move(outcome)); });
  } catch (const std::exception& e) {
    deliver(to, step_failure{e.what()});
  } catch (...) {
    deliver(to, step_failure{"unknown exception in the executor"});
  }
  if (*s.failed) s.executor.reset();
}

void start(self_pointer self, const rank_start& place) {
  auto& s = self->state;
  if (s.executor != nullptr) return;
  s.rank = place.rank;
  const auto publish = [self](std::string text) {
    self->send(self->state.registrar, group_rendezvous{self->state.token, std::move(text)});
  };
  const auto fail = [self](const char* reason, bool bad_checkpoint) {
    self->send(self->state.registrar, device_start_failed{self->state.token, reason, bad_checkpoint});
    self->quit(caf::exit_reason::unhandled_exception);
  };
  try {
    s.executor = s.make_executor(place, publish);
    self->send(s.registrar, device_ready{s.token, s.executor->info(), s.executor->kv_kept()});
  } catch (const load_error& e) {
    fail(e.what(), true);
  } catch (const std::exception& e) {
    fail(e.what(), false);
  } catch (...) {
    fail("unknown exception in the executor", false);
  }
}

} // namespace

device_actor::behavior_type run_device(self_pointer self, executor_factory make_executor, registrar_actor registrar, std::string token) {
  auto& s = self->state;
  s.make_executor = std::move(make_executor);
  s.registrar = std::move(registrar);
  s.token = std::move(token);
  self->monitor(s.registrar);
  self->set_down_handler([self](caf::scheduled_actor*, caf::down_msg&) { self->quit(caf::exit_reason::remote_link_unreachable); });
  self->send(s.registrar, device_hello{s.token});
  return {
      [self](const rank_start& place) { start(self, place); },
      [self](const step_plan& plan) { execute(self, plan); },
  };
}

} // namespace troupe::actors
