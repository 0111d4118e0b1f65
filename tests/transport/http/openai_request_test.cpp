// JSON -> generation_request: every field, its range, and what each wrong value is called.
#include "transport/http/openai_request.hpp"

#include <gtest/gtest.h>

#include <limits>

#include "core/json.hpp"

namespace troupe::http {
namespace {

served_model model_of(std::int32_t vocab = 100) {
  served_model out;
  out.names = {"tiny", "alias"};
  out.vocab_size = vocab;
  out.max_model_len = 64;
  out.has_chat_template = true;
  return out;
}

const server_limits kLimits;

api_request completion(const std::string& members) {
  const auto parsed = parse_completion("{" + members + "}", model_of(), kLimits);
  if (!parsed) ADD_FAILURE() << members << ": " << parsed.failure().message;
  return parsed ? *parsed : api_request();
}

api_request chat(const std::string& members) {
  const auto parsed =
      parse_chat(R"({"messages":[{"role":"user","content":"hi"}])" + (members.empty() ? "" : "," + members) + "}", model_of(), kLimits);
  if (!parsed) ADD_FAILURE() << members << ": " << parsed.failure().message;
  return parsed ? *parsed : api_request();
}

// The message of the refusal, whose param must be `param`.
std::string refusal(const result<api_request>& parsed, const std::string& members, const std::string& param) {
  if (parsed) {
    ADD_FAILURE() << members << " was taken";
    return "";
  }
  EXPECT_EQ(parsed.failure().kind, error_kind::invalid_request) << members;
  EXPECT_EQ(parsed.failure().param, param) << members;
  EXPECT_FALSE(parsed.failure().message.empty());
  return parsed.failure().message;
}

std::string refused_completion(const std::string& members, const std::string& param) {
  return refusal(parse_completion("{\"prompt\":\"a\"," + members + "}", model_of(), kLimits), members, param);
}

std::string refused_chat(const std::string& members, const std::string& param) {
  return refusal(parse_chat(R"({"messages":[{"role":"user","content":"hi"}],)" + members + "}", model_of(), kLimits), members, param);
}

TEST(openai_request, defaults_of_a_completion) {
  const auto got = completion(R"("prompt":"once")");
  EXPECT_EQ(got.kind, api_kind::completion);
  EXPECT_FALSE(got.stream);
  EXPECT_FALSE(got.include_usage);
  const auto& g = got.generation;
  EXPECT_EQ(g.model, "tiny") << "a missing model is the one that is served";
  ASSERT_EQ(g.prompts.size(), 1U);
  EXPECT_EQ(std::get<std::string>(g.prompts[0]), "once");
  EXPECT_EQ(g.max_tokens, 16);
  EXPECT_EQ(g.n, 1);
  EXPECT_TRUE(g.add_special_tokens);
  EXPECT_FALSE(g.echo);
  EXPECT_FALSE(g.seed.has_value());
  EXPECT_EQ(g.sampling, sampling_params());
}

TEST(openai_request, defaults_of_a_chat) {
  const auto g = chat("").generation;
  EXPECT_FALSE(g.max_tokens.has_value());
  const auto& p = std::get<chat_prompt>(g.prompts.at(0));
  EXPECT_EQ(p.messages_json, R"([{"role":"user","content":"hi"}])");
  EXPECT_TRUE(p.tools_json.empty());
  EXPECT_TRUE(p.template_kwargs_json.empty());
  EXPECT_TRUE(p.add_generation_prompt);
}

TEST(openai_request, every_field_arrives) {
  const auto got = completion(
      R"("prompt":"a","model":"alias","max_tokens":7,"temperature":0.5,"top_p":0.25,"top_k":9,"min_p":0.125,"repetition_penalty":1.5,
         "presence_penalty":-1,"frequency_penalty":2,"seed":-3,"n":2,"best_of":2,"stop":["x","y"],"stop_token_ids":[0,99],"min_tokens":3,"ignore_eos":true,
         "logit_bias":{"5":-100,"6":1.5},"logprobs":4,"echo":true,"stream":true,"stream_options":{"include_usage":true},
         "include_stop_str_in_output":true,"add_special_tokens":false,"cache_salt":"tenant 7","priority":-2,"queue_timeout_ms":500,
         "timeout_ms":86400000,"user":"u","metadata":{"a":[1]},"store":true,"service_tier":"auto","unheard_of":7)");
  const auto& g = got.generation;
  EXPECT_EQ(g.model, "alias");
  EXPECT_EQ(g.max_tokens, 7);
  EXPECT_EQ(g.cache_salt, "tenant 7");
  EXPECT_EQ(g.priority, -2);
  EXPECT_EQ(g.queue_timeout_ns, 500'000'000U);
  EXPECT_EQ(g.timeout_ns, 86'400'000'000'000U);
  EXPECT_EQ(g.n, 2);
  EXPECT_EQ(g.seed, static_cast<std::uint64_t>(-3));
  EXPECT_EQ(g.stop_strings, (std::vector<std::string>{"x", "y"}));
  EXPECT_EQ(g.stop_token_ids, (std::vector<token_id>{0, 99}));
  EXPECT_EQ(g.min_tokens, 3);
  EXPECT_TRUE(g.ignore_eos);
  EXPECT_TRUE(g.echo);
  EXPECT_TRUE(g.include_stop_string);
  EXPECT_FALSE(g.add_special_tokens);
  EXPECT_EQ(g.prompt_logprobs, 4);
  EXPECT_TRUE(got.stream);
  EXPECT_TRUE(got.include_usage);
  sampling_params expected;
  expected.temperature = 0.5F;
  expected.top_p = 0.25F;
  expected.top_k = 9;
  expected.min_p = 0.125F;
  expected.repetition_penalty = 1.5F;
  expected.presence_penalty = -1;
  expected.frequency_penalty = 2;
  expected.logit_bias = {{5, -100}, {6, 1.5F}};
  expected.top_logprobs = 4;
  EXPECT_EQ(g.sampling, expected);
}

TEST(openai_request, null_members_count_as_absent) {
  const auto g = completion(
      R"("prompt":"a","model":null,"max_tokens":null,"temperature":null,"stop":null,"logit_bias":null,"seed":null,"n":null,"best_of":null,
      "logprobs":null,"stream":null,"stream_options":null,"suffix":null,"response_format":null,"echo":null,"stop_token_ids":null)");
  EXPECT_EQ(g.generation.max_tokens, 16);
  EXPECT_EQ(g.generation.sampling, sampling_params());
}

TEST(openai_request, wrongly_typed_members_are_named) {
  for (const char* name : {"model",
                           "max_tokens",
                           "max_completion_tokens",
                           "temperature",
                           "top_p",
                           "top_k",
                           "min_p",
                           "repetition_penalty",
                           "presence_penalty",
                           "frequency_penalty",
                           "seed",
                           "n",
                           "best_of",
                           "stop",
                           "stop_token_ids",
                           "min_tokens",
                           "ignore_eos",
                           "logit_bias",
                           "logprobs",
                           "echo",
                           "stream",
                           "stream_options",
                           "include_stop_str_in_output",
                           "add_special_tokens",
                           "suffix",
                           "response_format"}) {
    for (const char* wrong : {"{\"a\":1}", "[[]]", "\"text\""}) {
      const std::string member = '"' + std::string(name) + "\":" + wrong;
      const bool fits = (std::string(name) == "stop" && wrong[0] == '"') || (std::string(name) == "stream_options" && wrong[0] == '{') ||
                        (std::string(name) == "suffix") || (std::string(name) == "model" && wrong[0] == '"');
      if (fits) continue;
      EXPECT_NE(refused_completion(member, name).find("'" + std::string(name)), std::string::npos);
    }
  }
  refused_completion(R"("stream":"true")", "stream");
  refused_completion(R"("logprobs":true)", "logprobs");
  refused_completion(R"("cache_salt":"")", "cache_salt");
  refused_completion(R"("priority":2147483648)", "priority");
  for (const char* bad : {"0", "-1", "1.5", "86400001", "\"5\""}) {
    refused_completion(R"("queue_timeout_ms":)" + std::string(bad), "queue_timeout_ms");
    refused_completion(R"("timeout_ms":)" + std::string(bad), "timeout_ms");
  }
  refused_completion(R"("cache_salt":")" + std::string(257, 'a') + "\"", "cache_salt");
  refused_completion(R"("max_tokens":1.5)", "max_tokens");
  refused_chat(R"("logprobs":3)", "logprobs");
}

TEST(openai_request, ranges_are_inclusive_and_what_lies_outside_is_named) {
  for (const char* fine : {"\"temperature\":0", "\"temperature\":100", "\"temperature\":1e-4", "\"top_p\":0", "\"top_p\":1",
                           "\"top_p\":1e-4", "\"top_k\":-1", "\"top_k\":0", "\"top_k\":9999999", "\"min_p\":0", "\"min_p\":1",
                           "\"presence_penalty\":-2", "\"frequency_penalty\":2", "\"repetition_penalty\":0.01", "\"max_tokens\":1",
                           "\"max_tokens\":16.0", "\"logprobs\":20", "\"n\":128", "\"seed\":-9223372036854775808"}) {
    completion("\"prompt\":\"a\"," + std::string(fine));
  }
  const std::vector<std::pair<std::string, std::string>> bad = {{"temperature", "-0.1"},
                                                                {"temperature", "100.1"},
                                                                {"top_p", "-1"},
                                                                {"top_p", "1.01"},
                                                                {"top_k", "-2"},
                                                                {"top_k", "2147483648"},
                                                                {"min_p", "-0.1"},
                                                                {"min_p", "1.1"},
                                                                {"presence_penalty", "2.1"},
                                                                {"frequency_penalty", "-2.1"},
                                                                {"repetition_penalty", "0"},
                                                                {"repetition_penalty", "-1"},
                                                                {"repetition_penalty", "101"},
                                                                {"max_tokens", "0"},
                                                                {"max_tokens", "-1"},
                                                                {"max_tokens", "2147483648"},
                                                                {"max_tokens", "1e30"},
                                                                {"logprobs", "-1"},
                                                                {"logprobs", "21"},
                                                                {"n", "0"},
                                                                {"n", "129"},
                                                                {"seed", "1e19"},
                                                                {"min_tokens", "-1"},
                                                                {"best_of", "2"}};
  for (const auto& [name, number] : bad) refused_completion('"' + name + "\":" + number, name);
  for (const char* raw : {"NaN", "Infinity", "-Infinity", "1e999", "-1e999"}) {
    EXPECT_FALSE(parse_completion(R"({"prompt":"a","temperature":)" + std::string(raw) + "}", model_of(), kLimits)) << raw;
  }
}

TEST(openai_request, extreme_but_legal_sampling_values_stay_usable) {
  EXPECT_EQ(completion(R"("prompt":"a","top_k":9999999)").generation.sampling.top_k, 100) << "clamped to the vocabulary";
  EXPECT_EQ(completion(R"("prompt":"a","top_k":-1)").generation.sampling.top_k, 0);
  EXPECT_GT(completion(R"("prompt":"a","top_p":0)").generation.sampling.top_p, 0);
  EXPECT_GT(completion(R"("prompt":"a","top_p":1e-60)").generation.sampling.top_p, 0);
}

TEST(openai_request, token_limits_and_their_alias) {
  EXPECT_EQ(completion(R"("prompt":"a","echo":true,"max_tokens":0)").generation.max_tokens, 0);
  EXPECT_EQ(completion(R"("prompt":"a","max_completion_tokens":3)").generation.max_tokens, 3);
  EXPECT_EQ(chat(R"("max_completion_tokens":3)").generation.max_tokens, 3);
  EXPECT_EQ(chat(R"("max_completion_tokens":3,"max_tokens":3)").generation.max_tokens, 3);
  EXPECT_EQ(chat(R"("max_completion_tokens":3,"max_tokens":null)").generation.max_tokens, 3);
  refused_chat(R"("max_completion_tokens":3,"max_tokens":4)", "max_tokens");
  refused_chat(R"("max_tokens":0)", "max_tokens");
  refused_chat(R"("max_completion_tokens":0)", "max_completion_tokens");
  refused_completion(R"("max_tokens":3,"min_tokens":4)", "min_tokens");
  refused_completion(R"("min_tokens":17)", "min_tokens");
}

TEST(openai_request, the_four_forms_of_a_prompt) {
  const auto strings = completion(R"("prompt":["a",""])").generation;
  ASSERT_EQ(strings.prompts.size(), 2U);
  EXPECT_EQ(std::get<std::string>(strings.prompts[1]), "");
  const auto ids = completion(R"("prompt":[0,99,3.0])").generation;
  ASSERT_EQ(ids.prompts.size(), 1U);
  EXPECT_EQ(std::get<token_prompt>(ids.prompts[0]), (token_prompt{0, 99, 3}));
  const auto several = completion(R"("prompt":[[1],[2,3]])").generation;
  ASSERT_EQ(several.prompts.size(), 2U);
  EXPECT_EQ(std::get<token_prompt>(several.prompts[1]), (token_prompt{2, 3}));
  for (const char* bad :
       {"[]", "[[]]", "[[1],[]]", "[\"a\",1]", "[1,\"a\"]", "[[1],\"a\"]", "[[\"a\"]]", "{}", "7", "null", "true", "[null]", "[1.5]"}) {
    refusal(parse_completion("{\"prompt\":" + std::string(bad) + "}", model_of(), kLimits), bad, "prompt");
  }
  refusal(parse_completion("{}", model_of(), kLimits), "no prompt", "prompt");
}

TEST(openai_request, token_ids_outside_the_vocabulary_are_named) {
  for (const char* id : {"100", "-1", "2147483648", "-9223372036854775808"}) {
    EXPECT_NE(refused_completion("\"stop_token_ids\":[1," + std::string(id) + "]", "stop_token_ids").find("token id " + std::string(id)),
              std::string::npos);
    EXPECT_NE(refused_completion("\"logit_bias\":{\"" + std::string(id) + "\":1}", "logit_bias").find("token id " + std::string(id)),
              std::string::npos);
    const auto prompt = parse_completion("{\"prompt\":[1," + std::string(id) + "]}", model_of(), kLimits);
    EXPECT_NE(refusal(prompt, id, "prompt").find("token id " + std::string(id)), std::string::npos);
    const auto nested = parse_completion("{\"prompt\":[[1],[" + std::string(id) + "]]}", model_of(), kLimits);
    EXPECT_NE(refusal(nested, id, "prompt").find("prompt[1][0]"), std::string::npos);
  }
  for (const char* key : {"", "x", "1x", "01", "+1", " 1", "1.0", "99999999999999999999"}) {
    refused_completion("\"logit_bias\":{\"" + std::string(key) + "\":1}", "logit_bias");
  }
  for (const char* bias : {"null", "\"1\"", "101", "-101", "true"})
    refused_completion("\"logit_bias\":{\"1\":" + std::string(bias) + "}", "logit_bias");
}

TEST(openai_request, counts_are_bounded) {
  std::string biases, stops, prompts;
  for (int i = 0; i <= 1024; ++i) biases += (i ? ",\"" : "\"") + std::to_string(i) + "\":1";
  EXPECT_FALSE(parse_completion("{\"prompt\":\"a\",\"logit_bias\":{" + biases + "}}", model_of(5000), kLimits));
  for (int i = 0; i <= 16; ++i) stops += i ? ",\"s\"" : "\"s\"";
  refused_completion("\"stop\":[" + stops + "]", "stop");
  for (int i = 0; i <= 128; ++i) prompts += i ? ",\"p\"" : "\"p\"";
  refusal(parse_completion("{\"prompt\":[" + prompts + "]}", model_of(), kLimits), "129 prompts", "prompt");
  refusal(parse_completion(R"({"n":65,"prompt":["a","b"]})", model_of(), kLimits), "130 choices", "n");
  EXPECT_TRUE(parse_completion(R"({"n":64,"prompt":["a","b"]})", model_of(), kLimits));
  refused_completion(R"("stop":"")", "stop");
  refused_completion(R"("stop":["a",""])", "stop");
  refused_completion("\"stop\":\"" + std::string(1025, 'x') + '"', "stop");
}

TEST(openai_request, streams_and_usage) {
  EXPECT_FALSE(chat(R"("stream":true)").include_usage);
  EXPECT_FALSE(chat(R"("stream":true,"stream_options":{})").include_usage);
  EXPECT_FALSE(chat(R"("stream":true,"stream_options":{"include_usage":false})").include_usage);
  EXPECT_TRUE(chat(R"("stream":true,"stream_options":{"include_usage":true})").include_usage);
  refused_chat(R"("stream_options":{"include_usage":true})", "stream_options");
  refused_chat(R"("stream":true,"stream_options":{"include_usage":1})", "stream_options.include_usage");
}

TEST(openai_request, logprobs_of_a_chat) {
  EXPECT_FALSE(chat(R"("logprobs":false,"top_logprobs":0)").generation.sampling.top_logprobs.has_value());
  EXPECT_EQ(chat(R"("logprobs":true)").generation.sampling.top_logprobs, 0);
  EXPECT_EQ(chat(R"("logprobs":true,"top_logprobs":20)").generation.sampling.top_logprobs, 20);
  refused_chat(R"("top_logprobs":2)", "top_logprobs");
  refused_chat(R"("logprobs":true,"top_logprobs":21)", "top_logprobs");
}

TEST(openai_request, unknown_models_are_not_found_and_not_quoted) {
  for (const auto& parsed : {parse_completion(R"({"prompt":"a","model":"SECRET"})", model_of(), kLimits),
                             parse_chat(R"({"messages":[{"role":"user"}],"model":""})", model_of(), kLimits)}) {
    ASSERT_FALSE(parsed);
    EXPECT_EQ(parsed.failure().kind, error_kind::not_found);
    EXPECT_EQ(parsed.failure().param, "model");
    EXPECT_EQ(parsed.failure().message.find("SECRET"), std::string::npos);
    EXPECT_NE(parsed.failure().message.find("'tiny'"), std::string::npos);
  }
}

TEST(openai_request, what_cannot_be_honoured_is_refused_and_not_ignored) {
  refused_completion(R"("suffix":"end")", "suffix");
  refused_completion(R"("prompt_logprobs":1)", "prompt_logprobs");
  refused_completion(R"("skip_special_tokens":false)", "skip_special_tokens");
  refused_chat(R"("response_format":{"type":"json_object"})", "response_format");
  refused_chat(R"("response_format":{"type":"json_schema","json_schema":{}})", "response_format");
  refused_chat(R"("response_format":{})", "response_format");
  refused_chat(R"("continue_final_message":true)", "continue_final_message");
  refused_chat(R"("tools":[{"type":"function","function":{"name":"f"}}],"tool_choice":"required")", "tool_choice");
  refused_chat(R"("tool_choice":{"type":"function","function":{"name":"f"}})", "tool_choice");
  chat(R"("response_format":{"type":"text"},"continue_final_message":false,"skip_special_tokens":true)");
}

TEST(openai_request, tokenize_takes_text_or_messages) {
  const auto text = parse_tokenize(R"({"prompt":"a","add_special_tokens":false,"return_token_strs":true})", model_of(), kLimits);
  ASSERT_TRUE(text);
  EXPECT_TRUE(text->want_strings);
  EXPECT_FALSE(text->input.add_special_tokens);
  EXPECT_EQ(std::get<std::string>(text->input.input), "a");
  const auto talk = parse_tokenize(R"({"messages":[{"role":"user","content":"a"}],"add_generation_prompt":false})", model_of(), kLimits);
  ASSERT_TRUE(talk);
  EXPECT_FALSE(talk->input.add_special_tokens) << "the template writes its own";
  EXPECT_FALSE(std::get<chat_prompt>(talk->input.input).add_generation_prompt);
  for (const char* bad : {"{}", R"({"prompt":1})", R"({"prompt":"a","messages":[{"role":"user"}]})", R"({"messages":[]})",
                          R"({"prompt":"a","model":"no"})"}) {
    EXPECT_FALSE(parse_tokenize(bad, model_of(), kLimits)) << bad;
  }
}

TEST(openai_request, detokenize_takes_ids_of_the_vocabulary) {
  EXPECT_EQ(*parse_detokenize(R"({"tokens":[]})", model_of(), kLimits), std::vector<token_id>());
  EXPECT_EQ(*parse_detokenize(R"({"tokens":[7,99]})", model_of(), kLimits), (std::vector<token_id>{7, 99}));
  for (const char* bad : {"{}", R"({"tokens":"a"})", R"({"tokens":[100]})", R"({"tokens":[-1]})", R"({"tokens":["1"]})"}) {
    EXPECT_FALSE(parse_detokenize(bad, model_of(), kLimits)) << bad;
  }
}

TEST(openai_request, the_number_of_json_values_is_bounded) {
  std::string many = "{\"prompt\":[0";
  for (int i = 0; i < 2'000'000; ++i) many += ",0";
  EXPECT_FALSE(parse_completion(many + "]}", model_of(), kLimits));
}

} // namespace
} // namespace troupe::http
