// Oniguruma patterns under PCRE2: what differs between the two is rewritten or refused.
#include "tokenizer/regex.hpp"

#include "tests/tokenizer/fixture.hpp"

namespace troupe {
namespace {

std::vector<std::string> matches(const char* pattern, std::string_view text) {
  std::vector<std::string> out;
  regex(pattern, "test").for_each(text, [&](std::size_t begin, std::size_t end) { out.emplace_back(text.substr(begin, end - begin)); });
  return out;
}

using ::testing::ElementsAre;
using ::testing::IsEmpty;

TEST(regex, blanks_are_white_space_only) {
  EXPECT_THAT(matches(R"(\s)", "a\u180eb"), IsEmpty()); // a blank to PCRE2 by itself
  EXPECT_THAT(matches(R"(\s)", "\u0085\u00a0\u3000\u200b\x1c"), ElementsAre("\u0085", "\u00a0", "\u3000"));
  EXPECT_THAT(matches(R"([^\s]+)", "a\u00a0b"), ElementsAre("a", "b"));
  EXPECT_THAT(matches(R"([\S]+)", "a b"), ElementsAre("a", "b"));
}

TEST(regex, words_hold_marks_and_connectors) { EXPECT_THAT(matches(R"(\w+)", "e\u0301_\u203f1-x"), ElementsAre("e\u0301_\u203f1", "x")); }

TEST(regex, scripts_are_scripts_not_their_extensions) {
  EXPECT_THAT(matches(R"(\p{Hiragana}+)", "\u3042\u30fc"), ElementsAre("\u3042")); // U+30FC has both kana in its extensions
  EXPECT_THAT(matches(R"(\p{^L}+)", "a1-b"), ElementsAre("1-"));
}

TEST(regex, an_interval_with_a_plus_is_repeated_not_possessive) {
  EXPECT_THAT(matches(R"(\p{N}{1,3}+)", "1234567"), ElementsAre("1234567"));
  EXPECT_THAT(matches(R"((?:ab){1,2}+b?)", "ababab"), ElementsAre("ababab"));
  EXPECT_THAT(matches(R"(a{,2}b)", "aaab"), ElementsAre("aab"));
}

TEST(regex, empty_matches_do_not_loop) { EXPECT_THAT(matches(R"(x*)", "axé"), ElementsAre("", "x", "")); }

TEST(regex, escapes) {
  EXPECT_THAT(matches(R"(\u00e9|\x{4E2D}|\x41)", "é中A"), ElementsAre("é", "中", "A"));
  EXPECT_THAT(matches(R"([\]\[\-\\]+)", "a[-]\\"), ElementsAre("[-]\\"));
  EXPECT_THAT(matches(R"(\bthe\b)", "the other the"), ElementsAre("the", "the"));
  EXPECT_THAT(matches("^b$", "a\nb\nc"), ElementsAre("b"));
  EXPECT_THAT(matches(".", "\n\r"), ElementsAre("\r"));
  EXPECT_THAT(matches(R"((?i:'s|'t))", "'S'ſ't"), ElementsAre("'S", "'ſ", "'t"));
}

TEST(regex, what_cannot_be_carried_over_is_refused) {
  for (const char* pattern :
       {R"(\h)",          R"(\R)",      R"(\X)",     R"(\K)",    R"(\G)",     R"(\1)",        R"(\C)",    R"([a[b]])", R"([a&&b])",
        R"([[:alpha:]])", R"((?<n>a))", R"((?m:a))", R"((?x)a)", R"(a(?i)b)", R"((*ACCEPT))", R"(a{2}?)", R"(a{x})",   R"(\p{NoSuchName})",
        R"(\p{)",         "(",          ")",         "[",        "[]",        "\\",           R"(\xFF)",  R"(\uD800)", R"(\W[\W])",
        "a{99999}",       "\xff"}) {
    EXPECT_THROW(regex(pattern, "test"), load_error) << pattern;
  }
  EXPECT_THROW(regex(std::string(100'000, 'a'), "test"), load_error);
  EXPECT_THROW(regex(std::string(100, '(') + std::string(100, ')'), "test"), load_error);
}

TEST(regex, runaway_backtracking_ends) {
  const std::string text = std::string(40, 'a') + "b";
  EXPECT_THAT(matches("(?:a+)+$x", text), IsEmpty()); // exponential if it were let run
}

} // namespace
} // namespace troupe
