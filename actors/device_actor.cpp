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

// Called on the device's thread or on the executor's own; sending is thread-safe.
void deliver(const scheduler_actor& to, epoch_number epoch, step_outcome outcome) {
  if (auto* result = std::get_if<step_result>(&outcome)) {
    caf::anon_send(to, std::move(*result));
  } else {
    caf::anon_send(to, step_failed{epoch, std::move(std::get<step_failure>(outcome).reason)});
  }
}

void execute(self_pointer self, const step_plan& plan) {
  const auto scheduler = caf::actor_cast<scheduler_actor>(self->current_sender());
  const epoch_number epoch = plan.epoch;
  try {
    self->state.executor->submit(plan, [scheduler, epoch](step_outcome outcome) { deliver(scheduler, epoch, std::move(outcome)); });
  } catch (const std::exception& e) {
    deliver(scheduler, epoch, step_failure{e.what()});
  } catch (...) {
    deliver(scheduler, epoch, step_failure{"unknown exception in the executor"});
  }
}

void start(self_pointer self, const executor_factory& make_executor, const registrar_actor& registrar, const std::string& token) {
  try {
    self->state.executor = make_executor();
    self->send(registrar, device_ready{token, self->state.executor->info()});
  } catch (const load_error& e) {
    self->send(registrar, device_start_failed{token, e.what(), true});
  } catch (const std::exception& e) {
    self->send(registrar, device_start_failed{token, e.what(), false});
  } catch (...) {
    self->send(registrar, device_start_failed{token, "unknown exception in the executor", false});
  }
}

} // namespace

device_actor::behavior_type run_device(self_pointer self, executor_factory make_executor, registrar_actor registrar, std::string token) {
  self->monitor(registrar);
  self->set_down_handler([self](caf::scheduled_actor*, caf::down_msg&) { self->quit(caf::exit_reason::remote_link_unreachable); });
  start(self, make_executor, registrar, token);
  if (self->state.executor == nullptr) self->quit(caf::exit_reason::unhandled_exception);
  return {
      [self](const step_plan& plan) { execute(self, plan); },
  };
}

} // namespace troupe::actors
