#include "apps/bench/sse_parser.hpp"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace troupe::bench {
namespace {

std::vector<std::string> parse(std::string_view text, std::size_t piece) {
  std::vector<std::string> events;
  sse_parser parser([&](std::string_view data) { events.emplace_back(data); });
  for (std::size_t at = 0; at < text.size(); at += piece) EXPECT_TRUE(parser.feed(text.substr(at, piece)));
  return events;
}

TEST(SseParser, AnySplitOfTheStreamGivesTheSameEvents) {
  const std::string text =
      "\xef\xbb\xbf"
      "data: {\"a\": 1}\n\n"
      ": a comment\n\n"
      "data:no blank\r\n\r\n"
      "event: x\nid: 3\ndata: two\rdata:  lines\r\r"
      "data\n\n"
      "retry: 5\n\n"
      "database: no field of ours\n\n"
      "data: \xc3\xa9\n\n"
      "data: [DONE]\n\n"
      "data: cut off\n";
  const std::vector<std::string> expected = {"{\"a\": 1}", "no blank", "two\n lines", "", "\xc3\xa9", "[DONE]"};
  for (std::size_t piece = 1; piece <= text.size(); ++piece) EXPECT_EQ(parse(text, piece), expected) << piece;
}

TEST(SseParser, AnEndlessEventIsRefusedAtItsLimit) {
  int events = 0;
  sse_parser parser([&](std::string_view) { ++events; }, 64);
  EXPECT_TRUE(parser.feed("data: " + std::string(58, 'x')));
  EXPECT_FALSE(parser.feed("y"));
  EXPECT_FALSE(parser.feed("\n\n"));
  EXPECT_EQ(events, 0);
}

TEST(SseParser, ManyDataLinesAreOneEventAgainstTheLimit) {
  sse_parser parser([](std::string_view) {}, 64);
  bool fits = true;
  for (int i = 0; i < 100 && fits; ++i) fits = parser.feed("data: 12345\n");
  EXPECT_FALSE(fits);
}

} // namespace
} // namespace troupe::bench
