#include "core/json.hpp"

#include <gtest/gtest.h>

#include <string>

namespace troupe {
namespace {

TEST(Json, RoundTripsEveryKindAndKeepsMemberOrder) {
  const std::string text = R"({"z":[1,-2,3.5,true,false,null,"a\"b\\c\n"],"a":{"b":{}}})";
  auto parsed = json::parse(text);
  ASSERT_TRUE(parsed) << parsed.failure().message;
  EXPECT_EQ(json::dump(*parsed), text);
}

TEST(Json, RefusesWhatTheStandardRefuses) {
  for (const char* bad :
       {"", "{", "[1,]", "{\"a\":1,}", "NaN", "Infinity", "01", "1 2", "'a'", "\"\\ud800\"", "\"\xff\"", "1e999", "[1", "nul"}) {
    auto parsed = json::parse(bad);
    ASSERT_FALSE(parsed) << bad;
    EXPECT_EQ(parsed.failure().kind, error_kind::invalid_request);
  }
}

TEST(Json, ErrorsHoldNoBytesOfTheInput) {
  auto parsed = json::parse("{\"a\": secret\xff}");
  ASSERT_FALSE(parsed);
  EXPECT_EQ(parsed.failure().message.find("secret"), std::string::npos);
  EXPECT_NE(parsed.failure().message.find("byte"), std::string::npos);
}

TEST(Json, LimitsHoldForDepthAndCount) {
  const std::string deep = std::string(1000, '[') + std::string(1000, ']');
  EXPECT_FALSE(json::parse(deep));
  EXPECT_TRUE(json::parse(deep, {2000, 10000}));
  EXPECT_TRUE(json::parse("[1,2,3,4]", {8, 12}));
  EXPECT_FALSE(json::parse("[1,2,3,4]", {8, 11}));
  EXPECT_FALSE(json::parse("[{},{},{}]", {8, 20})) << "containers cost more than numbers";
}

TEST(Json, ALargeIntegerBecomesADoubleAndARepeatedKeyTakesTheLast) {
  auto parsed = json::parse(R"({"big":18446744073709551615,"x":1,"x":2})");
  ASSERT_TRUE(parsed);
  EXPECT_TRUE(parsed->find("big")->is_double());
  EXPECT_EQ(parsed->find("x")->as_int(), 2);
}

TEST(Json, BytesThatAreNoUtf8ComeOutAsReplacementCharacters) { EXPECT_EQ(json::quote("a\xff"), "\"a\xEF\xBF\xBD\""); }

TEST(Value, CopiesShareUntilWritten) {
  value a = value(value_array{value(1)});
  value b = a;
  b.mutable_array().push_back(value(2));
  EXPECT_EQ(a.as_array().size(), 1U);
  EXPECT_EQ(b.as_array().size(), 2U);
}

TEST(Value, ManyMembersAreFoundInOrder) {
  value_object o;
  for (int i = 0; i < 100; ++i) o.set("k" + std::to_string(i), value(i));
  o.set("k50", value(-1));
  EXPECT_EQ(o.size(), 100U);
  EXPECT_EQ(o.find("k50")->as_int(), -1);
  EXPECT_EQ(o.entries()[99].first, "k99");
  EXPECT_EQ(o.find("k100"), nullptr);
}

} // namespace
} // namespace troupe
