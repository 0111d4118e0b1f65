// GGUF vocabularies: BOS rules, kinds of tokens, and metadata that cannot be used.
#include "tests/tokenizer/fixture.hpp"

namespace troupe {
namespace {

using testing::ids;
using testing::json_fixture;

value llama3_metadata() {
  value metadata = testing::gguf_metadata(json_fixture("llama3"), {{"model", "gpt2"}, {"pre", "llama-bpe"}});
  metadata.mutable_object().set("tokenizer.ggml.bos_token_id", value(*testing::load_fixture("llama3")->find("<|begin_of_text|>")));
  return metadata;
}

value with(value metadata, const char* key, const value& item) {
  metadata.mutable_object().set(std::string("tokenizer.ggml.") + key, item);
  return metadata;
}

std::size_t leading_bos(const tokenizer& tokens, std::string_view text) {
  const ids all = tokens.encode(text);
  std::size_t count = 0;
  while (count < all.size() && all[count] == tokens.bos()) ++count;
  return count;
}

TEST(gguf_tokenizer, adds_bos_when_told_to_and_by_its_kind_when_not_told) {
  const value metadata = llama3_metadata();
  EXPECT_EQ(leading_bos(*tokenizer_from_gguf(metadata, "m"), "hi"), 1U);
  EXPECT_EQ(leading_bos(*tokenizer_from_gguf(with(metadata, "add_bos_token", true), "m"), "hi"), 1U);
  EXPECT_EQ(leading_bos(*tokenizer_from_gguf(with(metadata, "add_bos_token", false), "m"), "hi"), 0U);
  EXPECT_EQ(leading_bos(*tokenizer_from_gguf(with(metadata, "pre", "qwen2"), "m"), "hi"), 0U) << "absent: not for this kind";
  const value llama2 = testing::gguf_metadata(json_fixture("llama2"), {{"model", "llama"}, {"bos_token_id", 1}});
  EXPECT_EQ(leading_bos(*tokenizer_from_gguf(llama2, "m"), "hi"), 1U);
  EXPECT_EQ(leading_bos(*tokenizer_from_gguf(with(llama2, "add_bos_token", false), "m"), "hi"), 0U);
  EXPECT_FALSE(tokenizer_from_gguf(with(llama2, "add_bos_token", false), "m")->adds_bos());
}

TEST(gguf_tokenizer, rendered_chat_text_that_has_its_bos_gets_no_second_one) {
  const auto tokens = tokenizer_from_gguf(llama3_metadata(), "m");
  const ids all = tokens->encode("<|begin_of_text|>hi", {.add_special_tokens = false});
  EXPECT_EQ(std::count(all.begin(), all.end(), *tokens->bos()), 1);
  EXPECT_TRUE(tokens->adds_bos());
}

TEST(gguf_tokenizer, control_tokens_are_special_and_user_defined_ones_are_not) {
  const auto tokens = tokenizer_from_gguf(llama3_metadata(), "m");
  EXPECT_TRUE(tokens->is_special(*tokens->find("<|eot_id|>")));
  EXPECT_FALSE(tokens->is_special(*tokens->find("<|tool|>")));
  EXPECT_THAT(tokens->encode("<|tool|>", {.add_special_tokens = false, .parse_special = false}),
              ::testing::ElementsAre(*tokens->find("<|tool|>")));
}

TEST(gguf_tokenizer, every_end_of_turn_id_ends_a_text) {
  value metadata = with(with(llama3_metadata(), "eos_token_id", 3), "eot_token_id", 5);
  EXPECT_THAT(tokenizer_from_gguf(metadata, "m")->eos(), ::testing::ElementsAre(3, 5));
  EXPECT_THAT(tokenizer_from_gguf(with(metadata, "eot_token_id", 3), "m")->eos(), ::testing::ElementsAre(3));
}

TEST(gguf_tokenizer, no_space_is_put_before_a_text_when_the_file_says_so) {
  const value metadata =
      testing::gguf_metadata(json_fixture("llama2"), {{"model", "llama"}, {"add_space_prefix", false}, {"bos_token_id", 1}});
  const auto tokens = tokenizer_from_gguf(metadata, "m");
  EXPECT_EQ(tokens->decode(tokens->encode(" the")), " the");
  EXPECT_EQ(tokens->decode(tokens->encode("the")), "the");
  EXPECT_NE(tokens->encode("the"), tokens->encode(" the"));
}

TEST(gguf_tokenizer, unknown_or_broken_metadata_is_refused_with_the_key) {
  const value good = llama3_metadata();
  const std::pair<const char*, value> changes[] = {{"model", "bert"},
                                                   {"model", nullptr},
                                                   {"pre", "no-such-pre"},
                                                   {"pre", 7},
                                                   {"tokens", value_array{}},
                                                   {"tokens", value_array{value(1)}},
                                                   {"token_type", value_array{value(1)}},
                                                   {"merges", value_array{}},
                                                   {"merges", value_array{value("nospace")}},
                                                   {"merges", value_array{value("no-such-token a")}},
                                                   {"merges", value_array{value(4)}},
                                                   {"bos_token_id", -1},
                                                   {"bos_token_id", 1 << 30},
                                                   {"eos_token_id", "x"},
                                                   {"add_bos_token", 1},
                                                   {"add_eos_token", true}};
  for (const auto& [key, item] : changes) {
    try {
      tokenizer_from_gguf(with(good, key, item), "model.gguf");
      ADD_FAILURE() << key << " was accepted: " << json::dump(item);
    } catch (const load_error& failure) {
      EXPECT_THAT(failure.what(), ::testing::StartsWith("model.gguf: tokenizer.ggml.")) << failure.what();
      EXPECT_EQ(std::string(failure.what()).find('\n'), std::string::npos);
    }
  }
  const value llama2 = testing::gguf_metadata(json_fixture("llama2"), {{"model", "llama"}, {"bos_token_id", 1}});
  EXPECT_THROW(tokenizer_from_gguf(with(llama2, "scores", value_array{}), "m"), load_error);
  EXPECT_THROW(tokenizer_from_gguf(with(llama2, "token_type", nullptr), "m"), load_error);
  EXPECT_THROW(tokenizer_from_gguf(value(), "m"), load_error);
}

TEST(gguf_tokenizer, every_known_split_loads_and_keeps_the_text) {
  for (const char* pre :
       {"default",     "gpt-2",           "phi-2",     "mpt",    "olmo",     "smollm",  "starcoder",      "refact",      "command-r",
        "codeshell",   "exaone",          "llama-bpe", "llama3", "llama-v3", "falcon3", "dbrx",           "smaug-bpe",   "glm4",
        "chatglm-bpe", "stablelm2",       "gpt-4o",    "llama4", "tekken",   "falcon",  "deepseek-coder", "deepseek-v3", "qwen2",
        "qwen35",      "deepseek-r1-qwen"}) {
    const auto tokens = tokenizer_from_gguf(with(llama3_metadata(), "pre", pre), "m");
    for (const std::string text : {"Hello, wörld! 12345 中文\r\n\n  x\t\u0e20\u0e32 \U0001F600 ", " \n ", "'re I'LL"}) {
      EXPECT_EQ(tokens->decode(tokens->encode(text)), text) << pre;
    }
  }
}

TEST(gguf_tokenizer, digits_are_split_as_the_model_was_trained) {
  const auto pieces = [](const char* pre) {
    const auto tokens = tokenizer_from_gguf(with(with(llama3_metadata(), "pre", pre), "add_bos_token", false), "m");
    std::vector<std::size_t> sizes;
    for (const token_id id : tokens->encode("77777777")) sizes.push_back(tokens->token_bytes(id).size());
    return *std::max_element(sizes.begin(), sizes.end());
  };
  EXPECT_EQ(pieces("qwen2"), 1U);
  EXPECT_EQ(pieces("smollm"), 1U);
}

} // namespace
} // namespace troupe
