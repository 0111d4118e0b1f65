// Groups whose ranks are placed on nodes: a head and nodes in this process, each with an actor system of its own, and fake workers.
#pragma once

#include <atomic>
#include <deque>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "actors/cluster.hpp"
#include "tests/actors/group_fixture.hpp"
#include "tests/actors/processes.hpp"

namespace troupe::test {

class nodes_test : public group_test {
 protected:
  struct node {
    std::string name;
    std::unique_ptr<actors::node_membership> stay;
  };

  // The head, in a thread of its own: it comes up when there are slots enough.
  void start_head(std::int32_t ranks, std::int32_t replicas, std::int32_t local_slots, std::vector<std::string> flags = {}) {
    shape(ranks, replicas);
    options.max_restarts = 100;
    flags_ = std::move(flags);
    options.worker_command = {TROUPE_FAKE_WORKER};
    options.slot_arguments.assign(static_cast<std::size_t>(local_slots), flags_);
    actors::serving_parts parts;
    parts.tokens = tokens;
    parts.metrics = metrics;
    parts.log = [this](actors::log_level, const std::string& line) { note(line); };
    actors::cluster_options cluster;
    cluster.local_slots = local_slots;
    cluster.head.model = "the model";
    cluster.head.fingerprint = "1234";
    cluster.lead_join_to = [this](std::uint16_t port) { port_ = port; };
    cluster.open_port = [this](std::uint16_t port) {
      const std::lock_guard lock(guard_);
      EXPECT_TRUE(open_ports_.insert(port).second) << "the port of another group was left open";
    };
    cluster.close_port = [this](std::uint16_t port) {
      const std::lock_guard lock(guard_);
      EXPECT_EQ(open_ports_.erase(port), 1U) << "a port is closed once: its number may be another group's by then";
    };
    parts.cluster = std::move(cluster);
    starting_ = std::thread([this, parts = std::move(parts)]() mutable { server = actors::serving::start(options, std::move(parts)); });
    ASSERT_TRUE(eventually([&] { return port_ != 0; }));
  }
  void await_head() { starting_.join(); }

  actors::node_parts describe(const std::string& name, std::int32_t slots) {
    actors::node_parts parts;
    parts.about.name = name;
    parts.about.instance = ++instances_;
    parts.about.loopback = true;
    parts.about.address = "127.0.0.1";
    parts.prepare = [this, name, slots](const actors::head_description& head) {
      EXPECT_EQ(head.fingerprint, "1234");
      actors::worker_plan plan;
      plan.command = {TROUPE_FAKE_WORKER};
      auto flags = flags_;
      flags.push_back("--of-node-" + name); // the fake worker knows no such flag; /proc shows it
      plan.slot_arguments.assign(static_cast<std::size_t>(slots), flags);
      return plan;
    };
    parts.lead_to = [](std::uint16_t port) { return port; };
    return parts;
  }
  actors::node_membership& join(const std::string& name, std::int32_t slots) { return join(describe(name, slots)); }
  actors::node_membership& join(actors::node_parts parts) {
    nodes_.push_back({parts.about.name, actors::node_membership::join(port_, std::move(parts))});
    return *nodes_.back().stay;
  }
  void lose(const std::string& name) {
    for (node& n : nodes_) {
      if (n.name == name) n.stay.reset();
    }
  }

  void TearDown() override {
    if (starting_.joinable()) starting_.join();
    group_test::TearDown();
    nodes_.clear();
    EXPECT_TRUE(open_ports_.empty()) << "a port was left open";
    EXPECT_EQ(children_of_this_process(), 0) << "a child or a zombie was left";
  }

  void note(const std::string& line) {
    const std::lock_guard lock(guard_);
    lines_ += line + "\n";
  }
  std::string lines() {
    const std::lock_guard lock(guard_);
    return lines_;
  }
  bool said(const std::string& words) { return lines().find(words) != std::string::npos; }

  std::atomic<std::uint16_t> port_{0};
  std::uint64_t instances_ = 0;

 private:
  std::vector<std::string> flags_;
  std::thread starting_;
  std::deque<node> nodes_;
  std::mutex guard_;
  std::string lines_;
  std::set<std::uint16_t> open_ports_; // at the gate
};

} // namespace troupe::test
