#include "tests/simulation/scenario.hpp"

#include <algorithm>

#include "tests/simulation/expectation.hpp"

namespace troupe::test {

namespace {

using simulation::random_source;

executor_info make_device(random_source& r) {
  executor_info d;
  d.block_size = r.between(1, 8);
  d.max_num_seqs = r.between(1, 8);
  d.max_batched_tokens = d.max_num_seqs + r.between(0, 24);
  d.max_model_len = r.between(16, 96);
  // From pools that one sequence fills to pools that hold everybody.
  d.num_blocks = r.one_in(3) ? r.between(4, 16) : r.between(16, 120);
  d.vocab_size = r.one_in(2) ? kSimVocab : r.between(2, 4); // few letters: streams that repeat themselves
  d.max_verify_tokens = r.between(1, 9);
  d.max_proposals = r.between(1, 8);
  return d;
}

speculation_config make_speculation(random_source& r) {
  if (r.one_in(3)) return {};
  return {r.one_in(2) ? draft_source::ngram : draft_source::model, r.between(1, 9), r.one_in(2)};
}

fault_rates make_faults(random_source& r) {
  fault_rates f;
  if (r.one_in(4)) return f; // a quiet world, where nothing may go wrong
  const auto rate = [&] { return r.one_in(2) ? 0 : static_cast<std::uint64_t>(r.between(8, 80)); };
  f.step_fails = rate();
  f.crash = rate();
  f.kill = rate();
  f.freeze = rate();
  f.late = rate();
  f.duplicate = rate();
  f.numeric = rate();
  f.start_fails = r.one_in(2) ? 0 : 4;
  f.changes = rate();
  return f;
}

token_prompt make_prompt(random_source& r, std::int32_t longest, std::int32_t vocab) {
  token_prompt p(static_cast<std::size_t>(r.between(1, longest)));
  for (token_id& t : p) t = r.between(0, vocab - 1);
  return p;
}

// Stops that really happen: taken from what the first choice will say.
void add_stops(generation_request& g, random_source& r, std::int32_t vocab) {
  const auto words = reference_tokens(std::get<token_prompt>(g.prompts.front()), g.max_tokens.value_or(8), *g.seed, vocab);
  if (words.size() < 2) return;
  const auto at = r.below(words.size() - 1);
  if (r.one_in(2)) {
    g.stop_strings = {std::string{static_cast<char>(words[at]), static_cast<char>(words[at + 1])}};
    g.include_stop_string = r.one_in(2);
  } else {
    g.stop_token_ids = {words[at]};
    g.min_tokens = r.between(0, *g.max_tokens);
  }
}

generation_request make_request(random_source& r, const executor_info& device, request_id id) {
  generation_request g;
  g.id = id;
  const std::int32_t longest = r.one_in(8) ? device.max_model_len + 4 : std::max(1, device.max_model_len / 2);
  const std::int32_t prompts = r.one_in(6) ? 2 : 1;
  for (std::int32_t i = 0; i < prompts; ++i) g.prompts.emplace_back(make_prompt(r, longest, device.vocab_size));
  g.n = r.one_in(4) ? r.between(2, 3) : 1;
  if (!r.one_in(16)) g.max_tokens = r.one_in(24) ? 0 : r.between(1, r.one_in(6) ? device.max_model_len : 12);
  g.priority = r.one_in(4) ? r.between(-1, 1) : 0;
  g.echo = r.one_in(8);
  g.sampling.temperature = 0;
  g.seed = 1;
  if (g.max_tokens && r.one_in(2)) add_stops(g, r, device.vocab_size);
  return g;
}

} // namespace

scenario make_scenario(std::uint64_t seed) {
  random_source r(seed ^ 0x73696D756C617465ULL);
  scenario s;
  s.device = make_device(r);
  s.speculation = make_speculation(r);
  s.max_queue = r.between(2, 40);
  s.stages = r.one_in(2) ? 1 : r.between(2, 3);
  s.plans_in_flight = s.stages == 1 ? r.between(1, 3) : s.stages + r.between(0, 2);
  s.max_restarts = r.between(1, 12);
  s.step_ns = kMs * static_cast<std::uint64_t>(r.between(1, 10));
  s.mail_ns = static_cast<std::uint64_t>(r.between(0, 3)) * kMs;
  s.faults = make_faults(r);
  s.keeps_kv = r.one_in(2);
  const std::int32_t clients = r.between(1, 16);
  const std::uint64_t spread = kMs * static_cast<std::uint64_t>(r.between(1, 600));
  const bool flood = r.one_in(4); // all at one moment
  const bool impatient = r.one_in(2);
  for (std::int32_t i = 0; i < clients; ++i) {
    client_plan c;
    c.arrives_ns = flood ? spread : r.below(spread);
    c.request = make_request(r, s.device, static_cast<request_id>(i) + 1);
    if (impatient && r.one_in(3)) c.leaves_ns = c.arrives_ns + r.below(200 * kMs);
    s.quiet_ns = std::max({s.quiet_ns, c.arrives_ns, c.leaves_ns.value_or(0)});
    s.clients.push_back(std::move(c));
  }
  s.quiet_ns += 200 * kMs;
  return s;
}

} // namespace troupe::test
