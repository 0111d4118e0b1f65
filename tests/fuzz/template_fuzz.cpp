// Any bytes as a chat template's source, over fixed variables. Loading may fail and rendering may fail, but only in the ways that
// the interface names, and within the budgets. Seeds: tests/fixtures/templates/chat.
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "core/json.hpp"
#include "tokenizer/chat_template.hpp"

namespace {

const troupe::value& variables() {
  static const troupe::value made = *troupe::json::parse(R"({
    "bos_token": "<s>", "eos_token": "</s>", "add_generation_prompt": true, "n": 3, "f": -2.5, "none_value": null,
    "s": "Grüße, 東京 😀 <|im_end|>", "l": [3, "a", null, 1.5, [1, 2]], "d": {"a": 1, "b": {"c": "x"}},
    "tools": [{"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {"x": {"type": "string"}}}}}],
    "messages": [{"role": "system", "content": " Be brief. "}, {"role": "user", "content": "Hi\n<think>x</think>y"},
                 {"role": "assistant", "content": null, "tool_calls": [{"id": "abcdefghi", "function": {"name": "f", "arguments": {"x": "1"}}}]},
                 {"role": "tool", "content": "5"}]})");
  return made;
}

} // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view source(reinterpret_cast<const char*>(data), size);
  constexpr troupe::template_limits limits{
      .max_steps = 20'000, .max_depth = 24, .max_output = 100'000, .max_time = std::chrono::milliseconds(500)};
  try {
    const troupe::chat_template loaded(source, "fuzz", limits);
    const auto text = loaded.render(variables(), 1'700'000'000);
    if (text ? text->size() > limits.max_output : text.failure().kind != troupe::error_kind::invalid_request) std::abort();
  } catch (const troupe::load_error&) {
  }
  return 0;
}
