#include "tests/simulation/expectation.hpp"

#include <algorithm>

#include "tests/scheduler/hash_device.hpp"

namespace troupe::test {

namespace {

const token_prompt& tokens_of(const generation_request& r, std::size_t prompt) { return std::get<token_prompt>(r.prompts[prompt]); }

} // namespace

std::vector<token_id> reference_tokens(std::vector<token_id> prompt, std::int32_t count, std::uint64_t seed, std::int32_t vocab) {
  std::vector<token_id> out;
  for (std::int32_t i = 0; i < count; ++i) {
    out.push_back(next_token(prompt, vocab, seed));
    prompt.push_back(out.back());
  }
  return out;
}

expected_choice expect(const generation_request& r, const token_prompt& prompt, const executor_info& device, std::int32_t choice) {
  const auto room = std::max(0, device.max_model_len - static_cast<std::int32_t>(prompt.size()));
  expected_choice e;
  for (const token_id token : reference_tokens(prompt, std::min(room, r.max_tokens.value_or(room)),
                                               *r.seed + static_cast<std::uint64_t>(choice), device.vocab_size)) {
    const bool may_stop = e.output_tokens >= r.min_tokens;
    ++e.output_tokens;
    if (may_stop && std::find(r.stop_token_ids.begin(), r.stop_token_ids.end(), token) != r.stop_token_ids.end()) {
      e.finish = finish_reason::stop;
      break;
    }
    e.tokens.push_back(token);
    e.text.push_back(static_cast<char>(token));
    if (!r.stop_strings.empty() && e.text.ends_with(r.stop_strings.front())) {
      if (!r.include_stop_string) e.text.resize(e.text.size() - r.stop_strings.front().size());
      e.finish = finish_reason::stop;
      break;
    }
  }
  return e;
}

checking_sink::checking_sink(const generation_request& request, const executor_info& device)
    : request_(request), reported_(request.prompts.size(), !request.echo) {
  for (std::size_t p = 0; p < request.prompts.size(); ++p) {
    for (std::int32_t i = 0; i < request.n; ++i) {
      choices_.push_back({expect(request, tokens_of(request, p), device, i), {}, {}, false});
    }
  }
}

void checking_sink::on_prompt(const prompt_report& report) {
  const auto p = static_cast<std::size_t>(report.prompt_index);
  promise(!ended_ && p < reported_.size() && !reported_[p], "a prompt is reported once, when asked for, before the end");
  promise(report.tokens == tokens_of(request_, p), "the reported prompt is the client's");
  reported_[p] = true;
}

void checking_sink::on_output(const output_chunk& chunk) {
  promise(!ended_, "no output comes behind the end");
  promise(chunk.index >= 0 && static_cast<std::size_t>(chunk.index) < choices_.size(), "an output belongs to a choice");
  promise(reported_[static_cast<std::size_t>(chunk.index / request_.n)], "the prompt is reported before its outputs");
  choice& c = choices_[static_cast<std::size_t>(chunk.index)];
  promise(!c.ended, "no output comes behind a choice's end");
  c.tokens.insert(c.tokens.end(), chunk.tokens.begin(), chunk.tokens.end());
  c.text += chunk.text;
  const auto& whole = c.expected.tokens;
  promise(c.tokens.size() <= whole.size() && std::equal(c.tokens.begin(), c.tokens.end(), whole.begin()),
          "a stream is a prefix of the reference stream");
  promise(c.expected.text.starts_with(c.text), "a text is a prefix of the reference text");
  if (!chunk.finish) return;
  c.ended = true;
  promise(*chunk.finish == c.expected.finish, "a choice ends for the reason that the reference ends for");
  promise(c.tokens.size() == whole.size() && c.text == c.expected.text, "an ended choice is complete");
  stopped_by_string_ = stopped_by_string_ || !chunk.stop_reason.empty();
}

void checking_sink::on_finished(const usage_report& usage) {
  promise(!ended_, "a request ends once");
  ended_ = true;
  usage_report expected;
  for (const prompt& p : request_.prompts) expected.prompt_tokens += static_cast<std::int64_t>(std::get<token_prompt>(p).size());
  for (const choice& c : choices_) {
    promise(c.ended, "a request ends behind its choices");
    expected.completion_tokens += c.expected.output_tokens;
  }
  promise(usage.prompt_tokens == expected.prompt_tokens && usage.completion_tokens == expected.completion_tokens,
          "usage counts what was read and generated");
  promise(usage.cached_tokens >= 0 && usage.cached_tokens <= usage.prompt_tokens, "cached tokens are prompt tokens");
}

void checking_sink::on_error(const error& failure) {
  promise(!ended_, "a request ends once");
  ended_ = true;
  failure_ = failure;
}

} // namespace troupe::test
