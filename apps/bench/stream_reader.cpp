#include "apps/bench/stream_reader.hpp"

#include <algorithm>

#include "core/json.hpp"

namespace troupe::bench {
namespace {

// Text of a choice: "text" of a completion, "content" (or reasoning) of a chat's delta. The delta that only names the role has none.
bool has_text(const value& choice) {
  const auto filled = [](const value* item) { return item && item->is_string() && !item->as_string().empty(); };
  if (filled(choice.find("text"))) return true;
  const auto* delta = choice.find("delta");
  return delta && (filled(delta->find("content")) || filled(delta->find("reasoning_content")) || delta->find("tool_calls"));
}

std::int64_t count_of(const value& usage, std::string_view key, std::int64_t otherwise) {
  const auto* count = usage.find(key);
  return count && count->is_int() && count->as_int() >= 0 ? count->as_int() : otherwise;
}

} // namespace

std::string error_message(std::string_view body) {
  std::string text(body.substr(0, 200));
  if (const auto parsed = json::parse(body)) {
    const auto* failure = parsed->find("error");
    const auto* message = (failure ? *failure : *parsed).find("message");
    if (message && message->is_string()) text = message->as_string().substr(0, 200);
  }
  std::replace_if(
      text.begin(), text.end(), [](unsigned char c) { return c < 0x20 || c > 0x7e; }, ' ');
  return text;
}

void stream_reader::event(std::string_view data, double now) {
  if (over()) return;
  if (data == "[DONE]") {
    done_ = true;
    return;
  }
  const auto parsed = json::parse(data);
  if (!parsed || !parsed->is_object()) {
    record_.failure = "malformed event";
    record_.detail = parsed ? "no object" : parsed.failure().message;
    return;
  }
  if (const auto* failure = parsed->find("error"); failure && !failure->is_null()) {
    record_.failure = "error event";
    record_.detail = error_message(data);
    return;
  }
  if (const auto* choices = parsed->find("choices"); choices && choices->is_array()) {
    if (std::any_of(choices->as_array().begin(), choices->as_array().end(), has_text)) output(now);
  }
  if (const auto* usage = parsed->find("usage"); usage && usage->is_object()) {
    record_.prompt_tokens = count_of(*usage, "prompt_tokens", record_.prompt_tokens);
    record_.output_tokens = count_of(*usage, "completion_tokens", outputs_);
    counted_ = true;
  }
}

void stream_reader::output(double now) {
  if (record_.first) {
    record_.gaps.push_back(now - record_.last);
  } else {
    record_.first = now;
  }
  record_.last = now;
  ++outputs_;
}

void stream_reader::end(double now) {
  record_.ended = now;
  if (!counted_) record_.output_tokens = outputs_;
  if (record_.failure.empty() && !done_) {
    record_.failure = "cut off";
    record_.detail = "the stream ended without [DONE]";
  }
}

} // namespace troupe::bench
