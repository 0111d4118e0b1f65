#include "transport/http/logprob_text.hpp"

#include <vector>

#include "transport/http/json_text.hpp"

namespace troupe::http {

namespace {

void comma(std::string& out) {
  if (!out.empty()) out += ',';
}

// {"text": logprob, ..}: the best ones, and the chosen one where it is not among them. Texts that look the same appear once: the better
// stays.
void append_best(std::string& out, const position_logprobs& position) {
  std::vector<std::string> seen;
  auto add = [&](const token_logprob& item) {
    std::string text;
    append_quoted(text, item.bytes);
    for (const std::string& other : seen) {
      if (other == text) return;
    }
    if (!seen.empty()) out += ',';
    out += text;
    out += ':';
    append_logprob(out, item.logprob);
    seen.push_back(std::move(text));
  };
  out += '{';
  for (const token_logprob& item : position.top) add(item);
  add(position.chosen);
  out += '}';
}

void append_scored(std::string& out, const token_logprob& item) {
  out += "{\"token\":";
  append_quoted(out, item.bytes);
  out += ",\"logprob\":";
  append_logprob(out, item.logprob);
  out += ",\"bytes\":";
  append_bytes(out, item.bytes);
}

} // namespace

void logprob_text::add(const position_logprobs& position) {
  if (kind_ == api_kind::chat) {
    add_chat(position);
  } else {
    add_completion(position.chosen.bytes, &position);
  }
}

void logprob_text::add_prompt(std::string_view token_bytes, const std::optional<position_logprobs>& position) {
  if (kind_ == api_kind::completion) add_completion(token_bytes, position ? &*position : nullptr);
}

void logprob_text::add_completion(std::string_view token_bytes, const position_logprobs* position) {
  for (std::string* list : {&tokens_, &logprobs_, &tops_, &offsets_}) comma(*list);
  append_quoted(tokens_, token_bytes);
  if (position != nullptr) {
    append_logprob(logprobs_, position->chosen.logprob);
    append_best(tops_, *position);
  } else {
    logprobs_ += "null";
    tops_ += "null";
  }
  // A token that starts in the middle of a character points at that character.
  append_integer(offsets_, offset_ - (begins_inside_character(token_bytes) && offset_ > 0 ? 1 : 0));
  offset_ += code_points(token_bytes);
}

void logprob_text::add_chat(const position_logprobs& position) {
  comma(tokens_);
  append_scored(tokens_, position.chosen);
  tokens_ += ",\"top_logprobs\":[";
  for (std::size_t i = 0; i < position.top.size(); ++i) {
    if (i > 0) tokens_ += ',';
    append_scored(tokens_, position.top[i]);
    tokens_ += '}';
  }
  tokens_ += "]}";
}

std::string logprob_text::json() const {
  if (kind_ == api_kind::chat) return "{\"content\":[" + tokens_ + "],\"refusal\":null}";
  return "{\"tokens\":[" + tokens_ + "],\"token_logprobs\":[" + logprobs_ + "],\"top_logprobs\":[" + tops_ + "],\"text_offset\":[" +
         offsets_ + "]}";
}

void logprob_text::clear() {
  for (std::string* list : {&tokens_, &logprobs_, &tops_, &offsets_}) list->clear();
}

} // namespace troupe::http
