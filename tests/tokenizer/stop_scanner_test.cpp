// Stop strings: nothing of one is ever sent, near misses are released once, cuts do not matter.
#include <random>

#include "tests/tokenizer/fixture.hpp"
#include "tokenizer/detokenizer.hpp"

namespace troupe {
namespace {

struct outcome {
  std::string text;
  std::string matched;
  friend bool operator==(const outcome&, const outcome&) = default;
  friend std::ostream& operator<<(std::ostream& out, const outcome& o) {
    return out << '"' << o.text << "\" stopped by \"" << o.matched << '"';
  }
};

outcome run(stop_scanner scanner, const std::vector<std::string>& parts) {
  outcome out;
  for (const std::string& part : parts) {
    stop_match match = scanner.push(part);
    out.text += match.text;
    if (match.stopped) {
      out.matched = match.matched;
      EXPECT_EQ(scanner.finish(), "");
      return out;
    }
  }
  out.text += scanner.finish();
  return out;
}

TEST(stop_scanner, a_stop_over_several_tokens_is_never_sent_in_part) {
  stop_scanner scanner({"efghijk"}, false);
  std::string sent;
  for (const char* part : {"abc", "de", "fg", "hi", "j"}) sent += scanner.push(part).text;
  EXPECT_EQ(sent, "abcd");
  const stop_match match = scanner.push("klm");
  EXPECT_TRUE(match.stopped);
  EXPECT_EQ(match.text, "");
  EXPECT_EQ(match.matched, "efghijk");
  EXPECT_EQ(scanner.finish(), "");
}

TEST(stop_scanner, a_near_miss_is_released_once_it_cannot_match) {
  stop_scanner scanner({"</tool>"}, false);
  EXPECT_EQ(scanner.push("x</to").text, "x");
  EXPECT_EQ(scanner.push("p").text, "</top");
  EXPECT_EQ(scanner.push("</too").text, "");
  EXPECT_EQ(scanner.push("</").text, "</too");
  EXPECT_EQ(scanner.finish(), "</");
  EXPECT_EQ(scanner.finish(), "");
}

TEST(stop_scanner, held_text_comes_out_at_the_end_of_the_sequence) { EXPECT_EQ(run({{"END"}, false}, {"abcEN"}), (outcome{"abcEN", ""})); }

TEST(stop_scanner, of_two_stops_the_one_that_ends_first_wins) {
  EXPECT_EQ(run({{"abc", "ab"}, false}, {"xxabcd"}), (outcome{"xx", "ab"}));
  EXPECT_EQ(run({{"abcd", "bc"}, false}, {"xabcd"}), (outcome{"xa", "bc"}));
  EXPECT_EQ(run({{"c", "abc"}, false}, {"xabcd"}), (outcome{"x", "abc"})) << "they end together: the longer one";
}

TEST(stop_scanner, a_stop_that_ends_inside_a_token_drops_the_rest_of_it) {
  EXPECT_EQ(run({{"\n\n"}, false}, {"one\n", "\ntwo"}), (outcome{"one", "\n\n"}));
}

TEST(stop_scanner, the_stop_string_stays_when_asked_for) {
  EXPECT_EQ(run({{"END"}, true}, {"abE", "NDxyz"}), (outcome{"abEND", "END"}));
  stop_scanner scanner({"END"}, true);
  EXPECT_EQ(scanner.push("abE").text, "abE") << "nothing needs to be held";
}

TEST(stop_scanner, unarmed_text_passes_and_takes_no_part_in_a_match) {
  stop_scanner scanner({"ab"}, false);
  EXPECT_EQ(scanner.push("xab", false).text, "xab");
  EXPECT_EQ(scanner.push("ya", false).text, "ya");
  stop_match match = scanner.push("b", true);
  EXPECT_FALSE(match.stopped);
  EXPECT_EQ(match.text, "b");
  match = scanner.push("ab", true);
  EXPECT_TRUE(match.stopped);
  EXPECT_EQ(match.text, "");
}

TEST(stop_scanner, repetitive_stops_and_characters_of_several_bytes) {
  EXPECT_EQ(run({{"aab"}, false}, {"a", "a", "a", "a", "b"}), (outcome{"aa", "aab"}));
  EXPECT_EQ(run({{"abab!"}, false}, {"ababab", "!"}), (outcome{"ab", "abab!"}));
  stop_scanner scanner({"é!"}, false);
  EXPECT_EQ(scanner.push("è").text, "è") << "the first byte is the same";
  EXPECT_EQ(scanner.push("é").text, "");
  EXPECT_EQ(scanner.push("?").text, "é?");
}

TEST(stop_scanner, none_and_empty_stops_hold_nothing) {
  EXPECT_EQ(run({{}, false}, {"a", "b"}), (outcome{"ab", ""}));
  EXPECT_EQ(run({{""}, false}, {"a", "b"}), (outcome{"ab", ""}));
}

TEST(stop_scanner, outcome_does_not_depend_on_the_cuts) {
  std::mt19937 random(11);
  const auto word = [&](std::size_t longest) {
    std::string out;
    for (std::size_t i = 1 + random() % longest; i > 0; --i) out += static_cast<char>('a' + random() % 2);
    return out;
  };
  for (int round = 0; round < 2000; ++round) {
    std::vector<std::string> stops;
    for (std::size_t i = 1 + random() % 3; i > 0; --i) stops.push_back(word(6));
    const std::string text = word(24);
    const bool include = random() % 2 == 0;
    std::vector<std::string> parts;
    for (std::size_t at = 0; at < text.size();) {
      const std::size_t size = 1 + random() % 4;
      parts.push_back(text.substr(at, size));
      at += size;
    }
    const outcome cut = run({stops, include}, parts);
    EXPECT_EQ(cut, run({stops, include}, {text}));
    // By definition: the first end of any stop; of those that end there, the longest.
    outcome expected{text, ""};
    for (std::size_t end = 1; end <= text.size() && expected.matched.empty(); ++end) {
      for (const std::string& stop : stops) {
        if (std::string_view(text).substr(0, end).ends_with(stop) && stop.size() > expected.matched.size()) expected.matched = stop;
      }
      if (!expected.matched.empty()) expected.text = text.substr(0, end - (include ? 0 : expected.matched.size()));
    }
    EXPECT_EQ(cut, expected);
  }
}

} // namespace
} // namespace troupe
