// Incremental text: whole characters, each once, no prompt text, whole and streamed alike.
#include "tokenizer/detokenizer.hpp"

#include <random>

#include "tests/tokenizer/fixture.hpp"

namespace troupe {
namespace {

using testing::ids;

std::string stream(const std::shared_ptr<const tokenizer>& tokens, const ids& prompt, const ids& generated, bool skip_special = true) {
  incremental_detokenizer text(tokens, prompt, skip_special);
  std::string out;
  for (const token_id id : generated) {
    const std::string part = text.push(id);
    EXPECT_TRUE(json::parse(json::quote(part)).has_value());
    EXPECT_EQ(part.find('\xFF'), std::string::npos);
    out += part;
  }
  return out + text.finish();
}

// The tokens of single bytes in the Llama-2 kind's vocabulary.
ids bytes(const tokenizer& tokens, std::string_view raw) {
  ids out;
  for (const char c : raw) {
    static constexpr char digits[] = "0123456789ABCDEF";
    const auto b = static_cast<unsigned char>(c);
    out.push_back(*tokens.find({std::string("<0x") + digits[b >> 4] + digits[b & 15] + ">"}));
  }
  return out;
}

ids join(std::initializer_list<ids> parts) {
  ids out;
  for (const ids& part : parts) out.insert(out.end(), part.begin(), part.end());
  return out;
}

TEST(incremental_detokenizer, holds_a_character_until_it_is_whole) {
  const auto tokens = testing::load_fixture("llama2");
  incremental_detokenizer text(tokens, {});
  const ids emoji = bytes(*tokens, "\xF0\x9F\x98\x80");
  EXPECT_EQ(text.push(emoji[0]), "");
  EXPECT_EQ(text.push(emoji[1]), "");
  EXPECT_EQ(text.push(emoji[2]), "");
  EXPECT_EQ(text.push(emoji[3]), "\xF0\x9F\x98\x80");
  EXPECT_EQ(text.finish(), "");
}

TEST(incremental_detokenizer, unfinished_character_at_the_end_becomes_one_replacement) {
  const auto tokens = testing::load_fixture("llama2");
  incremental_detokenizer text(tokens, {});
  for (const token_id id : bytes(*tokens, "\xE4\xB8")) EXPECT_EQ(text.push(id), "");
  EXPECT_EQ(text.finish(), "\uFFFD");
  EXPECT_EQ(text.finish(), "");
}

TEST(incremental_detokenizer, prompt_that_ends_inside_a_character_never_leaks) {
  const auto tokens = testing::load_fixture("llama2");
  const ids secret = tokens->encode("the secret prompt ");
  for (const std::size_t cut : {1U, 2U, 3U}) {
    const std::string emoji = "\xF0\x9F\x98\x80";
    const ids prompt = join({secret, bytes(*tokens, emoji.substr(0, cut))});
    // Finished by the output: the character is the output's.
    EXPECT_EQ(stream(tokens, prompt, join({bytes(*tokens, emoji.substr(cut)), bytes(*tokens, "ok")})), emoji + "ok");
    // Never finished: the prompt's bytes are no output.
    EXPECT_EQ(stream(tokens, prompt, bytes(*tokens, "ok")), "ok");
    EXPECT_EQ(stream(tokens, prompt, {}), "");
  }
  // Partly the output's and never finished: one replacement for it.
  EXPECT_EQ(stream(tokens, join({secret, bytes(*tokens, "\xF0\x9F")}), join({bytes(*tokens, "\x98"), bytes(*tokens, "x")})), "\uFFFDx");
  EXPECT_EQ(stream(tokens, join({secret, bytes(*tokens, "\xF0\x9F")}), bytes(*tokens, "\x98")), "\uFFFD");
}

TEST(incremental_detokenizer, prompt_tail_that_begins_inside_a_character_does_no_harm) {
  const auto tokens = testing::load_fixture("llama2");
  EXPECT_EQ(stream(tokens, join({bytes(*tokens, "\x98\x80"), tokens->encode("hi", {.add_special_tokens = false})}), bytes(*tokens, "!")),
            "!");
}

TEST(incremental_detokenizer, leading_blank_goes_only_where_generated_text_begins_the_whole) {
  const auto tokens = testing::load_fixture("llama2");
  const ids the = tokens->encode("the", {.add_special_tokens = false});
  EXPECT_EQ(stream(tokens, {}, the), "the");
  EXPECT_EQ(stream(tokens, {*tokens->find("<s>")}, the), "the") << "a prompt without text";
  EXPECT_EQ(stream(tokens, the, the), " the") << "behind other words";
  EXPECT_EQ(stream(tokens, {}, join({{*tokens->find("▁")}, the})), " the") << "one blank goes, not two";
}

TEST(incremental_detokenizer, control_tokens_are_left_out_or_shown) {
  const auto tokens = testing::load_fixture("llama3");
  const ids all = tokens->encode("hi<|eot_id|>there", {.add_special_tokens = false});
  EXPECT_EQ(stream(tokens, {}, all), "hithere");
  EXPECT_EQ(stream(tokens, {}, all, false), "hi<|eot_id|>there");
  EXPECT_EQ(tokens->decode(all), "hithere");
  EXPECT_EQ(tokens->decode(all, false), "hi<|eot_id|>there");
}

TEST(incremental_detokenizer, unknown_ids_give_nothing) {
  const auto tokens = testing::load_fixture("gpt2");
  EXPECT_EQ(stream(tokens, {}, {-1, 1 << 30, tokens->vocab_size()}), "");
  EXPECT_EQ(tokens->decode(ids{-5, 1 << 30}), "");
  EXPECT_EQ(tokens->token_bytes(-1), "");
  EXPECT_EQ(tokens->first_bytes(tokens->vocab_size()), "");
}

// Any ids, as a hot sampler may draw them: valid UTF-8, and the same streamed and whole.
TEST(incremental_detokenizer, random_ids_give_valid_text_and_the_same_as_whole) {
  std::mt19937 random(3);
  for (const char* name : {"llama2", "llama2_metaspace", "metaspace", "gpt2", "bert", "llama3"}) {
    const auto tokens = testing::load_fixture(name);
    for (int round = 0; round < 200; ++round) {
      ids all;
      for (std::size_t i = random() % 40; i > 0; --i)
        all.push_back(static_cast<token_id>(random() % static_cast<unsigned>(tokens->vocab_size())));
      for (const bool skip : {true, false}) {
        const std::string whole = tokens->decode(all, skip);
        EXPECT_EQ(stream(tokens, {}, all, skip), whole) << name;
        EXPECT_TRUE(json::parse("\"" + json::quote(whole).substr(1)).has_value());
      }
    }
  }
}

// Maximal subparts, as Python's bytes.decode(errors="replace") has it.
TEST(decode, ill_formed_bytes_become_replacements_as_in_python) {
  const auto tokens = testing::load_fixture("llama2");
  const std::pair<const char*, const char*> cases[] = {
      {"\xE2\x82", "\uFFFD"},
      {"a\xE2\x82z", "a\uFFFDz"},
      {"\xFF\xFE", "\uFFFD\uFFFD"},
      {"\xC0\xAF", "\uFFFD\uFFFD"},
      {"\xED\xA0\x80", "\uFFFD\uFFFD\uFFFD"},
      {"\xF4\x90\x80\x80", "\uFFFD\uFFFD\uFFFD\uFFFD"},
      {"\xF0\x9F\x98", "\uFFFD"},
      {"\xF0\x9F\x98\xF0\x9F\x98\x80", "\uFFFD\xF0\x9F\x98\x80"},
      {"\x80", "\uFFFD"},
      {"\xE4\xB8\xAD\xE4", "中\uFFFD"},
  };
  for (const auto& [raw, text] : cases) {
    EXPECT_EQ(tokens->decode(bytes(*tokens, raw)), text);
    EXPECT_EQ(stream(tokens, {}, bytes(*tokens, raw)), text);
  }
}

TEST(encode, input_that_is_no_utf8_is_read_with_replacements) {
  for (const char* name : {"llama2", "gpt2", "bert", "falcon", "qwen2"}) {
    const auto tokens = testing::load_fixture(name);
    EXPECT_EQ(tokens->encode("a\xFF\xE2\x82z\xED\xA0\x80"), tokens->encode("a\uFFFD\uFFFDz\uFFFD\uFFFD\uFFFD")) << name;
    EXPECT_EQ(tokens->encode(std::string_view("\xB0\xA1\xC4\xE3\xBA\xC3", 6)).size() > 0, true) << name; // GBK
  }
}

} // namespace
} // namespace troupe
