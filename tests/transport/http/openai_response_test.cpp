// Bodies and event streams, against what OpenAI's clients read.
#include "transport/http/openai_response.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "core/json.hpp"

namespace troupe::http {
namespace {

answer_head head(api_kind kind, std::int32_t n = 1, bool logprobs = false, bool usage = false, std::int32_t prompts = 1) {
  answer_head out;
  out.id = kind == api_kind::chat ? "chatcmpl-1" : "cmpl-1";
  out.created = 1700000000;
  out.model = "tiny";
  out.kind = kind;
  out.n = n;
  out.choices = n * prompts;
  out.logprobs = logprobs;
  out.include_usage = usage;
  return out;
}

output_chunk text(std::string piece, std::optional<finish_reason> finish = std::nullopt, std::int32_t index = 0) {
  output_chunk out;
  out.index = index;
  out.text = std::move(piece);
  out.tokens = {1};
  out.finish = finish;
  return out;
}

position_logprobs scored(std::string bytes, float p, std::vector<token_logprob> top = {}) {
  return {{1, p, std::move(bytes)}, std::move(top)};
}

value parsed(const std::string& body) {
  auto out = json::parse(body);
  if (!out) ADD_FAILURE() << out.failure().message << ": " << body;
  return out ? *out : value();
}

// The JSON of each event; [DONE] as null.
std::vector<value> events_of(const std::string& stream) {
  std::vector<value> out;
  std::size_t at = 0;
  while (at < stream.size()) {
    EXPECT_EQ(stream.compare(at, 6, "data: "), 0) << stream.substr(at);
    const auto end = stream.find("\n\n", at);
    if (end == std::string::npos) break;
    const auto data = stream.substr(at + 6, end - at - 6);
    out.push_back(data == "[DONE]" ? value() : parsed(data));
    at = end + 2;
  }
  return out;
}

const value& choice(const value& body, std::size_t i = 0) { return body.find("choices")->as_array().at(i); }
std::string text_at(const value& item, const char* key) { return item.find(key)->as_string(); }

TEST(WholeAnswer, TokenIdsAreGivenWhenAskedForAndOnlyThen) {
  answer_head with_ids = head(api_kind::completion);
  with_ids.token_ids = true;
  whole_answer answer(with_ids);
  answer.output(text("a"));
  answer.output(text("b", finish_reason::length));
  const value body = parsed(answer.finish({}));
  EXPECT_EQ(json::dump(*body.find("choices")->as_array()[0].find("token_ids")), "[1,1]");
  whole_answer plain(head(api_kind::completion));
  plain.output(text("a", finish_reason::length));
  EXPECT_EQ(parsed(plain.finish({})).find("choices")->as_array()[0].find("token_ids"), nullptr);
}

TEST(openai_response, whole_completion) {
  whole_answer answer(head(api_kind::completion, 2));
  EXPECT_TRUE(answer.output(text("a\"b", std::nullopt, 1)));
  EXPECT_TRUE(answer.output(text("x", finish_reason::length, 0)));
  auto last = text("\n", finish_reason::stop, 1);
  last.stop_reason = "END";
  EXPECT_TRUE(answer.output(last));
  EXPECT_FALSE(answer.output(text("?", std::nullopt, 2)));
  EXPECT_FALSE(answer.output(text("?", std::nullopt, -1)));
  EXPECT_EQ(answer.finish({5, 3, 4}),
            R"({"id":"cmpl-1","object":"text_completion","created":1700000000,"model":"tiny","choices":[)"
            R"({"index":0,"text":"x","logprobs":null,"finish_reason":"length","stop_reason":null},)"
            R"({"index":1,"text":"a\"b\n","logprobs":null,"finish_reason":"stop","stop_reason":"END"}],)"
            R"("usage":{"prompt_tokens":5,"completion_tokens":3,"total_tokens":8,"prompt_tokens_details":{"cached_tokens":4}}})");
}

