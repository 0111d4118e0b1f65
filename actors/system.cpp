#include "actors/system.hpp"

#include <unistd.h>

#include <caf/actor_system.hpp>
#include <caf/atom.hpp>
#include <caf/io/middleman.hpp>
#include <caf/node_id.hpp>
#include <caf/timespan.hpp>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <random>

#include "actors/protocol.hpp"

namespace troupe::actors {

namespace {

constexpr std::size_t kActorThreads = 3; // gateway, scheduler and detokenizer at once; all that waits is detached
constexpr caf::timespan kHeartbeat = std::chrono::milliseconds(250);
constexpr caf::timespan kSilence = std::chrono::seconds(1); // a peer is lost after this

// CAF names a process by its host and number. These are alike in two containers, or a process that is started again, and a peer of a name
// that is known already is turned away. Each system here gets a name of its own, after the middleman has given it one and before it uses
// it: modules are initialised in the order of their numbers, and all before any starts.
class unique_name final : public caf::actor_system::module {
 public:
  explicit unique_name(caf::actor_system& system) : system_(system) {}
  static caf::actor_system::module* make(caf::actor_system& system, caf::detail::type_list<>) { return new unique_name(system); }

  void init(caf::actor_system_config&) override {
    std::random_device random;
    caf::node_id::default_data::host_id_type host{};
    for (auto& byte : host) byte = static_cast<std::uint8_t>(random());
    const_cast<caf::node_id&>(system_.node()) = caf::make_node_id(static_cast<std::uint32_t>(getpid()), host);
  }
  void start() override {}
  void stop() override {}
  id_t id() const override { return network_manager; } // a place that nobody else takes
  void* subtype_ptr() override { return this; }

 private:
  caf::actor_system& system_; // not const: the cast above is allowed
};

} // namespace

system_config::system_config(bool network) {
  add_message_types<caf::id_block::troupe>();
  // Workers that wait on a condition variable. CAF's default, work stealing, polls: it costs CPU time in an idle server, and its
  // sleeps (up to 10 ms) would delay messages that come from other threads.
  set("scheduler.policy", caf::atom("sharing"));
  set("scheduler.max-threads", kActorThreads);
  if (!network) return;
  load<caf::io::middleman>();
  load<unique_name>();
  set("middleman.heartbeat-interval", kHeartbeat);
  set("middleman.connection-timeout", kSilence);
  set("middleman.workers", std::size_t{1});
}

} // namespace troupe::actors
