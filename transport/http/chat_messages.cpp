#include "transport/http/chat_messages.hpp"

#include <algorithm>
#include <array>
#include <string>

#include "core/json.hpp"

namespace troupe::http {

namespace {

constexpr std::array<std::string_view, 6> kRoles = {"system", "developer", "user", "assistant", "tool", "function"};

std::string indexed(const std::string& place, std::size_t i) { return place + '[' + std::to_string(i) + ']'; }

bool is_text(const value* item) { return item != nullptr && item->is_string(); }
bool is_absent(const value* item) { return item == nullptr || item->is_null(); }

std::string read_role(field_reader& fields, const std::string& place, const value& message) {
  const value* role = message.find("role");
  if (!is_text(role) || std::find(kRoles.begin(), kRoles.end(), role->as_string()) == kRoles.end()) {
    fields.fail(place + ".role", "must be one of system, developer, user, assistant, tool, function");
    return "";
  }
  return role->as_string() == "developer" ? "system" : role->as_string();
}

std::string read_content(field_reader& fields, const std::string& place, const value& message) {
  const value* content = message.find("content");
  if (is_absent(content)) return "";
  if (content->is_string()) return content->as_string();
  if (!content->is_array()) {
    fields.fail(place + ".content", "must be a string, null or an array of text parts");
    return "";
  }
  std::string joined;
  const value_array& parts = content->as_array();
  for (std::size_t j = 0; j < parts.size(); ++j) {
    const value* type = parts[j].find("type");
    const value* text = parts[j].find("text");
    if (!is_text(type) || type->as_string() != "text" || !is_text(text)) {
      fields.fail(indexed(place + ".content", j), "must be a part of type \"text\" with a string 'text'; no other kind is supported");
      return "";
    }
    if (j > 0) joined += '\n';
    joined += text->as_string();
  }
  return joined;
}

// They are parsed a second time as part of the messages, a few levels deeper, so they get less than a body does.
constexpr json::limits kArgumentLimits{48, 100'000};

// OpenAI sends arguments as JSON text; templates print them with tojson and expect the object.
value read_arguments(field_reader& fields, const std::string& place, const value* arguments) {
  if (is_absent(arguments)) return value_object();
  if (arguments->is_object()) return *arguments;
  if (arguments->is_string()) {
    const std::string& text = arguments->as_string();
    if (text.find_first_not_of(" \t\r\n") == std::string::npos) return value_object();
    const auto parsed = json::parse(text, kArgumentLimits);
    if (parsed && parsed->is_object()) return *parsed;
  }
  fields.fail(place + ".function.arguments", "must be a JSON object, or one as text");
  return value_object();
}

value read_tool_call(field_reader& fields, const std::string& place, const value& call) {
  const value* function = call.find("function");
  const value* name = function != nullptr ? function->find("name") : nullptr;
  if (!is_text(name)) {
    fields.fail(place, "must be an object with a 'function' that has a 'name'");
    return {};
  }
  value_object inner;
  inner.set("name", *name);
  inner.set("arguments", read_arguments(fields, place, function->find("arguments")));
  value_object out;
  if (is_text(call.find("id"))) out.set("id", *call.find("id"));
  out.set("type", "function");
  out.set("function", std::move(inner));
  return out;
}

void read_tool_calls(field_reader& fields, const std::string& place, const value& message, value_object& out) {
  const value* calls = message.find("tool_calls");
  if (is_absent(calls)) return;
  if (!calls->is_array()) return fields.fail(place + ".tool_calls", "must be an array");
  value_array kept;
  for (std::size_t j = 0; j < calls->as_array().size(); ++j) {
    kept.push_back(read_tool_call(fields, indexed(place + ".tool_calls", j), calls->as_array()[j]));
  }
  if (!kept.empty()) out.set("tool_calls", std::move(kept));
}

value read_message(field_reader& fields, const std::string& place, const value& message) {
  if (!message.is_object()) {
    fields.fail(place, "must be an object");
    return {};
  }
  value_object out;
  out.set("role", read_role(fields, place, message));
  out.set("content", read_content(fields, place, message));
  for (const char* key : {"name", "tool_call_id", "reasoning_content"}) {
    const value* item = message.find(key);
    if (is_absent(item)) continue;
    if (!item->is_string()) fields.fail(place + '.' + key, "must be a string");
    out.set(key, *item);
  }
  read_tool_calls(fields, place, message, out);
  return out;
}

} // namespace

void read_messages(field_reader& fields, chat_prompt& out) {
  const value_array* messages = fields.array("messages");
  if (messages == nullptr || messages->empty()) return fields.fail("messages", "must be an array with at least one message");
  value_array kept;
  kept.reserve(messages->size());
  for (std::size_t i = 0; i < messages->size() && !fields.failure(); ++i) {
    kept.push_back(read_message(fields, indexed("messages", i), (*messages)[i]));
  }
  out.messages_json = json::dump(kept);
}

void read_tools(field_reader& fields, chat_prompt& out) {
  const std::string* choice = nullptr;
  if (const value* item = fields.find("tool_choice")) {
    choice = item->is_string() ? &item->as_string() : nullptr;
    if (choice == nullptr || (*choice != "none" && *choice != "auto")) {
      fields.fail("tool_choice", "must be \"none\" or \"auto\": forced calls are not supported");
    }
  }
  const value_array* tools = fields.array("tools");
  if (tools == nullptr || tools->empty()) return;
  for (std::size_t i = 0; i < tools->size(); ++i) {
    const value* function = (*tools)[i].find("function");
    if (function == nullptr || !is_text(function->find("name"))) {
      return fields.fail(indexed("tools", i), "must be an object with a 'function' that has a 'name'");
    }
  }
  if (choice == nullptr || *choice != "none") out.tools_json = json::dump(*tools);
}

} // namespace troupe::http
