#include "tokenizer/chat_template.hpp"

#include "tokenizer/jinja/interpreter.hpp"
#include "tokenizer/jinja/lexer.hpp"
#include "tokenizer/jinja/parser.hpp"
#include "tokenizer/jinja/unicode.hpp"
#include "tokenizer/plain_marker.hpp"
#include "tokenizer/utf8.hpp"

namespace troupe {

namespace {

constexpr std::size_t kMaxMessage = 500;     // characters of an error that goes to a client
constexpr std::size_t kRunDepthPerLevel = 8; // evaluation may nest this much deeper than source: macros call macros

// What a client may see of an error: bounded, without markers.
std::string presentable(std::string message) {
  message = utf8::repair(without_markers(message));
  const std::size_t end = jinja::unicode::offset(message, kMaxMessage);
  if (end < message.size()) message = message.substr(0, end) + "..";
  return message;
}

jinja::program parsed(std::string_view source, std::string_view name, const template_limits& limits) {
  try {
    return jinja::parse(utf8::repair(source), limits.max_depth);
  } catch (const jinja::syntax_error& e) {
    throw load_error(std::string(name) + ": chat template, line " + std::to_string(e.line()) + ": " + presentable(e.what()));
  }
}

} // namespace

struct chat_template::impl {
  jinja::program program;
  template_limits limits;
};

chat_template::chat_template(std::string_view source, std::string_view name, template_limits limits)
    : impl_(std::make_unique<impl>(impl{parsed(source, name, limits), limits})) {}
chat_template::~chat_template() = default;
chat_template::chat_template(chat_template&&) noexcept = default;
chat_template& chat_template::operator=(chat_template&&) noexcept = default;

result<std::string> chat_template::render(const value& variables, std::int64_t now) const {
  if (!variables.is_object()) return error{error_kind::internal, "the variables of a chat template must be an object", "", std::nullopt};
  const template_limits& limits = impl_->limits;
  jinja::machine m({limits.max_steps, limits.max_depth * kRunDepthPerLevel, limits.max_output, limits.max_time}, now);
  jinja::interpreter interpreter(m, impl_->program);
  try {
    return interpreter.run(variables.as_object());
  } catch (const jinja::raised_error& e) {
    return invalid_request("messages", presentable(e.what()));
  } catch (const jinja::render_error& e) {
    return invalid_request("messages",
                           presentable("the chat template failed in line " + std::to_string(interpreter.line()) + ": " + e.what()));
  } catch (const std::exception&) { // out of memory, or a fault of the interpreter
    return error{error_kind::internal, "the chat template could not be run", "", std::nullopt};
  }
}

} // namespace troupe
