// A serving side over groups of fake ranks.
#pragma once

#include <mutex>
#include <string>
#include <vector>

#include "tests/actors/fake_group.hpp"
#include "tests/actors/serving_fixture.hpp"

namespace troupe::test {

class group_test : public serving_test {
 protected:
  void TearDown() override {
    group->release();
    serving_test::TearDown();
  }

  void shape(std::int32_t ranks, std::int32_t replicas = 1) {
    options.group_size = ranks;
    options.leader = ranks - 1;
    options.replicas = replicas;
    metrics =
        std::make_shared<telemetry::metrics>("fake", "test", telemetry::metrics::log_function{}, telemetry::group_shape{replicas, ranks});
  }

  void start_group() {
    start_group([info = device, f = faults, g = group, leader = options.leader](const actors::rank_start& place,
                                                                                const actors::publish_rendezvous& publish) {
      return std::make_unique<fake_rank>(place, leader, info, f, g, publish);
    });
  }
  void start_group(actors::executor_factory make_executor) {
    actors::serving_parts parts;
    parts.tokens = tokens;
    parts.make_executor = std::move(make_executor);
    parts.metrics = metrics;
    parts.timeline = timeline;
    parts.log = [this](actors::log_level, const std::string& line) {
      const std::lock_guard lock(log_mutex_);
      log_ += line + "\n";
    };
    server = actors::serving::start(options, std::move(parts));
  }

  // Without min_tokens most texts end by themselves before max_tokens.
  void submit_texts(int count, std::int32_t max_tokens, std::int32_t min_tokens = 0) {
    for (int i = 0; i < count; ++i) {
      texts.push_back("text number " + std::to_string(texts.size()));
      auto next = request(texts.back(), max_tokens);
      next.min_tokens = min_tokens;
      submit(next);
    }
  }
  void expect_texts(std::int32_t max_tokens, std::int32_t min_tokens = 0) {
    for (std::size_t i = 0; i < texts.size(); ++i) expect_stream(*sinks[i], texts[i], max_tokens, min_tokens);
  }

  std::string log() {
    const std::lock_guard lock(log_mutex_);
    return log_;
  }
  // Of one replica, and one rank of it.
  double group_metric(const std::string& name, int replica) const { return metric(name, "replica=\"" + std::to_string(replica) + "\""); }
  double rank_metric(const std::string& name, int rank) const {
    return metric(name, "rank=\"" + std::to_string(rank) + "\",replica=\"0\"");
  }

  std::shared_ptr<group_faults> group = std::make_shared<group_faults>();
  std::vector<std::string> texts;

 private:
  std::mutex log_mutex_;
  std::string log_;
};

} // namespace troupe::test
