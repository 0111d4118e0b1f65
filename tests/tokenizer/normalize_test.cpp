// Normalisation shows in the ids: composed and decomposed text, compatibility characters, marks alone.
#include "tests/tokenizer/fixture.hpp"
#include "tokenizer/unicode.hpp"

namespace troupe {
namespace {

TEST(normalisation, composed_and_decomposed_text_give_equal_ids_under_nfc) {
  const auto tokens = testing::load_fixture("qwen2");
  EXPECT_EQ(tokens->encode("caf\u00e9 \u00fc"), tokens->encode("cafe\u0301 u\u0308"));
  EXPECT_NE(testing::load_fixture("gpt2")->encode("caf\u00e9"), testing::load_fixture("gpt2")->encode("cafe\u0301"))
      << "no normaliser, no equality";
}

TEST(normalisation, compatibility_characters_are_taken_apart_under_nfkc) {
  const auto tokens = testing::load_fixture("nfkc");
  EXPECT_EQ(tokens->encode("½"), tokens->encode("1\u20442"));
  EXPECT_EQ(tokens->encode("ﬁ ｆｕｌｌ"), tokens->encode("fi full"));
}

TEST(normalisation, accents_and_case_go_under_a_bert_kind) {
  const auto tokens = testing::load_fixture("bert");
  EXPECT_EQ(tokens->encode("ÉTÉ Ünïcode"), tokens->encode("ete unicode"));
}

TEST(normalisation, marks_alone_survive_a_round_trip) {
  for (const char* name : {"qwen2", "llama3", "gpt4o", "deepseek"}) {
    const auto tokens = testing::load_fixture(name);
    const std::string marks = "\u0301\u0302\u0303 \u0e31\u0e34";
    EXPECT_EQ(tokens->decode(tokens->encode(marks)), marks) << name;
  }
}

TEST(unicode, lower_case_is_the_full_one) {
  EXPECT_EQ(unicode::to_lower("ÀΣ\u0130I"), "àσi\u0307i"); // no final sigma: the mapping looks at no neighbours
}

TEST(unicode, classes) {
  EXPECT_TRUE(unicode::is_white_space(0x3000) && unicode::is_white_space(0x85) && !unicode::is_white_space(0x200B) &&
              !unicode::is_white_space(0x180E));
  EXPECT_TRUE(unicode::is_numeric(0xBD) && unicode::is_numeric(0x2167) && !unicode::is_numeric('a'));
  EXPECT_TRUE(unicode::is_punctuation('$') && unicode::is_punctuation(0x3002) && !unicode::is_punctuation(0x20AC));
  EXPECT_TRUE(unicode::is_word(0x301) && unicode::is_word('_') && unicode::is_word(0x200D) && !unicode::is_word('-'));
}

} // namespace
} // namespace troupe
