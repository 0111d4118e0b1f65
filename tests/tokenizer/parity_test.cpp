// Ids and texts against Hugging Face tokenizers (tests/fixtures/tokenizer/make_fixtures.py), for each kind of file that can hold a
// vocabulary.
#include "tests/tokenizer/fixture.hpp"
#include "tokenizer/detokenizer.hpp"

namespace troupe {
namespace {

using testing::ids;
using testing::json_fixture;
using testing::to_ids;

std::string stream(const std::shared_ptr<const tokenizer>& tokens, const ids& all) {
  incremental_detokenizer text(tokens, {});
  std::string out;
  for (const token_id id : all) out += text.push(id);
  return out + text.finish();
}

void check_cases(const std::shared_ptr<const tokenizer>& tokens, const value& fixture) {
  for (const value& item : fixture.find("cases")->as_array()) {
    const std::string& text = item.find("text")->as_string();
    SCOPED_TRACE(json::quote(text));
    const ids expected = to_ids(*item.find("ids"));
    EXPECT_EQ(tokens->encode(text), expected);
    const value& plain = *item.find("plain");
    EXPECT_EQ(tokens->encode(text, {.add_special_tokens = false, .parse_special = false}), plain.is_null() ? expected : to_ids(plain));
    EXPECT_EQ(tokens->decode(expected), item.find("back")->as_string());
    EXPECT_EQ(stream(tokens, expected), item.find("back")->as_string());
  }
}

class tokenizer_json_parity : public ::testing::TestWithParam<const char*> {};

TEST_P(tokenizer_json_parity, gives_the_ids_of_hugging_face) {
  const value fixture = json_fixture(GetParam());
  check_cases(testing::from_json(*fixture.find("tokenizer")), fixture);
}

INSTANTIATE_TEST_SUITE_P(families, tokenizer_json_parity,
                         ::testing::Values("llama3", "qwen2", "gpt2", "smollm2", "gpt4o", "tekken", "deepseek", "falcon", "nfkc", "bert",
                                           "metaspace", "llama2", "llama2_metaspace"),
                         [](const auto& chosen) { return std::string(chosen.param); });

struct gguf_case {
  const char* fixture;
  const char* pre;
  const char* bos; // put before texts
  const char* eos; // put behind texts
};

class gguf_parity : public ::testing::TestWithParam<gguf_case> {};

TEST_P(gguf_parity, gives_the_ids_of_hugging_face) {
  const auto [name, pre, bos, eos] = GetParam();
  const value fixture = json_fixture(name);
  const auto spec = testing::from_json(*fixture.find("tokenizer"));
  value metadata =
      testing::gguf_metadata(fixture, {{"model", "gpt2"}, {"pre", pre}, {"add_bos_token", *bos != '\0'}, {"add_eos_token", *eos != '\0'}});
  if (*bos != '\0') metadata.mutable_object().set("tokenizer.ggml.bos_token_id", value(*spec->find(bos)));
  if (*eos != '\0') metadata.mutable_object().set("tokenizer.ggml.eos_token_id", value(*spec->find(eos)));
  check_cases(tokenizer_from_gguf(metadata, "model.gguf"), fixture);
}

INSTANTIATE_TEST_SUITE_P(families, gguf_parity,
                         ::testing::Values(gguf_case{"gpt2", "gpt-2", "", ""}, gguf_case{"smollm2", "smollm", "", ""},
                                           gguf_case{"gpt4o", "gpt-4o", "", ""}, gguf_case{"tekken", "tekken", "<s>", "</s>"},
                                           gguf_case{"deepseek", "deepseek-v3", "", ""}, gguf_case{"falcon", "falcon", "", ""}),
                         [](const auto& chosen) { return std::string(chosen.param.fixture); });

// The flags of added tokens (lstrip, single_word, ..) have no place in GGUF: cases that need them are left out.
value without_flagged_tokens(value fixture) {
  value_array kept;
  for (const value& item : fixture.find("cases")->as_array()) {
    const std::string& text = item.find("text")->as_string();
    bool flagged = false;
    for (const char* token : {"<|wide|>", "<|word|>", "Token", "TOKEN", "token", "wrote"})
      flagged = flagged || text.find(token) != std::string::npos;
    if (!flagged) kept.push_back(item);
  }
  EXPECT_GT(kept.size(), 40U);
  fixture.mutable_object().set("cases", kept);
  return fixture;
}

TEST(gguf_parity, llama3_with_bos) {
  const value fixture = without_flagged_tokens(json_fixture("llama3"));
  value metadata = testing::gguf_metadata(fixture, {{"model", "gpt2"}, {"pre", "llama-bpe"}});
  metadata.mutable_object().set("tokenizer.ggml.bos_token_id", value(*testing::load_fixture("llama3")->find("<|begin_of_text|>")));
  check_cases(tokenizer_from_gguf(metadata, "model.gguf"), fixture);
}

TEST(gguf_parity, qwen2_composes_characters) {
  const value fixture = without_flagged_tokens(json_fixture("qwen2"));
  check_cases(tokenizer_from_gguf(testing::gguf_metadata(fixture, {{"model", "gpt2"}, {"pre", "qwen2"}}), "model.gguf"), fixture);
}

TEST(gguf_parity, sentencepiece_scores) {
  const value fixture = json_fixture("llama2");
  check_cases(
      tokenizer_from_gguf(testing::gguf_metadata(fixture, {{"model", "llama"}, {"bos_token_id", 1}, {"eos_token_id", 2}}), "model.gguf"),
      fixture);
}

TEST(sentencepiece_model_parity, gives_the_ids_of_hugging_face) {
  check_cases(tokenizer_from_sentencepiece(testing::read_fixture("llama2.model"), value(value_object{}), "tokenizer.model"),
              json_fixture("llama2"));
}

TEST(sentencepiece_model_parity, unigram_goes_through_the_library) {
  const auto tokens = tokenizer_from_sentencepiece(testing::read_fixture("unigram.model"), value(value_object{}), "tokenizer.model");
  const value fixture = json_fixture("unigram");
  for (const value& item : fixture.find("cases")->as_array()) {
    const ids expected = to_ids(*item.find("ids"));
    EXPECT_EQ(tokens->encode(item.find("text")->as_string(), {.add_special_tokens = false}), expected)
        << json::quote(item.find("text")->as_string());
  }
  const ids marked = tokens->encode("the</s>of", {.add_special_tokens = false});
  ids expected = tokens->encode("the", {.add_special_tokens = false});
  const ids behind = tokens->encode("of", {.add_special_tokens = false});
  expected.push_back(2);
  expected.insert(expected.end(), behind.begin(), behind.end());
  EXPECT_EQ(marked, expected);
}

TEST(stage_parity, every_stage_and_option_cuts_as_hugging_face_does) {
  const value fixture = json_fixture("stages");
  const value_array& texts = fixture.find("texts")->as_array();
  for (const value& entry : fixture.find("stages")->as_array()) {
    SCOPED_TRACE(json::dump(*entry.find("stage")));
    const std::string& part = entry.find("part")->as_string();
    value spec = *fixture.find("tokenizer");
    spec.mutable_object().set(part, *entry.find("stage"));
    const auto tokens = testing::from_json(spec);
    const value_array& expected = entry.find(part == "decoder" ? "back" : "ids")->as_array();
    for (std::size_t i = 0; i < expected.size(); ++i) {
      if (part == "decoder") {
        const ids all = to_ids(entry.find("tokens")->as_array()[i]);
        EXPECT_EQ(tokens->decode(all), expected[i].as_string());
        EXPECT_EQ(stream(tokens, all), expected[i].as_string());
      } else {
        const std::string& text = texts[i * (part == "normalizer" ? 1 : 3)].as_string();
        EXPECT_EQ(tokens->encode(text), to_ids(expected[i])) << json::quote(text);
      }
    }
  }
}

} // namespace
} // namespace troupe
