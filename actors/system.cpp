#include "actors/system.hpp"

#include <caf/atom.hpp>
#include <caf/io/middleman.hpp>
#include <caf/timespan.hpp>
#include <chrono>
#include <cstddef>

#include "actors/protocol.hpp"

namespace troupe::actors {

namespace {

constexpr std::size_t kActorThreads = 3; // gateway, scheduler and detokenizer at once; all that waits is detached
constexpr caf::timespan kHeartbeat = std::chrono::milliseconds(250);
constexpr caf::timespan kSilence = std::chrono::seconds(1); // a peer is lost after this

} // namespace

system_config::system_config(bool network) {
  add_message_types<caf::id_block::troupe>();
  // Workers that wait on a condition variable. CAF's default, work stealing, polls: it costs CPU time in an idle server, and its
  // sleeps (up to 10 ms) would delay messages that come from other threads.
  set("scheduler.policy", caf::atom("sharing"));
  set("scheduler.max-threads", kActorThreads);
  if (!network) return;
  load<caf::io::middleman>();
  set("middleman.heartbeat-interval", kHeartbeat);
  set("middleman.connection-timeout", kSilence);
  set("middleman.workers", std::size_t{1});
}

} // namespace troupe::actors
