// A device process over the fake device, for tests of serving with child processes; in a group of several, a fake rank.
//   fake_worker [--step-us N] [--poison T] [--fail-start] [--rank R] [--abort-on T] [--freeze-on T] [--hang-on T] [--slow-start-ms N]
//               [--barrier-ms N] [--other-limits] [--standby-fails] [--standby-hangs] --parent-port N | --stand-by-for REPLICA:RANK
//     --abort-on, --freeze-on, --hang-on and --slow-start-ms are of rank R alone; --barrier-ms is how long ranks wait for each other
//   fake_worker worker-protocol  says which one it speaks
//   fake_worker --serve FILE     serves with a child of its own, writes its process id to FILE, waits to be killed
#include <signal.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <memory>
#include <string>
#include <thread>

#include "actors/serving.hpp"
#include "actors/worker_protocol.hpp"
#include "tests/actors/fake_device.hpp"
#include "tests/actors/fake_group.hpp"
#include "tests/actors/fake_tokenizer.hpp"

namespace {

using namespace troupe;

// Tokens that strike the rank when a plan brings them; -1: none does.
struct fatal_tokens {
  token_id abort_on = -1;  // ends the whole process, as a sticky GPU fault or an out-of-bounds write would
  token_id freeze_on = -1; // stops the whole process
  token_id hang_on = -1;   // the step never ends; the process lives and says so
};

class fatal_device final : public step_executor {
 public:
  fatal_device(std::unique_ptr<step_executor> inner, fatal_tokens fatal) : inner_(std::move(inner)), fatal_(fatal) {}
  executor_info info() const override { return inner_->info(); }
  void submit(const step_plan& plan, deliver_fn deliver) override {
    for (const token_id t : plan.tokens) {
      if (t == fatal_.abort_on) std::_Exit(77);
      if (t == fatal_.freeze_on) kill(getpid(), SIGSTOP);
      while (t == fatal_.hang_on) std::this_thread::sleep_for(std::chrono::seconds(1));
    }
    inner_->submit(plan, std::move(deliver));
  }

 private:
  std::unique_ptr<step_executor> inner_;
  fatal_tokens fatal_;
};

struct worker_options {
  int step_us = 0;
  int poison = -1;
  fatal_tokens fatal;
  int barrier_ms = 60'000;
  int rank = 0;
  int slow_start_ms = 0;
  bool fail_start = false;
  bool exit_at_once = false;
  bool other_limits = false;
  int port = 0;
  bool standby = false, standby_fails = false, standby_hangs = false;
  std::string serve;
};

worker_options read_options(int argc, char** argv) {
  worker_options o;
  for (int i = 1; i < argc; ++i) {
    const std::string name = argv[i];
    const auto next = [&] { return std::string(i + 1 < argc ? argv[++i] : ""); };
    if (name == "--step-us") o.step_us = std::stoi(next());
    if (name == "--poison") o.poison = std::stoi(next());
    if (name == "--abort-on") o.fatal.abort_on = std::stoi(next());
    if (name == "--freeze-on") o.fatal.freeze_on = std::stoi(next());
    if (name == "--hang-on") o.fatal.hang_on = std::stoi(next());
    if (name == "--barrier-ms") o.barrier_ms = std::stoi(next());
    if (name == "--rank") o.rank = std::stoi(next());
    if (name == "--slow-start-ms") o.slow_start_ms = std::stoi(next());
    if (name == "--fail-start") o.fail_start = true;
    if (name == "--exit-at-once") o.exit_at_once = true;
    if (name == "--other-limits") o.other_limits = true;
    if (name == "--stand-by-for") o.standby = !next().empty();
    if (name == "--standby-hangs") o.standby_hangs = true;
    if (name == "--standby-fails") o.standby_fails = true;
    if (name == "--parent-port") o.port = std::stoi(next());
    if (name == "--serve") o.serve = next();
  }
  return o;
}

int serve(const std::string& program, const std::string& file) {
  actors::serving_options options;
  options.worker_command = {program, "--step-us", "1000"};
  actors::serving_parts parts;
  parts.tokens = std::make_shared<test::byte_tokenizer>();
  auto server = actors::serving::start(options, std::move(parts));
  std::ofstream(file + ".tmp") << server->device_pid() << "\n";
  std::rename((file + ".tmp").c_str(), file.c_str());
  while (true) pause();
}

} // namespace

int main(int argc, char** argv) {
  if (argc > 1 && std::string(argv[argc - 1]) == "worker-protocol")
    return std::puts(actors::worker_protocol_line("fake").c_str()) < 0 ? 1 : 0;
  const worker_options o = read_options(argc, argv);
  if (!o.serve.empty()) return serve(argv[0], o.serve);
  if (o.exit_at_once) return 3;
  auto faults = std::make_shared<test::device_faults>();
  faults->step_us = o.step_us;
  faults->poison = o.poison;
  faults->starts_to_fail = o.fail_start ? 1 : 0;
  auto group = std::make_shared<test::group_faults>();
  group->rank = o.rank;
  group->slow_start_ms = o.slow_start_ms;
  group->barrier_limit = std::chrono::milliseconds(o.barrier_ms);
  const auto make = [&](const actors::rank_start& place, const actors::publish_rendezvous& publish) {
    group->replica = place.replica; // of all replicas
    std::unique_ptr<step_executor> device;
    executor_info limits = test::small_device();
    if (o.other_limits) ++limits.max_model_len;
    if (place.size == 1) std::this_thread::sleep_for(std::chrono::milliseconds(o.slow_start_ms));
    if (place.size == 1) {
      device = std::make_unique<test::fake_device>(limits, faults);
    } else {
      device = std::make_unique<test::fake_rank>(place, place.size - 1, limits, faults, group, publish);
    }
    if (place.rank == o.rank) device = std::make_unique<fatal_device>(std::move(device), o.fatal);
    return device;
  };
  actors::leave_signals_to_parent();
  if (o.standby && o.standby_fails) return 4;
  const auto port = o.standby ? std::nullopt : std::optional(static_cast<std::uint16_t>(o.port));
  const actors::worker_call parent = actors::await_call(port);
  while (o.standby && o.standby_hangs) pause();
  return actors::run_device_worker(parent, make);
}