TEST(openai_response, whole_chat) {
  whole_answer answer(head(api_kind::chat));
  answer.output(text("h\xc3\xa9", finish_reason::stop));
  const auto body = parsed(answer.finish({1, 1, 0}));
  EXPECT_EQ(text_at(body, "object"), "chat.completion");
  EXPECT_EQ(text_at(*choice(body).find("message"), "role"), "assistant");
  EXPECT_EQ(text_at(*choice(body).find("message"), "content"), "h\xc3\xa9");
  EXPECT_TRUE(choice(body).find("logprobs")->is_null());
}

TEST(openai_response, completion_logprobs_have_offsets_in_characters) {
  whole_answer answer(head(api_kind::completion, 1, true));
  auto chunk = text("\xc3\xa9!\xf0\x9f\x98\x80z", finish_reason::stop);
  chunk.logprobs = {scored("\xc3\xa9!", -0.5F, {{1, -0.5F, "\xc3\xa9!"}, {2, -2, "b"}}), scored("\xf0\x9f", -1),
                    scored("\x98\x80", -1.25F, {{9, -0.25F, "\xff"}}), scored("z", -3)};
  answer.output(chunk);
  const auto body = parsed(answer.finish({}));
  const value& logprobs = *choice(body).find("logprobs");
  EXPECT_EQ(json::dump(*logprobs.find("tokens")), "[\"\xc3\xa9!\",\"\xef\xbf\xbd\",\"\xef\xbf\xbd\xef\xbf\xbd\",\"z\"]");
  EXPECT_EQ(json::dump(*logprobs.find("token_logprobs")), "[-0.5,-1,-1.25,-3]");
  EXPECT_EQ(json::dump(*logprobs.find("text_offset")), "[0,2,2,3]") << "the second half of a character points at the character";
  EXPECT_EQ(json::dump(*logprobs.find("top_logprobs")),
            "[{\"\xc3\xa9!\":-0.5,\"b\":-2},{\"\xef\xbf\xbd\":-1},{\"\xef\xbf\xbd\":-0.25,\"\xef\xbf\xbd\xef\xbf\xbd\":-1.25},{\"z\":-3}]");
}

TEST(openai_response, chat_logprobs_give_bytes_where_text_cannot) {
  whole_answer answer(head(api_kind::chat, 1, true));
  auto chunk = text("\xe2\x82\xac", finish_reason::stop);
  chunk.logprobs = {scored("\xe2\x82", -0.5F, {{1, -0.5F, "\xe2\x82"}, {2, -1.5F, "a"}}), scored("\xac", -0.25F)};
  answer.output(chunk);
  const auto body = parsed(answer.finish({}));
  const value& content = *choice(body).find("logprobs")->find("content");
  EXPECT_EQ(json::dump(content),
            "[{\"token\":\"\xef\xbf\xbd\",\"logprob\":-0.5,\"bytes\":[226,130],\"top_logprobs\":[{\"token\":\"\xef\xbf\xbd\",\"logprob\":-"
            "0.5,\"bytes\":[226,130]},"
            "{\"token\":\"a\",\"logprob\":-1.5,\"bytes\":[97]}]},{\"token\":\"\xef\xbf\xbd\",\"logprob\":-0.25,\"bytes\":[172],\"top_"
            "logprobs\":[]}]");
}

TEST(openai_response, no_probability_breaks_the_json) {
  whole_answer answer(head(api_kind::chat, 1, true));
  auto chunk = text("abc", finish_reason::stop);
  constexpr float inf = std::numeric_limits<float>::infinity();
  chunk.logprobs = {scored("a", -inf), scored("b", std::nanf("")), scored("c", -0.0F), scored("d", 1e-7F), scored("e", -1e-30F)};
  answer.output(chunk);
  const auto body = parsed(answer.finish({}));
  const auto& content = choice(body).find("logprobs")->find("content")->as_array();
  EXPECT_EQ(content[0].find("logprob")->as_double(), -9999);
  EXPECT_EQ(content[1].find("logprob")->as_double(), -9999);
  EXPECT_EQ(content[2].find("logprob")->as_double(), 0);
  EXPECT_EQ(content[3].find("logprob")->as_double(), 0) << "rounding above certainty";
  EXPECT_LT(content[4].find("logprob")->as_double(), 0);
}

