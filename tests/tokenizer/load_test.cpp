// What is refused when a tokenizer is loaded, and where a folder's parts are found.
#include "tests/tokenizer/fixture.hpp"

namespace troupe {
namespace {

using ::testing::ElementsAre;
using testing::ids;
using testing::json_fixture;
using testing::object;
using testing::parse_json;

value spec_with(const char* part, std::string_view json) {
  value spec = *json_fixture("gpt2").find("tokenizer");
  spec.mutable_object().set(part, parse_json(json));
  return spec;
}

value model_with(const char* option, std::string_view json) {
  value spec = *json_fixture("gpt2").find("tokenizer");
  value model = *spec.find("model");
  model.mutable_object().set(option, parse_json(json));
  spec.mutable_object().set("model", model);
  return spec;
}

struct refusal {
  const char* part;
  const char* json;
};

TEST(tokenizer_json, unknown_stages_and_options_are_refused_by_name) {
  const refusal cases[] = {
      {"pre_tokenizer", R"({"type": "UnicodeScripts"})"},
      {"pre_tokenizer", R"({"type": "ByteLevel", "add_prefix_space": false, "new_option": 1})"},
      {"pre_tokenizer", R"({"type": "Split", "pattern": {"Regex": "a"}, "behavior": "Sideways", "invert": false})"},
      {"pre_tokenizer", R"({"type": "Split", "pattern": {"Regex": "(a"}, "behavior": "Isolated", "invert": false})"},
      {"pre_tokenizer", R"({"type": "Split", "pattern": {"Glob": "a"}, "behavior": "Isolated", "invert": false})"},
      {"pre_tokenizer", R"({"type": "Split", "pattern": {"Regex": "a"}, "behavior": "Isolated"})"},
      {"pre_tokenizer", R"({"type": "Metaspace", "replacement": "ab", "prepend_scheme": "always"})"},
      {"pre_tokenizer", R"({"type": "Metaspace", "replacement": "_", "prepend_scheme": "last"})"},
      {"pre_tokenizer", R"({"type": "Sequence", "pretokenizers": [{"type": "Digits", "individual_digits": "yes"}]})"},
      {"pre_tokenizer", R"({"type": "Sequence", "pretokenizers": [], "extra": null})"},
      {"pre_tokenizer", R"([1])"},
      {"normalizer", R"({"type": "Precompiled", "precompiled_charsmap": "AAAA"})"},
      {"normalizer", R"({"type": "BertNormalizer", "lowercase": true})"},
      {"normalizer", R"({"type": "Sequence", "normalizers": [{"type": "Nmt"}]})"},
      {"normalizer", R"({"type": "Strip", "strip_left": true})"},
      {"normalizer", R"({"type": "Prepend", "prepend": "x", "append": "y"})"},
      {"decoder", R"({"type": "CTC"})"},
      {"decoder", R"({"type": "WordPiece", "prefix": "##", "cleanup": true})"},
      {"decoder", R"({"type": "Strip", "content": " ", "start": 0, "stop": 1})"},
      {"decoder",
       R"({"type": "Sequence", "decoders": [{"type": "Fuse"}, {"type": "Replace", "pattern": {"String": "a"}, "content": "b"}]})"},
      {"decoder", R"({"type": "Sequence", "decoders": [{"type": "Fuse"}, {"type": "Strip", "content": " ", "start": 2, "stop": 0}]})"},
      {"post_processor", R"({"type": "BertProcessing", "sep": ["a", 1], "cls": ["a", 1]})"},
      {"post_processor",
       R"({"type": "TemplateProcessing", "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}}], "pair": [], "special_tokens": {}})"},
      {"post_processor",
       R"({"type": "TemplateProcessing", "single": [{"Sequence": {"id": "B", "type_id": 0}}], "pair": [], "special_tokens": {}})"},
      {"post_processor",
       R"({"type": "TemplateProcessing", "single": [{"Sequence": {"id": "A", "type_id": 0}}, {"SpecialToken": {"id": "x", "type_id": 0}}],
          "pair": [], "special_tokens": {"x": {"id": "x", "ids": [99999], "tokens": ["x"]}}})"},
      {"added_tokens", R"([{"id": -1, "content": "<x>"}])"},
      {"added_tokens", R"([{"id": 4000000000, "content": "<x>"}])"},
      {"added_tokens", R"([{"id": 5, "content": "<x>"}])"}, // taken by another token
      {"added_tokens", R"([{"id": 900, "content": "<x>", "sticky": true}])"},
      {"added_tokens", R"({})"},
      {"surprise", "1"},
  };
  for (const auto& [part, json] : cases) {
    try {
      testing::from_json(spec_with(part, json));
      ADD_FAILURE() << part << " was accepted: " << json;
    } catch (const load_error& failure) {
      EXPECT_THAT(failure.what(), ::testing::StartsWith("tokenizer.json"));
      EXPECT_EQ(std::string(failure.what()).find('\n'), std::string::npos) << failure.what();
    }
  }
}

