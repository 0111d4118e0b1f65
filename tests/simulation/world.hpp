// A whole serving side under virtual time. The parts are the real ones (scheduler, KV pool, admission, request registry, request
// output, restart policy); what is imitated is the actors' glue, message for message, and the device.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "actors/admission.hpp"
#include "actors/request_output.hpp"
#include "actors/request_registry.hpp"
#include "actors/restart_policy.hpp"
#include "scheduler/scheduler.hpp"
#include "tests/scheduler/hash_device.hpp"
#include "tests/simulation/event_queue.hpp"
#include "tests/simulation/expectation.hpp"
#include "tests/simulation/scenario.hpp"

namespace troupe::test {

// What a run went through, so that a set of runs can show that it went everywhere.
struct coverage {
  std::uint64_t events = 0;
  std::uint64_t steps = 0;
  std::uint64_t finished = 0;
  std::uint64_t refused = 0; // 400 and 429
  std::uint64_t cancelled = 0;
  std::uint64_t preemptions = 0;
  std::uint64_t faults = 0; // devices lost by a fault
  std::uint64_t kills = 0;  // devices lost by a kill
  std::uint64_t missed = 0; // step deadlines
  std::uint64_t stale = 0;  // results of an epoch that was over
  std::uint64_t duplicates = 0;
  std::uint64_t numeric = 0;
  std::uint64_t quarantined = 0;
  std::uint64_t escalations = 0;
  std::uint64_t stop_strings = 0;
  std::uint64_t accepted = 0; // drafts
  std::uint64_t rejected = 0;
  std::uint64_t changes = 0;    // devices let go in good order
  std::uint64_t kept = 0;       // devices that came with the blocks of the one before
  std::uint64_t unkept = 0;     // .. and without, where they might have
  std::uint64_t torn = 0;       // plans that a killed device wrote in part
  std::uint64_t overlapped = 0; // decodes planned while a pipeline had others

  void add(const coverage& other);
};

struct run_report {
  std::uint64_t seed = 0;
  std::optional<std::string> broken; // the promise that did not hold
  std::uint64_t hash = 0;            // of the event log
  std::vector<std::string> log;      // when asked for
  coverage seen;
};

class world {
 public:
  world(std::uint64_t seed, bool keep_log);
  run_report run();

 private:
  struct device {
    explicit device(const executor_info& info) : model(info) {}
    hash_device model;
    bool alive = true;
    bool frozen = false;
    std::uint64_t last_arrival = 0;
    std::uint64_t busy_until = 0;
    std::uint64_t last_delivery = 0;
  };
  struct followed_slot {
    step_number opened = 0;
    std::int32_t prompt_tokens = 0;
    std::int32_t planned = 0;  // positions
    step_number last_draw = 0; // the plan that draws for it
    std::vector<block_id> table;
  };
  using device_pointer = std::shared_ptr<device>;

  // Clients, gateway, tokenizer, detokenizer (world_text.cpp).
  void submit(const client_plan& client);
  void take(generation_request request);
  void tokenize_next();
  void admit(request_id id);
  void cancel(request_id id);
  void end_everything(const error& reason);
  void end_with_error(request_id id, const error& reason);
  void open(actors::open_request request);
  void absorb_updates(std::vector<sequence_update> updates, std::uint64_t sent_ns);
  void fail_open(request_id id, const error& reason);
  void remove_later(std::vector<sequence_id> ids);

  // Scheduler, devices, supervisor (world_engine.cpp).
  void add_sequences(std::vector<sequence_request> sequences);
  void pump();
  void absorb(const step_result& result);
  void forget_device(loss_cause cause, bool let_go = false);
  void let_device_go();
  void give_device_up();
  void watch();
  void join(device_pointer fresh, bool kv_kept);
  void run_plan(const device_pointer& d, const step_plan& plan);
  void answer(const device_pointer& d, const step_plan& plan, step_result result);
  void device_died(const device_pointer& d, loss_cause cause);
  void suspect(const device_pointer& d);
  void replace();
  void start_device();
  void follow(const step_plan& plan);
  void settle(const step_plan& plan, const step_result& result);

  // Invariants (world.cpp).
  void check();
  void check_at_rest();
  void check_failure(const checking_sink& sink);
  void set_step_limit();
  bool chance(std::uint64_t one_in) { return one_in != 0 && queue_.now() < scene_.quiet_ns && random_.one_in(one_in); }
  void note(const char* what, std::uint64_t a = 0, std::uint64_t b = 0) { log_.note(queue_.now(), what, a, b); }

  const std::uint64_t seed_;
  const scenario scene_;
  random_source random_;
  event_log log_;
  event_queue queue_;
  coverage seen_;

  // Text side.
  served_model model_;
  actors::request_registry registry_;
  std::map<request_id, std::shared_ptr<checking_sink>> sinks_; // of all requests that ever came
  std::set<request_id> left_;                                  // their clients went away
  mailbox gateway_, detokenizer_;
  std::map<request_id, generation_request> requests_; // in the gateway
  std::deque<request_id> jobs_;
  std::int32_t idle_tokenizers_ = 2;
  std::optional<error> ended_by_;
  bool failed_ = false; // escalated: nothing is accepted any more
  std::map<request_id, actors::request_output> open_;

  // Engine side.
  scheduler core_;
  mailbox scheduler_, supervisor_;
  device_pointer device_; // the scheduler's; null while there is none
  std::deque<step_plan> sent_;
  std::uint64_t last_news_ns_ = 0;
  bool ticking_ = false;
  bool pausing_ = false; // nothing is planned any more: the device is let go once all plans are done
  actors::restart_policy policy_;
  device_pointer newest_; // the supervisor's
  device_pointer kv_of_;  // whose blocks a keeper has; null: nobody's
  bool up_ = false;
  std::uint64_t completed_ = 0; // steps of all devices
  std::uint64_t completed_before_ = 0;
  bool was_up_ = false;                     // the newest device was ready once
  std::map<slot_id, followed_slot> slots_;  // as the plans say
  std::optional<std::uint64_t> step_limit_; // of seen_.steps; once faults have stopped
};

// Runs one seed.
run_report run_seed(std::uint64_t seed, bool keep_log = false);

} // namespace troupe::test
