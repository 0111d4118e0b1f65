#include "transport/http/openai_response.hpp"

#include <utility>

#include "transport/http/json_text.hpp"

namespace troupe::http {

namespace {

bool owns(const answer_head& head, std::int32_t index) { return index >= 0 && index < head.choices; }

void append_finish(std::string& out, std::optional<finish_reason> reason) {
  out += ",\"finish_reason\":";
  out += !reason ? "null" : *reason == finish_reason::length ? "\"length\"" : "\"stop\"";
}

void append_stop_reason(std::string& out, std::string_view stop_reason) {
  out += ",\"stop_reason\":";
  if (stop_reason.empty()) {
    out += "null";
  } else {
    append_quoted(out, stop_reason);
  }
}

void append_usage(std::string& out, const usage_report& usage) {
  out += "{\"prompt_tokens\":";
  append_integer(out, usage.prompt_tokens);
  out += ",\"completion_tokens\":";
  append_integer(out, usage.completion_tokens);
  out += ",\"total_tokens\":";
  append_integer(out, usage.prompt_tokens + usage.completion_tokens);
  out += ",\"prompt_tokens_details\":{\"cached_tokens\":";
  append_integer(out, usage.cached_tokens);
  out += "}}";
}

// `{"id":..,"object":..,"created":..,"model":..,"choices":[`
std::string head_text(const answer_head& head, std::string_view object) {
  std::string out = "{\"id\":";
  append_quoted(out, head.id);
  out += ",\"object\":";
  append_quoted(out, object);
  out += ",\"created\":";
  append_integer(out, head.created);
  out += ",\"model\":";
  append_quoted(out, head.model);
  out += ",\"choices\":[";
  return out;
}

void add_prompt_logprobs(logprob_text& out, const prompt_report& report) {
  for (std::size_t i = 0; i < report.token_bytes.size(); ++i) {
    out.add_prompt(report.token_bytes[i], i < report.logprobs.size() ? report.logprobs[i] : std::nullopt);
  }
  out.set_offset(code_points(report.text));
}

// The choices that begin with prompt `index`; empty when there is no such prompt.
std::pair<std::int32_t, std::int32_t> choices_of_prompt(const answer_head& head, std::int32_t index) {
  if (index < 0 || index >= head.choices / head.n) return {0, 0};
  return {index * head.n, index * head.n + head.n};
}

} // namespace

answer_head head_of(const api_request& request, std::string id, std::int64_t created) {
  const generation_request& generation = request.generation;
  answer_head head;
  head.id = (request.kind == api_kind::chat ? "chatcmpl-" : "cmpl-") + std::move(id);
  head.created = created;
  head.model = generation.model;
  head.kind = request.kind;
  head.n = generation.n;
  head.choices = generation.n * static_cast<std::int32_t>(generation.prompts.size());
  head.logprobs = generation.sampling.top_logprobs.has_value();
  head.include_usage = request.include_usage;
  head.token_ids = request.return_token_ids;
  head.unfinished = generation.max_tokens == 0 ? finish_reason::length : finish_reason::stop;
  return head;
}

// --- whole answers ---

whole_answer::whole_answer(answer_head head) : head_(std::move(head)) {
  choices_.resize(static_cast<std::size_t>(head_.choices));
  for (choice& c : choices_) c.logprobs = logprob_text(head_.kind);
}

void whole_answer::prompt(const prompt_report& report) {
  const auto [first, end] = choices_of_prompt(head_, report.prompt_index);
  for (auto i = static_cast<std::size_t>(first); i < static_cast<std::size_t>(end); ++i) {
    choices_[i].text = report.text;
    if (head_.logprobs) add_prompt_logprobs(choices_[i].logprobs, report);
  }
}

bool whole_answer::output(const output_chunk& chunk) {
  if (!owns(head_, chunk.index)) return false;
  choice& c = choices_[static_cast<std::size_t>(chunk.index)];
  c.text += chunk.text;
  if (head_.token_ids) c.tokens.insert(c.tokens.end(), chunk.tokens.begin(), chunk.tokens.end());
  if (head_.logprobs) {
    for (const position_logprobs& position : chunk.logprobs) c.logprobs.add(position);
  }
  if (chunk.finish) c.finish = chunk.finish;
  if (!chunk.stop_reason.empty()) c.stop_reason = chunk.stop_reason;
  return true;
}

void whole_answer::append_choice(std::string& out, std::size_t index) const {
  const choice& c = choices_[index];
  out += "{\"index\":";
  append_integer(out, static_cast<std::int64_t>(index));
  if (head_.kind == api_kind::chat) {
    out += ",\"message\":{\"role\":\"assistant\",\"content\":";
    append_quoted(out, c.text);
    out += ",\"refusal\":null}";
  } else {
    out += ",\"text\":";
    append_quoted(out, c.text);
  }
  out += ",\"logprobs\":";
  out += head_.logprobs ? c.logprobs.json() : "null";
  append_finish(out, c.finish ? c.finish : head_.unfinished);
  append_stop_reason(out, c.stop_reason);
  if (head_.token_ids) {
    out += ",\"token_ids\":[";
    for (std::size_t i = 0; i < c.tokens.size(); ++i) {
      if (i > 0) out += ',';
      append_integer(out, c.tokens[i]);
    }
    out += ']';
  }
  out += '}';
}

std::string whole_answer::finish(const usage_report& usage) {
  std::string out = head_text(head_, head_.kind == api_kind::chat ? "chat.completion" : "text_completion");
  for (std::size_t i = 0; i < choices_.size(); ++i) {
    if (i > 0) out += ',';
    append_choice(out, i);
  }
  out += "],\"usage\":";
  append_usage(out, usage);
  out += '}';
  return out;
}

// --- streams ---

event_writer::event_writer(answer_head head) : head_(std::move(head)) {
  prefix_ = "data: " + head_text(head_, head_.kind == api_kind::chat ? "chat.completion.chunk" : "text_completion");
  suffix_ = head_.include_usage ? "],\"usage\":null}\n\n" : "]}\n\n";
  choices_.resize(static_cast<std::size_t>(head_.choices));
  for (choice& c : choices_) c.logprobs = logprob_text(head_.kind);
}

void event_writer::open(std::string& out, std::int32_t index) {
  out += prefix_;
  out += "{\"index\":";
  append_integer(out, index);
}

// Writes what stands behind the text: the log-probabilities gathered since the last event, and the end.
void event_writer::close(std::string& out, std::optional<finish_reason> reason, std::string_view stop_reason) {
  append_finish(out, reason);
  if (reason) append_stop_reason(out, stop_reason);
  out += '}';
  out += suffix_;
}

void event_writer::text_event(std::string& out, std::int32_t index, std::string_view text, std::optional<finish_reason> reason,
                              std::string_view stop_reason) {
  logprob_text& logprobs = choices_[static_cast<std::size_t>(index)].logprobs;
  open(out, index);
  out += ",\"text\":";
  append_quoted(out, text);
  out += ",\"logprobs\":";
  out += head_.logprobs ? logprobs.json() : "null";
  logprobs.clear();
  close(out, reason, stop_reason);
}

void event_writer::delta_event(std::string& out, std::int32_t index, std::string_view delta) {
  logprob_text& logprobs = choices_[static_cast<std::size_t>(index)].logprobs;
  open(out, index);
  out += ",\"delta\":{\"content\":";
  append_quoted(out, delta);
  out += "},\"logprobs\":";
  out += head_.logprobs ? logprobs.json() : "null";
  logprobs.clear();
  close(out, std::nullopt, "");
}

void event_writer::finish_event(std::string& out, std::int32_t index, finish_reason reason, std::string_view stop_reason) {
  open(out, index);
  out += ",\"delta\":{},\"logprobs\":null";
  close(out, reason, stop_reason);
}

void event_writer::end_choice(std::string& out, std::int32_t index, finish_reason reason, std::string_view stop_reason) {
  choices_[static_cast<std::size_t>(index)].finished = true;
  if (head_.kind == api_kind::chat) {
    finish_event(out, index, reason, stop_reason);
  } else {
    text_event(out, index, "", reason, stop_reason);
  }
}

void event_writer::prompt(const prompt_report& report, std::string& out) {
  const auto [first, end] = choices_of_prompt(head_, report.prompt_index);
  for (std::int32_t i = first; i < end && head_.kind == api_kind::completion; ++i) {
    if (head_.logprobs) add_prompt_logprobs(choices_[static_cast<std::size_t>(i)].logprobs, report);
    text_event(out, i, report.text, std::nullopt, "");
  }
}

bool event_writer::output(const output_chunk& chunk, std::string& out) {
  if (!owns(head_, chunk.index)) return false;
  choice& c = choices_[static_cast<std::size_t>(chunk.index)];
  if (c.finished) return true;
  if (head_.kind == api_kind::chat && !std::exchange(c.begun, true)) {
    open(out, chunk.index);
    out += ",\"delta\":{\"role\":\"assistant\",\"content\":\"\"},\"logprobs\":null";
    close(out, std::nullopt, "");
  }
  const bool scored = head_.logprobs && !chunk.logprobs.empty();
  if (scored) {
    for (const position_logprobs& position : chunk.logprobs) c.logprobs.add(position);
  }
  if (head_.kind == api_kind::completion && chunk.finish) {
    c.finished = true;
    text_event(out, chunk.index, chunk.text, chunk.finish, chunk.stop_reason);
    return true;
  }
  if (!chunk.text.empty() || scored) {
    if (head_.kind == api_kind::chat) {
      delta_event(out, chunk.index, chunk.text);
    } else {
      text_event(out, chunk.index, chunk.text, std::nullopt, "");
    }
  }
  if (chunk.finish) end_choice(out, chunk.index, *chunk.finish, chunk.stop_reason);
  return true;
}

void event_writer::finish(const usage_report& usage, std::string& out) {
  for (std::int32_t i = 0; i < head_.choices; ++i) {
    if (choices_[static_cast<std::size_t>(i)].finished) continue;
    output_chunk last;
    last.index = i;
    last.finish = head_.unfinished;
    output(last, out);
  }
  if (head_.include_usage) {
    out += prefix_;
    out += "],\"usage\":";
    append_usage(out, usage);
    out += "}\n\n";
  }
  out += "data: [DONE]\n\n";
}

} // namespace troupe::http
