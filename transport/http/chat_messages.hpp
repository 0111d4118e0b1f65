// Chat history and tools, checked and brought into the one form that templates expect.
#pragma once

#include "core/request.hpp"
#include "transport/http/field_reader.hpp"

namespace troupe::http {

// "messages" -> chat_prompt::messages_json. Content becomes a string (null and missing: empty; text parts: joined by newlines), arguments
// of tool calls become objects, an empty tool_calls is dropped, "developer" becomes "system". Members that templates do not know are left
// out.
void read_messages(field_reader& fields, chat_prompt& out);

// "tools" and "tool_choice" -> chat_prompt::tools_json; tool_choice "none" leaves the tools out.
void read_tools(field_reader& fields, chat_prompt& out);

} // namespace troupe::http
