#include "apps/bench/workload.hpp"

#include <gtest/gtest.h>

#include <set>

#include "core/json.hpp"

namespace troupe::bench {
namespace {

workload_options options() {
  workload_options out;
  out.model = "m\"1";
  out.vocab_size = 50;
  out.input = {3, 6};
  out.output = {10, 12};
  out.seed = 4;
  return out;
}

value body(const planned_request& request) { return *json::parse(request.body); }

TEST(Range, TakesOneNumberOrTwoInOrder) {
  EXPECT_EQ(parse_range("128")->low, 128);
  EXPECT_EQ(parse_range("128")->high, 128);
  EXPECT_EQ(parse_range("64:256")->low, 64);
  EXPECT_EQ(parse_range("64:256")->high, 256);
  for (const char* bad : {"", ":", "0", "-1", "5:", ":5", "5:4", "5:6:7", "5 ", "x", "99999999999999999999"})
    EXPECT_FALSE(parse_range(bad)) << bad;
}

TEST(RandomWorkload, StaysWithinTheVocabularyAndTheRanges) {
  std::set<std::size_t> lengths;
  std::set<std::int64_t> outputs;
  for (const auto& request : random_workload(options(), 200)) {
    EXPECT_EQ(request.path, "/v1/completions");
    const auto parsed = body(request);
    EXPECT_EQ(parsed.find("model")->as_string(), "m\"1");
    EXPECT_TRUE(parsed.find("stream")->as_bool());
    EXPECT_TRUE(parsed.find("ignore_eos")->as_bool());
    EXPECT_TRUE(parsed.find("stream_options")->find("include_usage")->as_bool());
    const auto& prompt = parsed.find("prompt")->as_array();
    EXPECT_EQ(request.prompt_tokens, static_cast<std::int64_t>(prompt.size()));
    lengths.insert(prompt.size());
    outputs.insert(parsed.find("max_tokens")->as_int());
    for (const auto& id : prompt) {
      EXPECT_GE(id.as_int(), 0);
      EXPECT_LT(id.as_int(), 50);
    }
  }
  EXPECT_EQ(lengths, (std::set<std::size_t>{3, 4, 5, 6}));
  EXPECT_EQ(outputs, (std::set<std::int64_t>{10, 11, 12}));
}

TEST(RandomWorkload, SameSeedSameBodiesAndAnotherSeedOthers) {
  const auto bodies = [](std::uint64_t seed) {
    auto with = options();
    with.seed = seed;
    std::vector<std::string> out;
    for (const auto& request : random_workload(with, 20)) out.push_back(request.body);
    return out;
  };
  EXPECT_EQ(bodies(1), bodies(1));
  EXPECT_NE(bodies(1), bodies(2));
}

TEST(RandomWorkload, APrefixIsSharedByAllAndTheRestIsNot) {
  auto with = options();
  with.prefix_length = 40;
  with.input = {20, 20};
  std::set<std::string> prefixes, rests;
  for (const auto& request : random_workload(with, 10)) {
    const auto prompt = body(request).find("prompt")->as_array();
    ASSERT_EQ(prompt.size(), 60U);
    prefixes.insert(json::dump(value_array(prompt.begin(), prompt.begin() + 40)));
    rests.insert(json::dump(value_array(prompt.begin() + 40, prompt.end())));
  }
  EXPECT_EQ(prefixes.size(), 1U);
  EXPECT_EQ(rests.size(), 10U);
}

TEST(RandomWorkload, ChatSendsWordsAsAUserMessage) {
  auto with = options();
  with.target = endpoint::chat;
  with.prefix_length = 2;
  with.input = {5, 5};
  with.ignore_eos = false;
  const auto request = random_workload(with, 1)[0];
  EXPECT_EQ(request.path, "/v1/chat/completions");
  const auto parsed = body(request);
  EXPECT_EQ(parsed.find("ignore_eos"), nullptr);
  EXPECT_NE(parsed.find("max_completion_tokens"), nullptr);
  const auto& message = parsed.find("messages")->as_array().at(0);
  EXPECT_EQ(message.find("role")->as_string(), "user");
  const auto& text = message.find("content")->as_string();
  EXPECT_EQ(std::count(text.begin(), text.end(), ' '), 6);
}

TEST(FileWorkload, TextLinesGoRoundInOrder) {
  const auto requests = file_workload("one\r\n\ntwo", false, options(), 3);
  ASSERT_TRUE(requests);
  EXPECT_EQ(body((*requests)[0]).find("prompt")->as_string(), "one");
  EXPECT_EQ(body((*requests)[1]).find("prompt")->as_string(), "two");
  EXPECT_EQ(body((*requests)[2]).find("prompt")->as_string(), "one");
}

TEST(FileWorkload, JsonLinesMayCarryTheirOwnLength) {
  const auto requests = file_workload("{\"prompt\": \"a\", \"max_tokens\": 77}\n{\"prompt\": \"b\"}\n", true, options(), 2);
  ASSERT_TRUE(requests);
  EXPECT_EQ(body((*requests)[0]).find("max_tokens")->as_int(), 77);
  EXPECT_LE(body((*requests)[1]).find("max_tokens")->as_int(), 12);
}

TEST(FileWorkload, MessagesNeedTheChatEndpoint) {
  const std::string_view line = R"({"messages": [{"role": "system", "content": "s"}, {"role": "user", "content": "u"}]})";
  EXPECT_FALSE(file_workload(line, true, options(), 1));
  auto chat = options();
  chat.target = endpoint::chat;
  const auto requests = file_workload(line, true, chat, 1);
  ASSERT_TRUE(requests);
  EXPECT_EQ(body((*requests)[0]).find("messages")->as_array().size(), 2U);
}

TEST(FileWorkload, ABadLineIsNamed) {
  for (const char* bad :
       {"{", "[]", "{}", "{\"prompt\": 4}", "{\"prompt\": \"a\", \"max_tokens\": 0}", "{\"prompt\": \"a\", \"max_tokens\": 1.5}"}) {
    const auto requests = file_workload("{\"prompt\": \"fine\"}\n" + std::string(bad), true, options(), 1);
    ASSERT_FALSE(requests) << bad;
    EXPECT_EQ(requests.failure().message.rfind("line 2: ", 0), 0U) << requests.failure().message;
  }
  EXPECT_FALSE(file_workload("\n\n", false, options(), 1));
}

} // namespace
} // namespace troupe::bench