TEST(tokenizer_json, models_that_cannot_be_used_are_refused) {
  const refusal cases[] = {
      {"type", R"("WordPiece")"},
      {"dropout", "0.1"},
      {"continuing_subword_prefix", R"("##")"},
      {"end_of_word_suffix", R"("</w>")"},
      {"unk_token", R"("no such token")"},
      {"merges", "[]"},
      {"merges", "null"},
      {"merges", R"(["a"])"},
      {"merges", R"(["a b c"])"},
      {"merges", R"([["a"]])"},
      {"merges", R"([["a", "zzzz"]])"},
      {"merges", R"([["a", 1]])"},
      {"vocab", "{}"},
      {"vocab", "[]"},
      {"vocab", R"({"a": -1})"},
      {"vocab", R"({"a": 1.5})"},
      {"vocab", R"({"a": 4000000000})"},
      {"vocab", R"({"a": 1, "b": 1})"},
      {"cache", "1"},
  };
  for (const auto& [option, json] : cases)
    EXPECT_THROW(testing::from_json(model_with(option, json)), load_error) << option << " = " << json;
  EXPECT_NO_THROW(testing::from_json(model_with("continuing_subword_prefix", R"("")")));
  EXPECT_NO_THROW(testing::from_json(model_with("dropout", "0.0")));
  EXPECT_THROW(testing::from_json(value(3)), load_error);
  EXPECT_THROW(testing::from_json(object({})), load_error);
}

TEST(tokenizer_config, bos_and_eos_follow_it) {
  const value fixture = json_fixture("llama2");
  const value& spec = *fixture.find("tokenizer");
  const ids text = testing::from_json(spec)->encode("hi", {.add_special_tokens = false});
  const auto wrapped = [&](std::initializer_list<token_id> before, std::initializer_list<token_id> behind) {
    ids out(before);
    out.insert(out.end(), text.begin(), text.end());
    out.insert(out.end(), behind.begin(), behind.end());
    return out;
  };
  EXPECT_EQ(testing::from_json(spec)->encode("hi"), wrapped({1}, {})) << "the template of tokenizer.json";
  const auto with = [&](const char* json) { return testing::from_json(spec, parse_json(json)); };
  EXPECT_EQ(with(R"({"bos_token": "<s>", "add_bos_token": false})")->encode("hi"), wrapped({}, {}));
  EXPECT_FALSE(with(R"({"bos_token": "<s>", "add_bos_token": false})")->adds_bos());
  const auto both =
      with(R"({"bos_token": {"content": "<s>", "lstrip": false}, "eos_token": "</s>", "add_bos_token": true, "add_eos_token": true})");
  EXPECT_EQ(both->encode("hi"), wrapped({1}, {2}));
  EXPECT_TRUE(both->adds_bos());
  EXPECT_EQ(both->bos(), 1);
  EXPECT_THAT(both->eos(), ElementsAre(2));
  EXPECT_THROW(with(R"({"add_bos_token": true})"), load_error);
  EXPECT_THROW(with(R"({"eos_token": "nowhere", "add_eos_token": true})"), load_error);
}

class folder : public ::testing::Test {
 protected:
  folder()
      : path_(std::filesystem::path(::testing::TempDir()) /
              ("troupe_tokenizer_" + std::string(::testing::UnitTest::GetInstance()->current_test_info()->name()))) {
    std::filesystem::create_directories(path_);
  }
  ~folder() override {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  void write(const char* name, std::string_view text) const { std::ofstream(path_ / name, std::ios::binary) << text; }

  std::filesystem::path path_;
};

TEST_F(folder, tokenizer_json_goes_before_a_sentencepiece_model) {
  write("tokenizer.model", testing::read_fixture("llama2.model"));
  const ids of_model = load_tokenizer(path_)->encode("hi</s> the");
  EXPECT_EQ(of_model, testing::load_fixture("llama2")->encode("hi</s> the"));
  write("tokenizer.json", json::dump(*json_fixture("gpt2").find("tokenizer")));
  EXPECT_EQ(load_tokenizer(path_)->encode("hi"), testing::load_fixture("gpt2")->encode("hi"));
}

TEST_F(folder, sentencepiece_model_takes_added_tokens_and_bos_rules_from_the_config) {
  write("tokenizer.model", testing::read_fixture("llama2.model"));
  write("tokenizer_config.json", R"({"add_bos_token": false, "bos_token": "<s>", "eos_token": "<|end|>", "added_tokens_decoder":
      {"760": {"content": "<|end|>", "lstrip": false, "rstrip": true, "normalized": false, "single_word": false, "special": true}}})");
  const auto tokens = load_tokenizer(path_);
  EXPECT_THAT(tokens->encode("<|end|>  "), ElementsAre(760));
  EXPECT_THAT(tokens->eos(), ElementsAre(760));
  EXPECT_EQ(tokens->vocab_size(), 761);
  EXPECT_TRUE(tokens->is_special(760));
}

TEST_F(folder, normalized_added_tokens_of_a_sentencepiece_model_are_found_and_have_bytes) {
  for (const char* model : {"llama2.model", "unigram.model"}) {
    const auto bare = tokenizer_from_sentencepiece(testing::read_fixture(model), value(value_object{}), model);
    const token_id first = bare->vocab_size();
    write("tokenizer.model", testing::read_fixture(model));
    const auto entry = [](token_id id, const char* content, bool special) {
      return "\"" + std::to_string(id) + R"(": {"content": ")" + content +
             R"(", "lstrip": false, "rstrip": false, "single_word": false, "normalized": true, "special": )" +
             (special ? "true}" : "false}");
    };
    write("tokenizer_config.json",
          R"({"added_tokens_decoder": {)" + entry(first, "<tool>", false) + ", " + entry(first + 1, "<|end|>", true) + "}}");
    const auto tokens = load_tokenizer(path_);
    EXPECT_EQ(tokens->find("<tool>"), first) << model;
    EXPECT_THAT(tokens->token_bytes(first), ::testing::HasSubstr("<tool>")) << model;
    EXPECT_THAT(tokens->encode("<tool>", {.add_special_tokens = false}), ElementsAre(first)) << model;
    EXPECT_THAT(tokens->encode("<|end|>", {.add_special_tokens = false}), ElementsAre(first + 1)) << model;
    EXPECT_EQ(tokens->token_bytes(first + 1), "<|end|>") << model;
  }
}

TEST_F(folder, files_that_cannot_be_read_are_one_line) {
  const auto message = [&] {
    try {
      load_tokenizer(path_);
    } catch (const load_error& failure) {
      EXPECT_EQ(std::string(failure.what()).find('\n'), std::string::npos);
      return std::string(failure.what());
    }
    return std::string("loaded");
  };
  EXPECT_THAT(message(), ::testing::HasSubstr("tokenizer.model"));
  write("tokenizer.model", "not a model");
  EXPECT_THAT(message(), ::testing::HasSubstr("SentencePiece"));
  write("tokenizer.json", "{");
  EXPECT_THAT(message(), ::testing::HasSubstr("tokenizer.json"));
  write("tokenizer_config.json", "[]");
  EXPECT_THAT(message(), ::testing::HasSubstr("tokenizer_config.json"));
}

TEST_F(folder, chat_template_is_found_in_each_of_its_places) {
  EXPECT_FALSE(find_chat_template(path_));
  write("tokenizer_config.json", R"({"chat_template": "plain", "bos_token": "<s>", "eos_token": {"content": "</s>"}})");
  auto found = find_chat_template(path_);
  ASSERT_TRUE(found);
  EXPECT_EQ(found->text, "plain");
  EXPECT_EQ(found->bos_token, "<s>");
  EXPECT_EQ(found->eos_token, "</s>");
  write("tokenizer_config.json", R"({"chat_template": [{"name": "tool_use", "template": "t"}, {"name": "default", "template": "d"}]})");
  EXPECT_EQ(find_chat_template(path_)->text, "d");
  write("chat_template.jinja", "own file\n");
  EXPECT_EQ(find_chat_template(path_)->text, "own file\n");
  write("tokenizer_config.json", R"({"chat_template": 5})");
  std::filesystem::remove(path_ / "chat_template.jinja");
  EXPECT_THROW(find_chat_template(path_), load_error);
}

TEST(gguf_chat_template, comes_with_the_texts_of_bos_and_eos) {
  EXPECT_FALSE(find_chat_template(object({{"general.name", "x"}})));
  const auto found = find_chat_template(object({{"tokenizer.chat_template", "t"},
                                                {"tokenizer.ggml.tokens", value_array{value("a"), value("<s>")}},
                                                {"tokenizer.ggml.bos_token_id", 1},
                                                {"tokenizer.ggml.eos_token_id", 7}}));
  ASSERT_TRUE(found);
  EXPECT_EQ(found->text, "t");
  EXPECT_EQ(found->bos_token, "<s>");
  EXPECT_EQ(found->eos_token, "");
}

} // namespace
} // namespace troupe
