// The template language against Jinja2 itself: tests/fixtures/templates/make_fixtures.py wrote what Jinja2 makes of each case.
#include "tokenizer/chat_template.hpp"

#include <gtest/gtest.h>

#include <fstream>
#include <sstream>

#include "core/json.hpp"

namespace troupe {
namespace {

const std::string kFixtures = std::string(TROUPE_SOURCE_DIR) + "/tests/fixtures/templates/";

std::string read_file(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  EXPECT_TRUE(in) << path;
  std::stringstream content;
  content << in.rdbuf();
  return content.str();
}

value read_json(const std::string& path) {
  auto parsed = json::parse(read_file(path));
  EXPECT_TRUE(parsed.has_value()) << path;
  return parsed ? *parsed : value();
}

// What a case came to: the text, or the error's message with `failed` set. A template that does not load counts as an error.
struct outcome {
  bool failed = false;
  std::string text;
};

outcome render(const std::string& source, const value& variables, std::int64_t now) {
  try {
    auto text = chat_template(source, "test").render(variables, now);
    if (text) return {false, *text};
    EXPECT_EQ(text.failure().kind, error_kind::invalid_request);
    EXPECT_EQ(text.failure().param, "messages");
    return {true, text.failure().message};
  } catch (const load_error& e) {
    return {true, e.what()};
  }
}

// Compares and returns whether it fits.
bool expect_case(const value& expected, const outcome& actual, const std::string& what) {
  const bool should_fail = expected.find("error") != nullptr;
  EXPECT_EQ(actual.failed, should_fail) << what << "\n gave: " << actual.text;
  if (actual.failed != should_fail) return false;
  const value* text = expected.find(should_fail ? "raised" : "expected");
  if (text != nullptr) {
    EXPECT_EQ(actual.text, text->as_string()) << what;
  }
  return text == nullptr || actual.text == text->as_string();
}

TEST(ChatTemplateReference, ExpressionsAndStatementsGiveWhatJinja2Gives) {
  const value fixture = read_json(kFixtures + "expressions.json");
  const auto& cases = fixture.find("cases")->as_array();
  ASSERT_GT(cases.size(), 1000U);
  std::size_t wrong = 0;
  for (const value& c : cases) {
    const std::string& source = c.find("source")->as_string();
    wrong += expect_case(c, render(source, *fixture.find("variables"), fixture.find("now")->as_int()), source) ? 0 : 1;
  }
  EXPECT_EQ(wrong, 0U);
}

TEST(ChatTemplateReference, ChatsGiveWhatJinja2Gives) {
  const value fixture = read_json(kFixtures + "chats.json");
  const auto& cases = fixture.find("cases")->as_array();
  ASSERT_GT(cases.size(), 200U);
  for (const value& c : cases) {
    const std::string& name = c.find("template")->as_string();
    value variables = *fixture.find("conversations")->find(c.find("conversation")->as_string());
    for (const auto& [key, token] : fixture.find("tokens")->as_object().entries()) variables.mutable_object().set(key, token);
    expect_case(c, render(read_file(kFixtures + "chat/" + name), variables, fixture.find("now")->as_int()),
                name + " / " + c.find("conversation")->as_string());
  }
}

} // namespace
} // namespace troupe