TEST(openai_response, echo_with_no_new_tokens_scores_the_prompt) {
  auto with_limit = head(api_kind::completion, 1, true);
  with_limit.unfinished = finish_reason::length;
  prompt_report report;
  report.text = "Hi you";
  report.tokens = {1, 2};
  report.token_bytes = {"Hi", " you"};
  report.logprobs = {std::nullopt, scored(" you", -2)};
  whole_answer answer(with_limit);
  answer.prompt(report);
  const auto body = parsed(answer.finish({2, 0, 0}));
  EXPECT_EQ(text_at(choice(body), "text"), "Hi you");
  EXPECT_EQ(text_at(choice(body), "finish_reason"), "length");
  EXPECT_EQ(json::dump(*choice(body).find("logprobs")),
            R"({"tokens":["Hi"," you"],"token_logprobs":[null,-2],"top_logprobs":[null,{" you":-2}],"text_offset":[0,2]})");
  EXPECT_EQ(body.find("usage")->find("completion_tokens")->as_int(), 0);
  std::string stream;
  event_writer writer(with_limit);
  writer.prompt(report, stream);
  writer.finish({2, 0, 0}, stream);
  const auto events = events_of(stream);
  ASSERT_EQ(events.size(), 3U);
  EXPECT_EQ(text_at(choice(events[0]), "text"), "Hi you");
  EXPECT_EQ(text_at(choice(events[1]), "finish_reason"), "length");
}

TEST(openai_response, echo_comes_first_in_each_choice_of_its_prompt) {
  whole_answer answer(head(api_kind::completion, 2, true, false, 2));
  prompt_report report;
  report.prompt_index = 1;
  report.text = "P";
  report.token_bytes = {"P"};
  report.logprobs = {std::nullopt};
  answer.prompt(report);
  auto out = text("q", finish_reason::stop, 3);
  out.logprobs = {scored("q", -1)};
  answer.output(out);
  report.prompt_index = 2; // there is none
  answer.prompt(report);
  const auto body = parsed(answer.finish({}));
  EXPECT_EQ(text_at(choice(body, 1), "text"), "");
  EXPECT_EQ(text_at(choice(body, 2), "text"), "P");
  EXPECT_EQ(text_at(choice(body, 3), "text"), "Pq");
  EXPECT_EQ(json::dump(*choice(body, 3).find("logprobs")->find("text_offset")), "[0,1]");
}

TEST(openai_response, a_chat_stream_goes_role_text_finish_done) {
  event_writer writer(head(api_kind::chat));
  std::string stream;
  writer.output(text("Hel"), stream);
  writer.output(text(""), stream); // text is held back: nothing to tell
  writer.output(text("lo", finish_reason::length), stream);
  writer.output(text("after the end"), stream);
  writer.finish({1, 3, 0}, stream);
  EXPECT_EQ(stream,
            "data: "
            "{\"id\":\"chatcmpl-1\",\"object\":\"chat.completion.chunk\",\"created\":1700000000,\"model\":\"tiny\",\"choices\":[{\"index\":"
            "0,\"delta\":"
            "{\"role\":\"assistant\",\"content\":\"\"},\"logprobs\":null,\"finish_reason\":null}]}\n\n"
            "data: "
            "{\"id\":\"chatcmpl-1\",\"object\":\"chat.completion.chunk\",\"created\":1700000000,\"model\":\"tiny\",\"choices\":[{\"index\":"
            "0,\"delta\":"
            "{\"content\":\"Hel\"},\"logprobs\":null,\"finish_reason\":null}]}\n\n"
            "data: "
            "{\"id\":\"chatcmpl-1\",\"object\":\"chat.completion.chunk\",\"created\":1700000000,\"model\":\"tiny\",\"choices\":[{\"index\":"
            "0,\"delta\":"
            "{\"content\":\"lo\"},\"logprobs\":null,\"finish_reason\":null}]}\n\n"
            "data: "
            "{\"id\":\"chatcmpl-1\",\"object\":\"chat.completion.chunk\",\"created\":1700000000,\"model\":\"tiny\",\"choices\":[{\"index\":"
            "0,\"delta\":"
            "{},\"logprobs\":null,\"finish_reason\":\"length\",\"stop_reason\":null}]}\n\n"
            "data: [DONE]\n\n");
}

