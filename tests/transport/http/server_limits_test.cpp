// Odd, large, slow and broken requests, over real sockets.
#include "tests/transport/http/server_fixture.hpp"

namespace troupe::testing {
namespace {

using namespace std::chrono_literals;

class server_limits_test : public server_fixture {
 protected:
  server_limits_test() {
    handler.on_submit = [](const generation_request& request, token_sink& sink) {
      const auto* text = std::get_if<std::string>(&request.prompts[0]);
      sink.on_output(chunk(text != nullptr ? *text : "chat", finish_reason::stop));
      sink.on_finished({});
    };
  }
};

TEST_F(server_limits_test, a_large_body_is_413_with_and_without_a_stated_length) {
  options.limits.body_bytes = 100'000;
  serve();
  auto stated = connect();
  stated.send("POST /v1/completions HTTP/1.1\r\nHost: h\r\nContent-Length: 100001\r\n\r\n");
  EXPECT_EQ(stated.read_response().status, 413);
  auto chunked = connect();
  chunked.send("POST /v1/completions HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n");
  const std::string block = "2710\r\n" + std::string(10'000, ' ') + "\r\n";
  for (int i = 0; i < 11; ++i) chunked.send(block);
  const auto refused = chunked.read_response();
  EXPECT_EQ(refused.status, 413);
  EXPECT_EQ(refused.error("code"), "request_too_large");
  EXPECT_EQ(post("/v1/completions", R"({"prompt":"a"})").status, 200);
}

TEST_F(server_limits_test, a_large_header_is_431) {
  options.limits.header_bytes = 2000;
  serve();
  EXPECT_EQ(connect().get("/livez", "X-Long: " + std::string(3000, 'x') + "\r\n").status, 431);
  EXPECT_EQ(connect().get("/" + std::string(3000, 'x')).status, 431);
  auto endless = connect();
  endless.send("GET /livez HTTP/1.1\r\n");
  for (int i = 0; i < 500 && endless.send("X-More: 1\r\n"); ++i) {
  }
  EXPECT_EQ(endless.read_response().status, 431);
}

TEST_F(server_limits_test, a_slow_header_is_408_and_an_idle_connection_is_closed_silently) {
  options.limits.header_timeout = 1s;
  serve();
  auto slow = connect();
  slow.send("GET /livez HTTP/1.1\r\nHost:");
  auto idle = connect();
  EXPECT_EQ(idle.get("/livez").status, 200);
  EXPECT_EQ(slow.read_response().status, 408);
  EXPECT_TRUE(idle.is_closed());
}

TEST_F(server_limits_test, a_slow_body_is_408) {
  options.limits.body_timeout = 1s;
  serve();
  auto c = connect();
  c.send("POST /v1/completions HTTP/1.1\r\nHost: h\r\nContent-Length: 50\r\n\r\n{\"prompt\"");
  const auto refused = c.read_response();
  EXPECT_EQ(refused.status, 408);
  EXPECT_EQ(refused.error("code"), "request_timeout");
  EXPECT_TRUE(c.is_closed());
}

TEST_F(server_limits_test, connections_over_the_limit_are_answered_503) {
  options.limits.connections = 2;
  serve();
  auto first = connect();
  auto second = connect();
  EXPECT_EQ(first.get("/livez").status, 200);
  EXPECT_EQ(second.get("/livez").status, 200);
  EXPECT_EQ(get("/livez").status, 503);
  first.close();
  EXPECT_TRUE(eventually([&] { return get("/livez").status == 200; })) << "a place that became free is given again";
}

TEST_F(server_limits_test, bad_json_is_400_and_echoes_no_client_bytes) {
  serve();
  auto c = connect();
  for (const std::string& body :
       {std::string("{"), std::string("[]"), std::string("\"x\""), std::string(), std::string("{\"prompt\":\"\xc4\xe3\"}"),
        std::string(R"({"prompt":"\ud800"})"), std::string(R"({"prompt":"a","temperature":NaN})"),
        std::string(R"({"prompt":"a","temperature":1e999})"), std::string(R"({"prompt":"SECRET","stream":"true"})"),
        std::string("{\"prompt\":\"a\"} SECRET"), std::string("{\"prompt\":\"a\",\"model\":{\"SECRET\":1}}")}) {
    const auto refused = c.post("/v1/completions", body);
    EXPECT_EQ(refused.status, 400) << body;
    EXPECT_EQ(refused.error("type"), "invalid_request_error");
    EXPECT_EQ(refused.body.find("SECRET"), std::string::npos);
  }
  EXPECT_EQ(c.post("/v1/completions", R"({"prompt":"a"})").status, 200) << "the same connection goes on";
}

TEST_F(server_limits_test, deep_json_is_400) {
  serve();
  const std::string deep = "{\"prompt\":\"a\",\"metadata\":" + std::string(100'000, '[') + std::string(100'000, ']') + "}";
  EXPECT_EQ(post("/v1/completions", deep).status, 400);
  EXPECT_EQ(post("/v1/completions", R"({"prompt":"a","metadata":[[[1]]]})").status, 200);
}

TEST_F(server_limits_test, of_a_repeated_member_the_last_counts) {
  serve();
  const auto body = post("/v1/completions", R"({"prompt":"first","prompt":"second"})").json();
  EXPECT_EQ(body.find("choices")->as_array()[0].find("text")->as_string(), "second");
}

TEST_F(server_limits_test, other_media_types_are_415) {
  serve();
  auto c = connect();
  EXPECT_EQ(c.post("/v1/completions", R"({"prompt":"a"})", "Content-Type: text/plain\r\n").status, 415);
  EXPECT_EQ(c.post("/v1/completions", R"({"prompt":"a"})", "Content-Type: application/json\r\nContent-Encoding: gzip\r\n").status, 415);
  EXPECT_EQ(c.post("/v1/completions", R"({"prompt":"a"})", "Content-Type: Application/JSON; charset=utf-8\r\n").status, 200);
  EXPECT_EQ(c.post("/v1/completions", R"({"prompt":"a"})", "").status, 200) << "no type at all is taken as JSON";
}

TEST_F(server_limits_test, expect_100_continue_is_answered_before_the_body) {
  serve();
  auto c = connect();
  const std::string body = R"({"prompt":"a"})";
  const std::string head = "POST /v1/completions HTTP/1.1\r\nHost: h\r\nExpect: 100-continue\r\nContent-Length: ";
  c.send(head + std::to_string(body.size()) + "\r\n\r\n");
  ASSERT_TRUE(c.read_until("HTTP/1.1 100 Continue\r\n\r\n"));
  c.send(body);
  EXPECT_EQ(c.read_response().status, 200);
  c.send(head + "999999999\r\n\r\n");
  EXPECT_EQ(c.read_response().status, 413) << "a body that would be refused is not asked for";
  EXPECT_EQ(connect().post("/v1/completions", body, "Expect: tea\r\n").status, 417);
}

TEST_F(server_limits_test, a_chunked_body_in_single_bytes) {
  serve();
  auto c = connect();
  c.send("POST /v1/completions HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n");
  for (char byte : std::string(R"({"prompt":"piece by piece"})")) {
    for (char framed : std::string("1\r\n") + byte + "\r\n") c.send(std::string(1, framed));
  }
  c.send("0\r\n\r\n");
  EXPECT_EQ(c.read_response().json().find("choices")->as_array()[0].find("text")->as_string(), "piece by piece");
  EXPECT_EQ(c.get("/livez").status, 200);
}

TEST_F(server_limits_test, conflicting_lengths_are_400_and_end_the_connection) {
  serve();
  auto c = connect();
  c.send(
      "POST /v1/completions HTTP/1.1\r\nHost: h\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\nGET /livez "
      "HTTP/1.1\r\nHost: h\r\n\r\n");
  EXPECT_EQ(c.read_response().status, 400);
  EXPECT_TRUE(c.is_closed()) << "what may have been smuggled behind is not served";
  EXPECT_EQ(connect().get("/livez", "Host: twice\r\n").status, 400);
}

TEST_F(server_limits_test, http_1_0_is_answered_and_closed_and_streams_without_chunks) {
  serve();
  auto c = connect();
  c.send("GET /livez HTTP/1.0\r\n\r\n");
  EXPECT_EQ(c.read_response().status, 200);
  EXPECT_TRUE(c.is_closed());
  auto streaming = connect();
  const std::string body = R"({"prompt":"a","stream":true})";
  streaming.send("POST /v1/completions HTTP/1.0\r\nContent-Length: " + std::to_string(body.size()) + "\r\n\r\n" + body);
  const auto events = streaming.read_response();
  EXPECT_EQ(events.head.find("Transfer-Encoding"), std::string::npos);
  ASSERT_EQ(events.events().size(), 2U);
  EXPECT_EQ(events.events().back(), "[DONE]");
  EXPECT_EQ(connect().ask("GET", "/livez", "", "Connection: close\r\n").status, 200);
}

TEST_F(server_limits_test, pipelined_requests_are_answered_in_order) {
  serve();
  auto c = connect();
  std::string all;
  for (int i = 0; i < 50; ++i) all += client::request_text("POST", "/v1/completions", R"({"prompt":")" + std::to_string(i) + "\"}");
  all += client::request_text("GET", "/nowhere", "");
  c.send(all);
  for (int i = 0; i < 50; ++i) {
    EXPECT_EQ(c.read_response().json().find("choices")->as_array()[0].find("text")->as_string(), std::to_string(i));
  }
  EXPECT_EQ(c.read_response().status, 404);
}

TEST_F(server_limits_test, a_client_that_ends_its_side_still_reads_what_needs_no_work) {
  serve();
  auto c = connect();
  c.send(client::request_text("GET", "/livez", "") + client::request_text("GET", "/version", ""));
  c.end_sending();
  EXPECT_EQ(c.read_response().status, 200);
  EXPECT_EQ(c.read_response().status, 200);
  EXPECT_TRUE(c.is_closed());
}

TEST_F(server_limits_test, what_is_no_http_is_400) {
  serve();
  auto c = connect();
  c.send(std::string("\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", 11) + std::string(300, '\0') + "\r\n\r\n");
  EXPECT_EQ(c.read_response().status, 400);
  EXPECT_EQ(get("/livez").status, 200);
}

} // namespace
} // namespace troupe::testing
