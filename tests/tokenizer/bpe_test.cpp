// Merging: order, unknown characters, both spellings of merges, and long words in near-linear time.
#include <ctime>
#include <random>

#include "tests/tokenizer/fixture.hpp"
#include "tokenizer/bpe.hpp"

namespace troupe {
namespace {

using ::testing::ElementsAre;
using testing::ids;
using testing::parse_json;

// The definition itself: the lowest rank, leftmost, again and again.
ids merge_by_definition(ids symbols, const std::vector<merge_rule>& merges) {
  for (;;) {
    std::size_t best = merges.size(), at = 0;
    for (std::size_t i = 0; i + 1 < symbols.size(); ++i) {
      for (std::size_t rank = 0; rank < best; ++rank) {
        if (merges[rank].left == symbols[i] && merges[rank].right == symbols[i + 1]) {
          best = rank;
          at = i;
          break;
        }
      }
    }
    if (best == merges.size()) return symbols;
    symbols[at] = merges[best].merged;
    symbols.erase(symbols.begin() + static_cast<std::ptrdiff_t>(at) + 1);
  }
}

TEST(bpe, short_and_long_words_merge_as_the_definition_says) {
  std::mt19937 random(7);
  for (int round = 0; round < 60; ++round) {
    std::vector<std::string> texts{"a", "b", "c"};
    std::vector<merge_rule> merges;
    while (texts.size() < 30) {
      const auto pick = [&] { return static_cast<token_id>(random() % texts.size()); };
      const token_id left = pick(), right = pick();
      const std::string merged = texts[static_cast<std::size_t>(left)] + texts[static_cast<std::size_t>(right)];
      if (merged.size() > 9 || std::find(texts.begin(), texts.end(), merged) != texts.end()) continue;
      merges.push_back({left, right, static_cast<token_id>(texts.size())});
      texts.push_back(merged);
    }
    std::shuffle(merges.begin(), merges.end(), random);
    text_index index(texts.size());
    for (std::size_t i = 0; i < texts.size(); ++i) index.insert(texts[i], static_cast<token_id>(i));
    const bpe_model model(index, merges, {});
    const auto work = bpe_model::make_workspace();
    for (const std::size_t length : {1U, 2U, 3U, 10U, 31U, 32U, 33U, 34U, 100U, 300U}) {
      std::string word;
      ids symbols, found;
      for (std::size_t i = 0; i < length; ++i) {
        symbols.push_back(static_cast<token_id>(random() % 3));
        word += texts[static_cast<std::size_t>(symbols.back())];
      }
      model.encode(word, *work, found);
      EXPECT_EQ(found, merge_by_definition(symbols, merges)) << word;
    }
  }
}

std::shared_ptr<const tokenizer> tiny(const char* options, const char* merges = R"([["a", "b"], ["ab", "c"]])") {
  return testing::from_json(
      parse_json(std::string(R"({"model": {"type": "BPE", "vocab": {"<unk>": 0, "a": 1, "b": 2, "c": 3, "ab": 4, "abc": 5,
      "<0xC3>": 6, "<0xA9>": 7, "é": 8}, "merges": )") +
                 merges + options + "}}"));
}

TEST(bpe, unknown_characters_vanish_without_an_unknown_token) { EXPECT_THAT(tiny("")->encode("axb"), ElementsAre(4)); }

TEST(bpe, unknown_characters_each_give_a_token_or_one_for_the_run) {
  EXPECT_THAT(tiny(R"(, "unk_token": "<unk>")")->encode("axyb"), ElementsAre(1, 0, 0, 2));
  EXPECT_THAT(tiny(R"(, "unk_token": "<unk>", "fuse_unk": true)")->encode("axybz"), ElementsAre(1, 0, 2, 0));
}

TEST(bpe, byte_fallback_takes_whole_characters_or_none) {
  EXPECT_THAT(tiny(R"(, "unk_token": "<unk>", "byte_fallback": true)")->encode("a\xC3\xA9\xC3\xA8"), ElementsAre(1, 8, 0))
      << "<0xA8> is missing";
}

TEST(bpe, a_whole_word_of_the_vocabulary_needs_no_merges_when_they_are_to_be_ignored) {
  EXPECT_THAT(tiny("", R"([["a", "b"]])")->encode("abc"), ElementsAre(4, 3));
  EXPECT_THAT(tiny(R"(, "ignore_merges": true)", R"([["a", "b"]])")->encode("abc"), ElementsAre(5));
}

TEST(bpe, merges_as_strings_and_as_pairs_give_the_same_ids) {
  for (const char* name : {"llama3", "llama2", "bert"}) {
    const value fixture = testing::json_fixture(name);
    value spec = *fixture.find("tokenizer");
    value model = *spec.find("model");
    value_array strings;
    for (const value& pair : model.find("merges")->as_array())
      strings.emplace_back(pair.as_array()[0].as_string() + " " + pair.as_array()[1].as_string());
    model.mutable_object().set("merges", strings);
    spec.mutable_object().set("model", model);
    const auto as_pairs = testing::load_fixture(name);
    const auto as_strings = testing::from_json(spec);
    for (const value& item : fixture.find("cases")->as_array()) {
      EXPECT_EQ(as_pairs->encode(item.find("text")->as_string()), as_strings->encode(item.find("text")->as_string()));
    }
  }
}

TEST(bpe, parts_with_blanks_of_their_own) {
  // Pairs may hold ASCII spaces; strings are cut at the ASCII space alone, so no-break spaces are part of a token.
  const auto pairs = testing::from_json(
      parse_json(R"({"model": {"vocab": {"a": 0, " ": 1, " a": 2, " a a": 3, "a a": 4}, "merges": [[" ", "a"], ["a", " a"]]}})"));
  EXPECT_THAT(pairs->encode("a a"), ElementsAre(4));
  const auto breaks =
      testing::from_json(parse_json("{\"model\": {\"vocab\": {\"\u00a0\": 0, \"\u00a0\u00a0\": 1}, \"merges\": [\"\u00a0 \u00a0\"]}}"));
  EXPECT_THAT(breaks->encode("\u00a0\u00a0\u00a0"), ElementsAre(1, 0));
}

// One message of one character class, without a break: peers overflowed their stacks or took quadratic time.
class long_runs : public ::testing::TestWithParam<const char*> {};

TEST_P(long_runs, take_near_linear_time_and_no_stack) {
  const auto tokens = testing::load_fixture(GetParam());
  const auto seconds = [&](const std::string& text) { // of the processor: other programs' work does not count
    const std::clock_t start = std::clock();
    const ids all = tokens->encode(text, {.add_special_tokens = false});
    EXPECT_FALSE(all.empty());
    return static_cast<double>(std::clock() - start) / CLOCKS_PER_SEC;
  };
  for (const std::string unit : {"a", "Z", "ab", "7", " ", "\n", "!", "中", "\xCC\x81", "\xF0\x9F\x98\x80", "aB1 "}) {
    std::string text;
    while (text.size() < 131072 * unit.size()) text += unit;
    EXPECT_LT(seconds(text), 10.0) << json::quote(unit); // quadratic time would be minutes
    EXPECT_LT(seconds(" " + text + "x"), 10.0) << json::quote(unit);
  }
  const std::string letters(131072, 'a');
  EXPECT_EQ(tokens->decode(tokens->encode(letters, {.add_special_tokens = false})), letters);
}

INSTANTIATE_TEST_SUITE_P(families, long_runs, ::testing::Values("gpt4o", "deepseek", "qwen2", "llama3", "falcon", "llama2"),
                         [](const auto& chosen) { return std::string(chosen.param); });

} // namespace
} // namespace troupe
