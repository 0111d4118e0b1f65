// The device process: one device actor that serves the parent through CAF's middleman, until the parent is gone.
#include <signal.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <caf/actor_system.hpp>
#include <caf/io/middleman.hpp>
#include <caf/scoped_actor.hpp>
#include <caf/stateful_actor.hpp>
#include <caf/typed_event_based_actor.hpp>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <sstream>
#include <stdexcept>
#include <thread>

#include "actors/device_actor.hpp"
#include "actors/serving.hpp"
#include "actors/system.hpp"

namespace troupe::actors {

namespace {

// A parent that has been told why the device cannot start ends this process; so long may the message take.
constexpr std::chrono::seconds kReasonGrace{2};

// The next line of standard input that is not empty, without its end.
std::string read_line() {
  std::string line;
  while (true) {
    char c = 0;
    const ssize_t got = read(STDIN_FILENO, &c, 1);
    if (got == 0 || (got < 0 && errno != EINTR)) _exit(0); // the parent is gone
    if (got == 1 && c != '\n') line += c;
    if (got == 1 && c == '\n' && !line.empty()) return line;
  }
}

// Standard input is a pipe that the parent holds open. Its end means that the parent is gone, and nothing here is worth keeping: a
// step may be running, so the process ends without waiting for any thread.
void watch_parent() {
  char byte = 0;
  while (true) {
    const ssize_t got = read(STDIN_FILENO, &byte, 1);
    if (got == 0 || (got < 0 && errno != EINTR)) _exit(0);
  }
}

} // namespace

// Signals to the whole service must not cut the requests that the parent drains.
void leave_signals_to_parent() {
  for (const int s : {SIGINT, SIGTERM, SIGHUP, SIGPIPE}) signal(s, SIG_IGN);
  prctl(PR_SET_PDEATHSIG, SIGKILL); // of the parent's supervising thread; the pipe covers the time before this line
}

worker_call await_call(std::optional<std::uint16_t> port) {
  std::string line = read_line();
  if (port) return {*port, std::move(line)};
  std::istringstream words(line);
  worker_call call;
  words >> call.port >> call.token;
  if (!words) throw std::invalid_argument("\"" + line + "\" is no call of a parent");
  return call;
}

int run_device_worker(const worker_call& parent, const executor_factory& make_executor) {
  std::thread(watch_parent).detach();
  system_config config(true);
  caf::actor_system system(config);
  auto registrar = system.middleman().remote_actor<registrar_actor>("127.0.0.1", parent.port);
  if (!registrar) {
    std::fprintf(stderr, "device process: cannot reach the parent at port %u: %s\n", static_cast<unsigned>(parent.port),
                 system.render(registrar.error()).c_str());
    return 1;
  }
  std::string failure; // written before the actor ends, read after
  const executor_factory reporting = [&](const rank_start& place, const publish_rendezvous& publish) -> std::unique_ptr<step_executor> {
    try {
      return make_executor(place, publish);
    } catch (const std::exception& e) {
      failure = e.what();
      throw;
    }
  };
  auto device = system.spawn<caf::detached>(run_device, reporting, *registrar, parent.token);
  caf::scoped_actor self{system};
  self->wait_for(device);
  if (failure.empty()) return 0;
  std::fprintf(stderr, "device process: %s\n", failure.c_str());
  std::this_thread::sleep_for(kReasonGrace);
  return 1;
}

} // namespace troupe::actors
