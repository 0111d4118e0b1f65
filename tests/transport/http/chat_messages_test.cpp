// Chat history in all the shapes that clients send, brought into the one that templates expect.
#include "transport/http/chat_messages.hpp"

#include <gtest/gtest.h>

#include "core/json.hpp"

namespace troupe::http {
namespace {

struct outcome {
  std::string messages;
  std::string tools;
  std::string param;
};

outcome read(const std::string& body) {
  const auto parsed = json::parse(body);
  EXPECT_TRUE(parsed) << body;
  field_reader fields(*parsed);
  chat_prompt out;
  read_messages(fields, out);
  read_tools(fields, out);
  return {out.messages_json, out.tools_json, fields.failure() ? fields.failure()->param : ""};
}

outcome read_one(const std::string& message) { return read("{\"messages\":[" + message + "]}"); }

TEST(chat_messages, content_is_a_string_however_it_was_sent) {
  EXPECT_EQ(read_one(R"({"role":"user","content":"a"})").messages, R"([{"role":"user","content":"a"}])");
  EXPECT_EQ(read_one(R"({"role":"user","content":[{"type":"text","text":"a"}]})").messages, R"([{"role":"user","content":"a"}])");
  EXPECT_EQ(read_one(R"({"role":"user","content":[{"type":"text","text":"a"},{"type":"text","text":"b"}]})").messages,
            R"([{"role":"user","content":"a\nb"}])");
  for (const char* empty : {R"({"role":"user","content":[]})", R"({"role":"user","content":null})", R"({"role":"user"})"}) {
    EXPECT_EQ(read_one(empty).messages, R"([{"role":"user","content":""}])") << "the turn is kept, and empty";
  }
}

TEST(chat_messages, parts_that_are_no_text_are_named) {
  EXPECT_EQ(
      read(
          R"({"messages":[{"role":"user"},{"role":"user","content":[{"type":"text","text":"a"},{"type":"image_url","image_url":{"url":"x"}}]}]})")
          .param,
      "messages[1].content[1]");
  for (const char* part : {"\"a\"", "null", "{}", R"({"type":"text"})", R"({"type":"text","text":null})", R"({"text":"a"})",
                           R"({"type":"input_audio","text":"a"})"}) {
    EXPECT_EQ(read_one(R"({"role":"user","content":[)" + std::string(part) + "]}").param, "messages[0].content[0]") << part;
  }
  EXPECT_EQ(read_one(R"({"role":"user","content":7})").param, "messages[0].content");
  EXPECT_EQ(read_one(R"({"role":"user","content":{"type":"text","text":"a"}})").param, "messages[0].content");
}

TEST(chat_messages, no_messages_are_refused) {
  for (const char* body : {"{}", R"({"messages":[]})", R"({"messages":null})", R"({"messages":"hi"})", R"({"messages":{}})"}) {
    EXPECT_EQ(read(body).param, "messages") << body;
  }
  EXPECT_EQ(read_one("\"hi\"").param, "messages[0]");
}

TEST(chat_messages, roles_are_checked_and_developer_becomes_system) {
  EXPECT_EQ(read_one(R"({"role":"developer","content":"a"})").messages, R"([{"role":"system","content":"a"}])");
  for (const char* role : {"\"\"", "\"root\"", "7", "null"}) {
    EXPECT_EQ(read_one("{\"content\":\"a\",\"role\":" + std::string(role) + "}").param, "messages[0].role") << role;
  }
  EXPECT_EQ(read_one(R"({"content":"a"})").param, "messages[0].role");
}

TEST(chat_messages, a_tool_call_loop_survives) {
  const auto got = read(R"({"messages":[{"role":"user","content":"2+2?"},
      {"role":"assistant","content":null,"refusal":null,"tool_calls":[{"id":"c1","type":"function","function":{"name":"add","arguments":"{\"a\": 2}"}}]},
      {"role":"tool","tool_call_id":"c1","name":"add","content":[{"type":"text","text":"4"}]}]})");
  EXPECT_EQ(got.param, "");
  EXPECT_EQ(
      got.messages,
      R"([{"role":"user","content":"2+2?"},)"
      R"({"role":"assistant","content":"","tool_calls":[{"id":"c1","type":"function","function":{"name":"add","arguments":{"a":2}}}]},)"
      R"({"role":"tool","content":"4","name":"add","tool_call_id":"c1"}])");
}

TEST(chat_messages, arguments_of_calls_are_objects_or_refused) {
  auto call = [](const std::string& arguments) {
    return read_one(R"({"role":"assistant","tool_calls":[{"function":{"name":"f","arguments":)" + arguments + "}}]}");
  };
  for (const char* empty : {"\"\"", "\" \"", "null", "{}", "\"{}\""}) {
    EXPECT_NE(call(empty).messages.find(R"("arguments":{})"), std::string::npos) << empty;
  }
  for (const char* bad : {"\"{\"", "\"[1]\"", "7", "[]", "\"\\\"text\\\"\""}) {
    EXPECT_EQ(call(bad).param, "messages[0].tool_calls[0].function.arguments") << bad;
  }
  EXPECT_EQ(read_one(R"({"role":"assistant","tool_calls":[{"id":"x"}]})").param, "messages[0].tool_calls[0]");
  EXPECT_EQ(read_one(R"({"role":"assistant","tool_calls":[7]})").param, "messages[0].tool_calls[0]");
  EXPECT_EQ(read_one(R"({"role":"assistant","tool_calls":7})").param, "messages[0].tool_calls");
}

TEST(chat_messages, an_empty_list_of_calls_is_dropped) {
  for (const char* calls : {"[]", "null"}) {
    EXPECT_EQ(read_one(R"({"role":"assistant","content":"a","tool_calls":)" + std::string(calls) + "}").messages,
              R"([{"role":"assistant","content":"a"}])");
  }
}

TEST(chat_messages, members_that_templates_do_not_know_are_left_out) {
  EXPECT_EQ(read_one(R"({"role":"assistant","content":"a","audio":{"id":1},"reasoning_content":"hm","weight":1})").messages,
            R"([{"role":"assistant","content":"a","reasoning_content":"hm"}])");
  EXPECT_EQ(read_one(R"({"role":"user","content":"a","name":7})").param, "messages[0].name");
}

TEST(chat_messages, tools_reach_the_template_unless_switched_off) {
  const std::string tools = R"([{"type":"function","function":{"name":"f","parameters":{"type":"object"}}}])";
  const std::string body = R"({"messages":[{"role":"user"}],"tools":)" + tools;
  EXPECT_EQ(read(body + "}").tools, tools);
  EXPECT_EQ(read(body + R"(,"tool_choice":"auto"})").tools, tools);
  EXPECT_EQ(read(body + R"(,"tool_choice":"none"})").tools, "");
  EXPECT_EQ(read(R"({"messages":[{"role":"user"}],"tools":[]})").tools, "");
  EXPECT_EQ(read(R"({"messages":[{"role":"user"}],"tools":[{}]})").param, "tools[0]");
  EXPECT_EQ(read(R"({"messages":[{"role":"user"}],"tools":{}})").param, "tools");
}

} // namespace
} // namespace troupe::http
