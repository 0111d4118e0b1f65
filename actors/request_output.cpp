#include "actors/request_output.hpp"

#include <algorithm>
#include <utility>

namespace troupe::actors {

namespace {

position_logprobs to_logprobs(const token_scores& scores, const tokenizer& tokens) {
  const auto named = [&](const scored_token& s) { return token_logprob{s.token, s.logprob, tokens.token_bytes(s.token)}; };
  position_logprobs p;
  p.chosen = named(scores.chosen);
  for (const scored_token& s : scores.top) p.top.push_back(named(s));
  return p;
}

// 0 where a stage was not reached.
std::uint64_t span(std::uint64_t from, std::uint64_t to) { return from == 0 || to < from ? 0 : to - from; }

void keep_earliest(std::uint64_t& kept, std::uint64_t t) {
  if (t != 0 && (kept == 0 || t < kept)) kept = t;
}

} // namespace

choice_output::choice_output(std::shared_ptr<const tokenizer> tokens, const prompt_info& prompt, const stop_conditions& stop)
    : detokenizer_(std::move(tokens), prompt.tail), scanner_(stop.stop_strings, stop.include_stop_string), min_tokens_(stop.min_tokens) {}

void choice_output::scan(const std::string& text, output_chunk& chunk) {
  stop_match m = scanner_.push(text, count_ >= min_tokens_);
  chunk.text += m.text;
  if (!m.stopped) return;
  chunk.finish = finish_reason::stop;
  chunk.stop_reason = std::move(m.matched);
  ended_ = true;
}

void choice_output::absorb_token(token_id token, output_chunk& chunk) {
  ++count_;
  chunk.tokens.push_back(token);
  scan(detokenizer_.push(token), chunk);
}

void choice_output::flush(const sequence_update& update, output_chunk& chunk) {
  count_ = std::max(count_, update.output_tokens);
  scan(detokenizer_.finish(), chunk);
  if (!ended_) {
    chunk.text += scanner_.finish();
    chunk.finish = *update.finish;
  }
  ended_ = true;
}

output_chunk choice_output::absorb(const sequence_update& update, const tokenizer& tokens, bool logprobs) {
  output_chunk chunk;
  chunk.index = update.id.index;
  for (std::size_t k = 0; k < update.tokens.size() && !ended_; ++k) {
    absorb_token(update.tokens[k], chunk);
    if (logprobs && k < update.scores.size()) chunk.logprobs.push_back(to_logprobs(update.scores[k], tokens));
  }
  if (!ended_ && update.finish) flush(update, chunk);
  return chunk;
}

request_output::request_output(open_request open, std::shared_ptr<const tokenizer> tokens, std::shared_ptr<token_sink> sink,
                               std::shared_ptr<telemetry::metrics> metrics)
    : open_(std::move(open)), tokens_(std::move(tokens)), sink_(std::move(sink)), metrics_(std::move(metrics)) {
  for (prompt_info& info : open_.prompts) {
    for (std::int32_t i = 0; i < open_.n; ++i) choices_.emplace_back(tokens_, info, open_.stop);
    prompt_state p;
    p.info = std::move(info);
    p.reported = !open_.echo;
    prompts_.push_back(std::move(p));
  }
  open_choices_ = choices_.size();
}

// At the first update, not before: until then the scheduler may still refuse the request, and its sink must have seen nothing.
void request_output::start() {
  if (std::exchange(started_, true)) return;
  for (std::size_t p = 0; p < prompts_.size(); ++p) {
    const bool waits = open_.prompt_scores && prompts_[p].info.token_count > 1;
    if (open_.prompt_scores) prompts_[p].scores.emplace_back(); // nothing predicts the first token
    if (!prompts_[p].reported && !waits) report(prompts_[p], static_cast<std::int32_t>(p));
  }
}

void request_output::report(prompt_state& p, std::int32_t index) {
  prompt_report r;
  r.prompt_index = index;
  r.text = std::move(p.info.report.text);
  r.tokens = std::move(p.info.report.tokens);
  r.token_bytes = std::move(p.info.report.token_bytes);
  r.logprobs = std::move(p.scores);
  p.reported = true;
  sink_->on_prompt(r);
  for (const output_chunk& chunk : std::exchange(p.held, {})) sink_->on_output(chunk);
}

void request_output::absorb_scores(prompt_state& p, std::vector<token_scores>& scores) {
  for (const token_scores& s : scores) {
    if (p.scores.size() < static_cast<std::size_t>(p.info.token_count)) p.scores.emplace_back(to_logprobs(s, *tokens_));
  }
}

void request_output::emit(prompt_state& p, output_chunk chunk) {
  if (chunk.tokens.empty() && chunk.text.empty() && !chunk.finish) return;
  if (p.reported) {
    sink_->on_output(chunk);
  } else {
    p.held.push_back(std::move(chunk));
  }
}

void request_output::measure(const sequence_update& update, std::int32_t outputs, choice_output& c, prompt_state& p, std::uint64_t now_ns) {
  keep_earliest(scheduled_ns_, update.times.scheduled_ns);
  if (update.id.index % open_.n == 0) p.cached_tokens = std::clamp(update.cached_tokens, p.cached_tokens, p.info.token_count);
  if (update.output_tokens == 0) return;
  if (!std::exchange(p.counted, true)) metrics_->tokens(p.info.token_count, 0, 0);
  if (first_token_ns_ == 0) {
    first_token_ns_ = now_ns;
    metrics_->first_token(span(open_.arrival_ns, now_ns));
  }
  keep_earliest(c.first_token_ns, now_ns);
  // Outputs that come with one step share its time.
  const auto shares = static_cast<std::uint64_t>(std::max(outputs, 1));
  for (std::uint64_t i = 0; c.last_token_ns != 0 && i < shares; ++i) metrics_->token_gap(span(c.last_token_ns, now_ns) / shares);
  c.last_token_ns = now_ns;
}

bool request_output::absorb(sequence_update& update, std::uint64_t now_ns) {
  const auto index = static_cast<std::size_t>(update.id.index);
  if (index >= choices_.size() || choices_[index].ended()) return false; // a row computed for a choice that has just stopped
  start();
  choice_output& c = choices_[index];
  const std::size_t prompt_index = index / static_cast<std::size_t>(open_.n);
  prompt_state& p = prompts_[prompt_index];
  absorb_scores(p, update.prompt_scores);
  const std::int32_t before = c.token_count();
  output_chunk chunk = c.absorb(update, *tokens_, open_.logprobs);
  const std::int32_t outputs = c.token_count() - before;
  measure(update, outputs, c, p, now_ns);
  metrics_->tokens(0, outputs, 0);
  any_length_ = any_length_ || chunk.finish == finish_reason::length;
  // The first choice of a prompt brings its scores; when it ends there will be no more of them.
  const bool complete = p.scores.size() >= static_cast<std::size_t>(p.info.token_count);
  if (!p.reported && (complete || (c.ended() && index % static_cast<std::size_t>(open_.n) == 0))) {
    report(p, static_cast<std::int32_t>(prompt_index));
  }
  emit(p, std::move(chunk));
  if (!c.ended()) return false;
  --open_choices_;
  return !update.finish.has_value();
}

std::optional<error> request_output::failure(const sequence_update& update) const {
  const auto index = static_cast<std::size_t>(update.id.index);
  if (index >= choices_.size() || choices_[index].ended()) return std::nullopt; // a row computed for a choice that has just stopped
  if (update.failure) return update.failure;
  if (update.finish == finish_reason::failed || update.finish == finish_reason::cancelled) {
    return error{error_kind::internal, "the engine ended this request", "", std::nullopt};
  }
  return std::nullopt;
}

std::vector<sequence_id> request_output::open_sequences() const {
  std::vector<sequence_id> ids;
  for (std::size_t i = 0; i < choices_.size(); ++i) {
    if (!choices_[i].ended()) ids.push_back({open_.id, static_cast<std::int32_t>(i)});
  }
  return ids;
}

usage_report request_output::usage() const {
  usage_report u;
  for (const prompt_state& p : prompts_) {
    u.prompt_tokens += p.info.token_count;
    u.cached_tokens += p.cached_tokens;
  }
  for (const choice_output& c : choices_) u.completion_tokens += c.token_count();
  return u;
}

telemetry::request_times request_output::times(std::uint64_t now_ns) const {
  telemetry::request_times t;
  t.queue_ns = span(open_.arrival_ns, scheduled_ns_);
  t.prefill_ns = span(scheduled_ns_, first_token_ns_);
  t.total_ns = span(open_.arrival_ns, now_ns);
  const auto shorter = [](const choice_output& a, const choice_output& b) { return a.token_count() < b.token_count(); };
  const auto longest = std::max_element(choices_.begin(), choices_.end(), shorter); // one choice's pace: others may have waited
  t.decode_ns = span(longest->first_token_ns, longest->last_token_ns);
  t.output_tokens = static_cast<std::uint64_t>(longest->token_count());
  return t;
}

telemetry::outcome request_output::outcome() const { return any_length_ ? telemetry::outcome::length : telemetry::outcome::stop; }

} // namespace troupe::actors
