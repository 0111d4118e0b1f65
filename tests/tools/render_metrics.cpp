// Prints the exposition of a process that has served a known load: render_metrics ROUNDS. tests/e2e/prometheus.py serves it to a
// real Prometheus. One round: a request that stops (12 prompt tokens, 4 of them cached, 9 generated), and one that is rejected. The
// cluster: one group holds the head's two slots and one of node a, another waits; b leaves with a slot that is free; c is lost.
#include <charconv>
#include <cstdio>
#include <cstring>
#include <string>

#include "telemetry/metrics.hpp"

int main(int argc, char** argv) {
  using namespace troupe::telemetry;
  constexpr std::uint64_t ms = 1'000'000;
  int rounds = 0;
  if (argc != 2 || std::from_chars(argv[1], argv[1] + std::strlen(argv[1]), rounds).ec != std::errc{} || rounds < 0) {
    std::fprintf(stderr, "usage: render_metrics ROUNDS\n");
    return 2;
  }
  metrics subject("demo \"quoted\"", "0.0.0", {}, {2, 3});
  subject.set_ready(true);
  subject.set_group(0, true, 1);
  subject.set_group_waiting(1, true);
  subject.set_node(std::string(head_machine), {true, 2, 2});
  subject.set_node("a", {true, 2, 1});
  subject.set_node("b", {true, 1, 0, true});
  subject.set_node("c", {true, 1, 0});
  subject.set_node("c", {.missing = true});
  subject.node_lost();
  subject.set_engine(0, {2, 3, 100, 40, 25});
  for (int round = 0; round < rounds; ++round) {
    subject.tokens(12, 0, 4);
    subject.first_token(40 * ms);
    for (int token = 0; token < 9; ++token) {
      subject.step(2 * ms, 2, 2);
      subject.tokens(0, 1, 0);
      if (token > 0) subject.token_gap(2 * ms);
    }
    subject.request_finished(outcome::stop, {30 * ms, 10 * ms, 16 * ms, 56 * ms, 9});
    subject.request_finished(outcome::rejected, {});
    subject.http_request("/v1/completions", 200);
    subject.http_request("/v1/completions", 429);
  }
  std::fputs(subject.render().c_str(), stdout);
}
