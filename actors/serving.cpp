#include "actors/serving.hpp"

#include <algorithm>
#include <atomic>
#include <caf/actor_system.hpp>
#include <caf/io/middleman.hpp>
#include <caf/scoped_actor.hpp>
#include <caf/send.hpp>
#include <caf/stateful_actor.hpp>
#include <caf/typed_event_based_actor.hpp>
#include <chrono>
#include <future>
#include <mutex>
#include <stdexcept>
#include <utility>

#include "actors/admission.hpp"
#include "actors/cluster_actor.hpp"
#include "actors/detokenizer_actor.hpp"
#include "actors/gateway_actor.hpp"
#include "actors/scheduler_actor.hpp"
#include "actors/supervisor_actor.hpp"
#include "actors/system.hpp"
#include "actors/upgrade_actor.hpp"

namespace troupe::actors {

namespace {

constexpr std::chrono::seconds kStopDeadline{10}; // for actors to end; a device stuck in a step cannot be waited for

// CAF's system refers to its configuration, so they live and die together.
struct caf_runtime {
  explicit caf_runtime(bool network) : config(network), system(config) {}
  system_config config;
  caf::actor_system system;
};

class caf_serving final : public serving {
 public:
  caf_serving(serving_options options, serving_parts parts)
      : shared_(std::make_shared<serving_state>(std::move(options), std::move(parts))),
        runtime_(std::make_unique<caf_runtime>(!shared_->options.worker_command.empty())) {}
  ~caf_serving() override;

  void launch();

  void submit(generation_request request, std::shared_ptr<token_sink> sink) override;
  void cancel(request_id id) override { caf::anon_send(gateway_, cancel_request{id}); }
  void tokenize(tokenize_request request, std::function<void(result<tokenize_reply>)> reply) override;
  void detokenize(std::vector<token_id> tokens, std::function<void(result<std::string>)> reply) override;
  service_status status() const override { return shared_->health.status(shared_->registry.busy_since(), now_ns()); }
  const served_model& model() const override { return shared_->model; }

  void drain() override;
  std::size_t active_requests() const override { return shared_->registry.active_requests(); }
  void stop() override;
  std::optional<std::string> replace_program(const std::string& program, std::chrono::milliseconds start_deadline,
                                             const std::function<void(const std::string&)>& tell) override;
  int device_pid(std::int32_t replica, std::int32_t rank) const override { return shared_->device_pid(replica, rank); }

 private:
  void open_cluster();
  bool await_end();