TEST(openai_response, usage_comes_once_last_and_only_when_asked_for) {
  for (const bool asked : {false, true}) {
    for (const auto kind : {api_kind::chat, api_kind::completion}) {
      event_writer writer(head(kind, 3, false, asked));
      std::string stream;
      for (std::int32_t i : {2, 0, 1}) writer.output(text("a", std::nullopt, i), stream);
      for (std::int32_t i : {0, 1, 2}) writer.output(text("b", finish_reason::stop, i), stream);
      writer.finish({4, 6, 0}, stream);
      auto events = events_of(stream);
      ASSERT_TRUE(events.back().is_null()) << "[DONE]";
      events.pop_back();
      if (asked) {
        EXPECT_TRUE(events.back().find("choices")->as_array().empty());
        EXPECT_EQ(events.back().find("usage")->find("completion_tokens")->as_int(), 6);
        events.pop_back();
      }
      for (const value& event : events) {
        EXPECT_EQ(event.find("choices")->as_array().size(), 1U) << "clients read choices[0] without looking";
        EXPECT_EQ(event.find("usage") != nullptr, asked);
        if (asked) {
          EXPECT_TRUE(event.find("usage")->is_null());
        }
      }
    }
  }
}

TEST(openai_response, streamed_logprobs_join_to_the_whole_ones) {
  for (const auto kind : {api_kind::chat, api_kind::completion}) {
    whole_answer whole(head(kind, 1, true));
    event_writer writer(head(kind, 1, true));
    std::string stream;
    for (const char* piece : {"\xc3\xa9", "b ", ""}) {
      auto chunk = text(piece);
      chunk.logprobs = {scored(piece, -1, {{2, -2, "z"}})};
      whole.output(chunk);
      writer.output(chunk, stream);
    }
    whole.output(text("", finish_reason::stop));
    writer.output(text("", finish_reason::stop), stream);
    writer.finish({}, stream);
    const std::string list = kind == api_kind::chat ? "content" : "text_offset";
    value_array joined;
    for (const value& event : events_of(stream)) {
      if (event.is_null() || choice(event).find("logprobs")->is_null()) continue;
      for (const value& item : choice(event).find("logprobs")->find(list)->as_array()) joined.push_back(item);
    }
    const auto body = parsed(whole.finish({}));
    EXPECT_EQ(value(joined), *choice(body).find("logprobs")->find(list));
    EXPECT_EQ(joined.size(), 3U) << "a token whose text is held back is still told";
  }
}

TEST(openai_response, errors_have_openais_shape) {
  EXPECT_EQ(error_body(invalid_request("top_p", "too \"high\""), 400),
            R"({"error":{"message":"too \"high\"","type":"invalid_request_error","param":"top_p","code":null}})");
  EXPECT_EQ(error_event({error_kind::unavailable, "gone", "", std::nullopt}),
            "data: {\"error\":{\"message\":\"gone\",\"type\":\"service_unavailable_error\",\"param\":null,\"code\":\"unavailable\"}}\n\n");
  EXPECT_EQ(error_body({error_kind::internal, "\xff", "", std::nullopt}, 500),
            "{\"error\":{\"message\":\"\xef\xbf\xbd\",\"type\":\"server_error\",\"param\":null,\"code\":null}}");
}

} // namespace
} // namespace troupe::http
