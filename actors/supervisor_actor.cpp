#include "actors/supervisor_actor.hpp"

#include <caf/actor_cast.hpp>
#include <caf/exit_reason.hpp>
#include <caf/io/middleman.hpp>
#include <caf/send.hpp>
#include <caf/stateful_actor.hpp>
#include <caf/typed_event_based_actor.hpp>
#include <chrono>
#include <csignal>
#include <random>
#include <utility>

#include "actors/device_actor.hpp"
#include "scheduler/scheduler.hpp"

namespace troupe::actors {

namespace {

using self_pointer = actor_pointer<supervisor_actor, supervisor_state>;
using phase = supervisor_state::phase;

constexpr std::chrono::milliseconds kHangUpGrace{250}; // from a broken connection to the exit of a child that died
constexpr std::chrono::milliseconds kEndGrace{2000};   // for a device in this process to finish its step

void start_device(self_pointer self);

// 0.1 s, doubling to 5 s: what made a start fail (memory not yet given back, say) needs time to go away.
std::chrono::milliseconds retry_delay(int failures) {
  return std::min(std::chrono::milliseconds(100) * (1 << std::min(failures, 6)), std::chrono::milliseconds(5000));
}

// 128 random bits: proof that a connection comes from the child we started.
std::string random_token() {
  std::random_device source;
  std::string token;
  for (int i = 0; i < 4; ++i) {
    const auto word = static_cast<std::uint32_t>(source());
    for (int shift = 28; shift >= 0; shift -= 4) token += "0123456789abcdef"[(word >> shift) & 0xF];
  }
  return token;
}

// Passes introductions on, and nothing else: what is published is as little as possible.
registrar_actor::behavior_type run_registrar(registrar_actor::pointer self, supervisor_actor supervisor) {
  return {
      [=](device_ready& ready) { return self->delegate(supervisor, std::move(ready)); },
      [=](device_start_failed& failed) { return self->delegate(supervisor, std::move(failed)); },
  };
}

// No one else may connect once the child is there.
void close_port(self_pointer self) {
  auto& s = self->state;
  if (s.registrar) self->system().middleman().unpublish(s.registrar);
}

// Kills and reaps the child, if there is one, and the registrar that it watches.
void end_child(self_pointer self) {
  auto& s = self->state;
  s.child.reset();
  s.shared->device_pid = 0;
  if (!s.registrar) return;
  close_port(self);
  self->send_exit(s.registrar, caf::exit_reason::user_shutdown);
  s.registrar = nullptr;
}

void set_timer(self_pointer self, device_wait wait, std::chrono::milliseconds delay) {
  self->delayed_send(self, delay, device_timeout{self->state.number, wait});
}

// -- giving up --------------------------------------------------------------------------------------------------------------------

void end_requests(serving_state& shared, bool in_engine, const error& reason) {
  for (const request_id id : shared.registry.ids(in_engine)) end_with_error(shared, id, reason);
}

void escalate(self_pointer self, const std::string& reason) {
  auto& s = self->state;
  s.now = phase::failed;
  end_child(self);
  s.shared->health.fail(reason);
  s.shared->parts.metrics->set_ready(false);
  self->send(s.core.gateway, end_all{s.shared->health.refusal()}); // which passes it on
}

void fail_start(self_pointer self, const device_start_failed& failed) {
  auto& s = self->state;
  if (s.first == nullptr) return;
  if (failed.bad_checkpoint) {
    s.first->set_exception(std::make_exception_ptr(load_error(failed.reason)));
  } else {
    s.first->set_exception(std::make_exception_ptr(std::runtime_error(failed.reason)));
  }
  s.first = nullptr;
}

// -- losing and replacing a device ------------------------------------------------------------------------------------------------

void replace_device(self_pointer self) {
  auto& s = self->state;
  // Barren: it had work and completed no step of it, or it never came up. An idle device may be killed as often as one likes.
  const std::uint64_t steps = s.shared->health.steps();
  const bool barren = steps == s.completed && (!s.was_up || s.shared->registry.in_engine() > 0);
  s.completed = steps;
  if (!s.policy->allow(now_ns(), barren)) {
    return escalate(self, "the device was lost too often, at last because: " + s.loss);
  }
  s.shared->parts.metrics->device_restarted();
  start_device(self);
}

void detach(self_pointer self, std::string reason, loss_cause cause) {
  auto& s = self->state;
  s.loss = std::move(reason);
  s.shared->health.device_up(false);
  self->send(s.core.scheduler, detach_device{s.number, cause});
}

// Tells the device to go; what follows comes with its end.
void retire(self_pointer self) {
  auto& s = self->state;
  s.now = phase::retiring;
  if (s.child != nullptr) {
    s.child->kill();
  } else {
    s.leaving = s.device.address();
    self->send_exit(s.device, caf::exit_reason::kill);
  }
  s.device = nullptr;
  set_timer(self, device_wait::end, kEndGrace);
}

void start_has_failed(self_pointer self, const device_start_failed& failed) {
  auto& s = self->state;
  end_child(self);
  if (s.first != nullptr) {
    s.now = phase::failed;
    return fail_start(self, failed);
  }
  s.loss = failed.reason;
  s.now = phase::retiring; // nothing is left to wait for but time
  set_timer(self, device_wait::retry, retry_delay(s.failed_starts++));
}

// -- starting ---------------------------------------------------------------------------------------------------------------------

void start_here(self_pointer self) {
  auto& s = self->state;
  auto device = self->system().spawn<caf::detached>(run_device, s.shared->parts.make_executor, registrar_actor(self), s.token);
  self->monitor(device);
  s.alive.insert(device.address());
}

void start_child(self_pointer self) {
  auto& s = self->state;
  s.registrar = self->spawn(run_registrar, supervisor_actor(self));
  auto port = self->system().middleman().publish(s.registrar, 0, "127.0.0.1");
  if (!port) throw std::runtime_error("device process: no port on the loopback interface: " + self->system().render(port.error()));
  auto command = s.shared->options.worker_command;
  command.insert(command.end(), {"--parent-port", std::to_string(*port)});
  s.child = std::make_unique<child_process>(command, s.shared->options.worker_preamble + s.token, [boss = supervisor_actor(self), number = s.number](int status) {
    caf::anon_send(boss, child_exited{number, status});
  });
  s.shared->device_pid = s.child->pid();
}

void start_device(self_pointer self) {
  auto& s = self->state;
  s.now = phase::starting;
  s.device = nullptr;
  ++s.number;
  s.was_up = false;
  s.token = random_token();
  try {
    s.network() ? start_child(self) : start_here(self);
    set_timer(self, device_wait::start, s.shared->options.start_deadline);
  } catch (const std::exception& e) {
    start_has_failed(self, {s.token, e.what(), false});
  }
}

// Why this device cannot serve, or empty.
std::string objection(const supervisor_state& s, const executor_info& info) {
  if (s.info && !(*s.info == info)) return "the new device has other limits than the one before";
  try {
    scheduler check(scheduler_config{info, 1, 1});
  } catch (const std::exception& e) {
    return e.what();
  }
  return {};
}

void device_is_ready(self_pointer self, const device_ready& ready) {
  auto& s = self->state;
  const auto device = caf::actor_cast<device_actor>(self->current_sender());
  if (s.now != phase::starting || ready.token != s.token) { // too late, or an impostor
    if (!s.network()) self->send_exit(device, caf::exit_reason::kill);
    return;
  }
  if (std::string bad = objection(s, ready.info); !bad.empty()) {
    if (!s.network()) self->send_exit(device, caf::exit_reason::kill);
    return start_has_failed(self, {s.token, std::move(bad), false});
  }
  close_port(self);
  s.device = device;
  s.info = ready.info;
  s.now = phase::up;
  s.was_up = true;
  s.failed_starts = 0;
  if (s.network()) self->monitor(device);
  s.shared->health.device_up(true);
  s.shared->parts.metrics->set_ready(s.shared->health.accepts());
  self->send(s.core.scheduler, caf::join_atom::value, s.number, ready.info, device);
  if (s.first != nullptr) std::exchange(s.first, nullptr)->set_value(ready.info);
}

// -- events -----------------------------------------------------------------------------------------------------------------------

void device_is_suspect(self_pointer self, const device_suspect& suspect) {
  auto& s = self->state;
  if (suspect.device != s.number || (s.now != phase::up && s.now != phase::doubtful)) return;
  detach(self, suspect.reason, loss_cause::fault);
  retire(self);
}

void child_has_exited(self_pointer self, const child_exited& exited) {
  auto& s = self->state;
  if (exited.device != s.number || s.child == nullptr) return;
  end_child(self);
  const std::string how = "the device process ended with " + describe_status(exited.status);
  // SIGKILL and SIGTERM come from outside, and a child that lost contact leaves with 0; anything else may be a request's doing.
  const bool outside = exited.status == 0 || exited.status == SIGKILL || exited.status == SIGTERM;
  if (s.now == phase::starting) return start_has_failed(self, {s.token, how + " before it was ready", false});
  if (s.now == phase::up || s.now == phase::doubtful) {
    detach(self, how, outside ? loss_cause::killed : loss_cause::fault);
    return replace_device(self);
  }
  if (s.now == phase::retiring) replace_device(self);
}

void device_has_hung_up(self_pointer self) {
  auto& s = self->state;
  if (s.now != phase::up) return;
  if (!s.network()) {
    detach(self, "the device actor ended", loss_cause::fault);
    return replace_device(self);
  }
  s.now = phase::doubtful;
  set_timer(self, device_wait::exit, kHangUpGrace);
}

void wait_is_over(self_pointer self, const device_timeout& over) {
  auto& s = self->state;
  if (over.device != s.number) return;
  if (over.wait == device_wait::start && s.now == phase::starting) {
    start_has_failed(
        self, {s.token, "the device was not ready within " + std::to_string(s.shared->options.start_deadline.count()) + " ms", false});
  } else if (over.wait == device_wait::exit && s.now == phase::doubtful) {
    detach(self, "the device process does not answer", loss_cause::killed); // frozen or cut off: no request does that
    retire(self);
  } else if ((over.wait == device_wait::end || over.wait == device_wait::retry) && s.now == phase::retiring) {
    replace_device(self);
  }
}

void stop_if_alone(self_pointer self) {
  if (self->state.now == phase::stopping && self->state.alive.empty()) self->quit(caf::exit_reason::user_shutdown);
}

void stop(self_pointer self) {
  auto& s = self->state;
  s.now = phase::stopping;
  end_child(self);
  fail_start(self, {{}, "stopped", false});
  for (const auto& address : s.alive) self->send_exit(address, caf::exit_reason::kill);
  stop_if_alone(self);
}

// True when `source` was one of the actors without which nothing can be served.
bool core_actor_ended(self_pointer self, const caf::actor_addr& source) {
  auto& s = self->state;
  if (source != s.core.gateway.address() && source != s.core.scheduler.address() && source != s.core.detokenizer.address()) return false;
  if (s.now == phase::stopping) return true;
  escalate(self, "an internal actor failed");
  const error reason = s.shared->health.refusal();
  self->send(s.core.detokenizer, end_all{reason});
  // A dead actor makes no more calls, so its requests may be ended from here.
  if (source == s.core.gateway.address()) end_requests(*s.shared, false, reason);
  if (source == s.core.detokenizer.address()) end_requests(*s.shared, true, reason);
  return true;
}

void actor_is_down(self_pointer self, const caf::down_msg& down) {
  auto& s = self->state;
  if (core_actor_ended(self, down.source)) return;
  s.alive.erase(down.source);
  if (s.now == phase::stopping) return stop_if_alone(self);
  if (s.device && down.source == s.device.address()) {
    device_has_hung_up(self);
  } else if (s.now == phase::retiring && down.source == s.leaving) {
    replace_device(self);
  }
}

} // namespace

supervisor_actor::behavior_type run_supervisor(self_pointer self, shared_state shared, core_actors core, first_start first) {
  auto& s = self->state;
  s.policy.emplace(shared->options.max_restarts, shared->options.restart_period);
  s.shared = std::move(shared);
  s.core = std::move(core);
  s.first = std::move(first);
  self->set_down_handler([self](caf::scheduled_actor*, caf::down_msg& down) { actor_is_down(self, down); });
  self->monitor(s.core.gateway);
  self->monitor(s.core.scheduler);
  self->monitor(s.core.detokenizer);
  start_device(self);
  return {
      [self](const device_ready& ready) { device_is_ready(self, ready); },
      [self](const device_start_failed& failed) {
        if (self->state.now == phase::starting && failed.token == self->state.token) start_has_failed(self, failed);
      },
      [self](const device_suspect& suspect) { device_is_suspect(self, suspect); },
      [self](const child_exited& exited) { child_has_exited(self, exited); },
      [self](const device_timeout& over) { wait_is_over(self, over); },
      [self](caf::close_atom) { stop(self); },
  };
}

} // namespace troupe::actors