  shared_state shared_;
  std::unique_ptr<caf_runtime> runtime_;
  gateway_actor gateway_;
  detokenizer_actor detokenizer_;
  std::vector<scheduler_actor> schedulers_;   // by replica
  std::vector<supervisor_actor> supervisors_; // by replica
  cluster_actor cluster_;                     // null outside a cluster
  upgrade_actor upgrade_;                     // null where devices are threads
  std::mutex program_mutex_;
  program_number program_ = 0; // that the device processes of this machine run
  std::mutex stop_mutex_;
  bool stopped_ = false;
  bool stuck_ = false; // an actor did not end in time
};

caf_serving::~caf_serving() {
  stop();
  gateway_ = nullptr;
  detokenizer_ = nullptr;
  schedulers_.clear();
  supervisors_.clear();
  cluster_ = nullptr;
  upgrade_ = nullptr;
  // A thread that is stuck in a step still uses the runtime: then both are left to the end of the process.
  if (stuck_) runtime_.release();
}

void fill_model(served_model& model, const serving_state& shared, const executor_info& info) {
  model.names = shared.options.served_names;
  model.created = shared.options.created;
  model.vocab_size = info.vocab_size;
  model.has_chat_template = shared.parts.templates != nullptr;
  // What fits the context but never the KV pool is refused like what exceeds the context.
  const std::int64_t pool_tokens = static_cast<std::int64_t>(info.num_blocks) * info.block_size;
  model.max_model_len = static_cast<std::int32_t>(std::min<std::int64_t>(info.max_model_len, pool_tokens));
}

void check_speculation(const speculation_config& wanted, const executor_info& info) {
  if (wanted.source != draft_source::none && info.max_verify_tokens < 2) {
    throw std::runtime_error("speculative decoding: this device cannot verify drafts");
  }
  if (wanted.source == draft_source::model && info.max_proposals < 1) {
    throw std::runtime_error("speculative decoding: this device has no draft model");
  }
}

// The limits that hold for all replicas: they are equal but for their KV pools, the smallest of which bounds what is accepted.
executor_info common_limits(std::vector<std::future<executor_info>>& groups) {
  executor_info common = groups.front().get();
  for (std::size_t r = 1; r < groups.size(); ++r) {
    executor_info other = groups[r].get();
    const std::int32_t blocks = std::exchange(other.num_blocks, common.num_blocks);
    if (!(other == common)) throw std::runtime_error("replica " + std::to_string(r) + " has other limits than replica 0");
    common.num_blocks = std::min(common.num_blocks, blocks);
  }
  return common;
}

void caf_serving::launch() {
  auto& system = runtime_->system;
  const std::int32_t replicas = shared_->options.replicas;
  detokenizer_ = system.spawn(run_detokenizer, shared_);
  for (std::int32_t r = 0; r < replicas; ++r) {
    schedulers_.push_back(system.spawn(run_scheduler, shared_, r, detokenizer_));
    caf::anon_send(detokenizer_, caf::join_atom::value, schedulers_.back());
  }
  gateway_ = system.spawn(run_gateway, shared_, schedulers_, detokenizer_);
  if (shared_->cluster) cluster_ = system.spawn(run_cluster, shared_);
  std::vector<std::future<executor_info>> ready;
  for (std::int32_t r = 0; r < replicas; ++r) {
    auto first = std::make_shared<std::promise<executor_info>>();
    ready.push_back(first->get_future());
    const core_actors core{gateway_, schedulers_[static_cast<std::size_t>(r)], detokenizer_, cluster_};
    supervisors_.push_back(system.spawn<caf::detached>(run_supervisor, shared_, r, core, std::move(first)));
  }
  if (!shared_->options.worker_command.empty()) upgrade_ = system.spawn(run_upgrades, shared_, supervisors_);
  if (shared_->cluster) open_cluster();
  // The supervisors keep the deadline; this one only guards against their silence. Nodes may join at any time.
  const auto limit = std::chrono::steady_clock::now() + shared_->options.start_deadline + kStopDeadline;
  for (auto& group : ready) {
    if (shared_->cluster) group.wait();
    if (group.wait_until(limit) != std::future_status::ready) throw std::runtime_error("the device did not start in time");
  }
  const executor_info info = common_limits(ready);
  check_speculation(shared_->options.speculation, info);
  fill_model(shared_->model, *shared_, info);
  shared_->block_size = info.block_size;
  shared_->num_blocks = info.num_blocks;
}

void caf_serving::open_cluster() {
  for (std::size_t r = 0; r < supervisors_.size(); ++r) {
    caf::anon_send(cluster_, caf::join_atom::value, static_cast<std::int32_t>(r), supervisors_[r]);
  }
  caf::anon_send(cluster_, caf::join_atom::value, upgrade_);
  auto port = runtime_->system.middleman().publish(cluster_, 0, "127.0.0.1");
  if (!port) throw std::runtime_error("cluster: no port on the loopback interface: " + runtime_->system.render(port.error()));
  shared_->cluster->lead_join_to(*port);
}

void caf_serving::submit(generation_request request, std::shared_ptr<token_sink> sink) {
  if (!shared_->health.accepts()) return refuse(*shared_, *sink, shared_->health.refusal());
  if (auto bad = check_request(request, shared_->model)) return refuse(*shared_, *sink, *bad);
  if (request.arrival_ns == 0) request.arrival_ns = now_ns();
  std::size_t bytes = 0;
  for (const prompt& p : request.prompts) bytes += prompt_bytes_of(p);
  if (auto full = shared_->registry.add(request.id, sink, choices_of(request), bytes)) return refuse(*shared_, *sink, *full);
  caf::anon_send(gateway_, std::move(request));
}

void caf_serving::tokenize(tokenize_request request, std::function<void(result<tokenize_reply>)> reply) {
  request_registry::pending_call pending;
  pending.tokenized = reply;
  pending.bytes = prompt_bytes_of(request.input);
  tokenize_call call{0, std::move(request.input), request.add_special_tokens};
  if (auto full = shared_->registry.add_call(std::move(pending), call.call)) return reply(*full);
  caf::anon_send(gateway_, std::move(call));
}

void caf_serving::detokenize(std::vector<token_id> tokens, std::function<void(result<std::string>)> reply) {
  request_registry::pending_call pending;
  pending.detokenized = reply;
  pending.bytes = tokens.size() * sizeof(token_id);
  detokenize_call call{0, std::move(tokens)};
  if (auto full = shared_->registry.add_call(std::move(pending), call.call)) return reply(*full);
  caf::anon_send(gateway_, std::move(call));
}

std::optional<std::string> caf_serving::replace_program(const std::string& program, std::chrono::milliseconds start_deadline,
                                                        const std::function<void(const std::string&)>& tell) {
  if (!upgrade_) return "the devices live in the serving process; with --isolate-devices they have processes of their own";
  if (shared_->cluster && shared_->cluster->local_slots == 0) {
    return "the head runs no ranks itself (--slots 0); those of a node change their program there, with troupe node --upgrade";
  }
  const std::lock_guard alone(program_mutex_);
  const program_number wanted = shared_->programs.add(program);
  std::optional<upgrade_end> end;
  caf::scoped_actor self{runtime_->system};
  self->monitor(upgrade_);
  self->send(upgrade_, machine_upgrade{this_machine, "the head", program_, wanted, start_deadline.count()});
  while (!end) {
    self->receive([&](const upgrade_note& note) { tell(note.text); }, [&](const upgrade_end& told) { end = told; },
                  [&](const caf::down_msg&) {
                    end = upgrade_end{this_machine, server_is_stopping};
                  });
  }
  shared_->programs.forget(end->failure.empty() ? std::exchange(program_, wanted) : wanted);
  if (!end->failure.empty()) return end->failure;
  return std::nullopt;
}

void caf_serving::drain() {
  shared_->health.drain();
  shared_->parts.metrics->set_ready(false);
}

// Waits for the supervisors, which go after the devices, then for the others. False when a device is stuck.
bool caf_serving::await_end() {
  caf::scoped_actor self{runtime_->system};
  const auto limit = std::chrono::steady_clock::now() + kStopDeadline;
  bool all = true;
  const auto await = [&](const auto& handle) {
    self->monitor(handle);
    const auto left = std::max(limit - std::chrono::steady_clock::now(), std::chrono::steady_clock::duration::zero());
    self->receive([](caf::down_msg&) {}, caf::after(left) >> [&] { all = false; });
  };
  for (const auto& supervisor : supervisors_) await(supervisor);
  const auto dismiss = [&](const auto& handle) {
    self->send_exit(handle, caf::exit_reason::user_shutdown);
    if (all) await(handle);
  };
  if (cluster_) dismiss(cluster_);
  if (upgrade_) dismiss(upgrade_);
  dismiss(gateway_);
  for (const auto& scheduler : schedulers_) dismiss(scheduler);
  dismiss(detokenizer_);
  return all;
}

// The handles stay, so that calls from other threads find dead actors rather than a race.
void caf_serving::stop() {
  const std::lock_guard lock(stop_mutex_);
  if (std::exchange(stopped_, true)) return;
  shared_->health.stop();
  shared_->registry.close();
  shared_->parts.metrics->set_ready(false);
  const error reason{error_kind::unavailable, "the server is stopping", "", std::nullopt};
  if (gateway_) caf::anon_send(gateway_, end_all{reason}); // and through it the detokenizer
  for (const auto& supervisor : supervisors_) caf::anon_send(supervisor, caf::close_atom::value);
  if (!supervisors_.empty()) stuck_ = !await_end();
  for (const bool in_engine : {false, true}) { // left over only when an actor failed
    for (const request_id id : shared_->registry.ids(in_engine)) end_with_error(*shared_, id, reason);
  }
}

} // namespace

std::unique_ptr<serving> serving::start(serving_options options, serving_parts parts) {
  if (parts.tokens == nullptr) throw std::runtime_error("serving: a tokenizer is needed");
  if (options.replicas < 1 || options.group_size < 1 || options.leader < 0 || options.leader >= options.group_size) {
    throw std::runtime_error("serving: replicas, the size of a group and its leader do not fit together");
  }
  if (options.group_size % options.stages != 0) throw std::runtime_error("serving: a group's stages are not of one size");
  if (parts.cluster && options.worker_command.empty()) throw std::runtime_error("serving: ranks in a cluster are processes");
  if (parts.metrics == nullptr) {
    const telemetry::group_shape groups{options.replicas, options.group_size};
    parts.metrics = std::make_shared<telemetry::metrics>("", "", telemetry::metrics::log_function{}, groups);
  }
  auto server = std::make_unique<caf_serving>(std::move(options), std::move(parts));
  server->launch();
  return server;
}

} // namespace troupe::actors
