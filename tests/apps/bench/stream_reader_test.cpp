#include "apps/bench/stream_reader.hpp"

#include <gtest/gtest.h>

namespace troupe::bench {
namespace {

TEST(StreamReader, CountsACompletionAndTrustsTheServersUsage) {
  request_record record;
  record.prompt_tokens = 5;
  stream_reader reader(record);
  reader.event(R"({"choices":[{"index":0,"text":"a"}],"usage":null})", 1.0);
  reader.event(R"({"choices":[{"index":0,"text":"bc"}]})", 1.5);
  reader.event(R"({"choices":[{"index":0,"text":"","finish_reason":"length"}]})", 1.75);
  reader.event(R"({"choices":[],"usage":{"prompt_tokens":6,"completion_tokens":4}})", 1.75);
  reader.event("[DONE]", 1.8);
  reader.end(2.0);
  EXPECT_EQ(record.failure, "");
  EXPECT_EQ(record.first.value(), 1.0);
  EXPECT_EQ(record.last, 1.5);
  EXPECT_EQ(record.ended, 2.0);
  EXPECT_EQ(record.gaps, std::vector<double>{0.5});
  EXPECT_EQ(record.prompt_tokens, 6);
  EXPECT_EQ(record.output_tokens, 4);
}

TEST(StreamReader, AChatsRoleEventIsNoFirstToken) {
  request_record record;
  stream_reader reader(record);
  reader.event(R"({"choices":[{"delta":{"role":"assistant","content":""}}]})", 0.1);
  EXPECT_FALSE(record.first);
  reader.event(R"({"choices":[{"delta":{"content":"x"}}]})", 0.4);
  EXPECT_EQ(record.first.value(), 0.4);
}

TEST(StreamReader, WithoutUsageTheEventsWithOutputAreCounted) {
  request_record record;
  stream_reader reader(record);
  for (int i = 0; i < 3; ++i) reader.event(R"({"choices":[{"text":"x"}]})", i);
  reader.event("[DONE]", 3);
  reader.end(3);
  EXPECT_EQ(record.output_tokens, 3);
}

TEST(StreamReader, AnErrorEventFailsTheRequestAndWhatFollowsIsIgnored) {
  request_record record;
  stream_reader reader(record);
  reader.event(R"({"choices":[{"text":"x"}]})", 1);
  reader.event(R"({"error":{"message":"device lost","code":500}})", 2);
  reader.event(R"({"choices":[{"text":"y"}]})", 3);
  reader.event("[DONE]", 3);
  reader.end(4);
  EXPECT_EQ(record.failure, "error event");
  EXPECT_EQ(record.detail, "device lost");
  EXPECT_EQ(record.last, 1);
}

TEST(StreamReader, AStreamWithoutItsEndMarkWasCutOff) {
  request_record record;
  stream_reader reader(record);
  reader.event(R"({"choices":[{"text":"x"}]})", 1);
  reader.end(2);
  EXPECT_EQ(record.failure, "cut off");
}

TEST(StreamReader, AnythingThatIsNoObjectIsMalformed) {
  for (const char* bad : {"", "{", "[]", "3", "null", "{\"choices\":}"}) {
    request_record record;
    stream_reader reader(record);
    reader.event(bad, 1);
    EXPECT_EQ(record.failure, "malformed event") << bad;
  }
}

TEST(StreamReader, OddShapesInsideAnObjectAreHarmless) {
  request_record record;
  stream_reader reader(record);
  for (const char* odd : {"{}", R"({"choices":{}})", R"({"choices":[1,null,[]]})", R"({"choices":[{"delta":4,"text":7}]})",
                          R"({"usage":[]})", R"({"usage":{"prompt_tokens":"x","completion_tokens":-3}})", R"({"error":null})"}) {
    reader.event(odd, 1);
  }
  reader.event("[DONE]", 1);
  reader.end(1);
  EXPECT_EQ(record.failure, "");
  EXPECT_EQ(record.output_tokens, 0);
}

TEST(ErrorMessage, IsShortPrintableText) {
  EXPECT_EQ(error_message(R"({"error":{"message":"no\nroom"}})"), "no room");
  EXPECT_EQ(error_message(R"({"message":"plain"})"), "plain");
  EXPECT_EQ(error_message("<html>\x1b[2J"), "<html> [2J");
  EXPECT_EQ(error_message(std::string(5000, 'x')).size(), 200U);
}

} // namespace
} // namespace troupe::bench
