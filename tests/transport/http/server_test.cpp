// Requests that are answered whole, over real sockets.
#include "transport/http/server.hpp"

#include "tests/transport/http/server_fixture.hpp"

namespace troupe::testing {
namespace {

using server_test = server_fixture;

TEST_F(server_test, read_only_routes_answer_and_keep_the_connection) {
  serve();
  auto c = connect();
  const auto models = c.get("/v1/models").json();
  ASSERT_EQ(models.find("data")->as_array().size(), 2U);
  EXPECT_EQ(models.find("data")->as_array()[0].find("id")->as_string(), "tiny");
  EXPECT_EQ(c.get("/v1/models/tiny-alias").json().find("id")->as_string(), "tiny-alias");
  EXPECT_EQ(c.get("/version?x=1").json().find("version")->as_string(), "1.2.3");
  for (const char* probe : {"/livez", "/readyz", "/health"}) EXPECT_EQ(c.get(probe).status, 200) << probe;
  const auto metrics = c.get("/metrics");
  EXPECT_EQ(metrics.body, "troupe_up 1\n");
  EXPECT_TRUE(metrics.has_header("Content-Type: text/plain; version=0.0.4; charset=utf-8"));
  const auto head = c.ask("HEAD", "/health", "");
  EXPECT_EQ(head.status, 200);
  EXPECT_TRUE(head.has_header("Content-Length: 15"));
  EXPECT_EQ(c.get("/livez").status, 200) << "nothing of HEAD's body is left in the connection";
}

TEST_F(server_test, unknown_routes_and_wrong_methods_get_openai_shaped_errors) {
  serve();
  auto c = connect();
  const auto unknown = c.get("/v2/anything");
  EXPECT_EQ(unknown.status, 404);
  EXPECT_EQ(unknown.error("type"), "not_found_error");
  const auto wrong = c.get("/v1/chat/completions");
  EXPECT_EQ(wrong.status, 405);
  EXPECT_TRUE(wrong.has_header("Allow: POST"));
  const auto removed = c.ask("DELETE", "/v1/models/tiny", "");
  EXPECT_EQ(removed.status, 405);
  EXPECT_TRUE(removed.has_header("Allow: GET, HEAD"));
  EXPECT_EQ(c.get("/v1/models/none").error("code"), "model_not_found");
}

TEST_F(server_test, metric_labels_come_from_a_closed_set_whatever_clients_ask_for) {
  serve();
  auto c = connect();
  for (int i = 0; i < 20; ++i) {
    EXPECT_EQ(c.get("/nowhere/" + std::to_string(i)).status, 404);
    EXPECT_EQ(c.get("/v1/models/m" + std::to_string(i)).status, 404);
    EXPECT_EQ(c.post("/v1/completions", R"({"prompt":"a","model":"m)" + std::to_string(i) + "\"}").status, 404);
  }
  const std::string long_name(1'000'000, 'm');
  EXPECT_EQ(c.post("/v1/completions", R"({"prompt":"a","model":")" + long_name + "\"}").status, 404);
  EXPECT_TRUE(eventually([&] { return count_done("/v1/completions", 404) == 21; }));
  const std::lock_guard guard(lock);
  const std::map<std::pair<std::string, int>, int> expected = {
      {{"other", 404}, 20}, {{"/v1/models/{id}", 404}, 20}, {{"/v1/completions", 404}, 21}};
  EXPECT_EQ(done, expected);
}

TEST_F(server_test, whole_completion_and_chat_with_request_ids) {
  handler.on_submit = [](const generation_request&, token_sink& sink) {
    sink.on_output(chunk("Hel"));
    sink.on_output(chunk("lo", finish_reason::length));
    sink.on_finished({3, 2, 1});
  };
  serve();
  auto c = connect();
  const auto completion = c.post("/v1/completions", R"({"prompt":"a"})", "Content-Type: application/json\r\nx-request-id: my-own.id_1\r\n");
  EXPECT_TRUE(completion.has_header("x-request-id: my-own.id_1"));
  const auto body = completion.json();
  EXPECT_EQ(body.find("choices")->as_array()[0].find("text")->as_string(), "Hello");
  EXPECT_EQ(body.find("usage")->find("total_tokens")->as_int(), 5);
  const auto chat = c.post("/v1/chat/completions", chat_body, "X-Request-Id: not\tfit\r\n");
  EXPECT_EQ(chat.head.find("not\tfit"), std::string::npos);
  EXPECT_NE(chat.head.find("\r\nx-request-id: "), std::string::npos);
  EXPECT_EQ(chat.json().find("choices")->as_array()[0].find("message")->find("content")->as_string(), "Hello");
  EXPECT_EQ(count_done("/v1/completions", 200), 1);
  EXPECT_TRUE(eventually([&] { return server->active_requests() == 0; }));
}

TEST_F(server_test, errors_of_the_serving_side_map_to_statuses) {
  const std::map<std::string, std::pair<error, int>> cases = {{"template", {invalid_request("messages", "roles must alternate"), 400}},
                                                              {"full", {{error_kind::overloaded, "the queue is full", "", 7}, 429}},
                                                              {"gone", {{error_kind::unavailable, "no device", "", std::nullopt}, 503}},
                                                              {"late", {{error_kind::timed_out, "too slow", "", std::nullopt}, 504}},
                                                              {"fault", {{error_kind::internal, "broken", "", std::nullopt}, 500}}};
  handler.on_submit = [&](const generation_request& request, token_sink& sink) {
    sink.on_error(cases.at(std::get<std::string>(request.prompts[0])).first);
  };
  serve();
  auto c = connect();
  for (const auto& [name, expected] : cases) {
    for (const char* stream : {"false", "true"}) { // a stream that has not begun can still refuse properly
      const auto got = c.post("/v1/completions", R"({"prompt":")" + name + R"(","stream":)" + stream + "}");
      EXPECT_EQ(got.status, expected.second) << name;
      EXPECT_EQ(got.error(), expected.first.message);
      EXPECT_EQ(got.error("param"), expected.first.param);
    }
  }
  EXPECT_TRUE(c.post("/v1/completions", R"({"prompt":"full"})").has_header("Retry-After: 7"));
}

TEST_F(server_test, an_exception_in_the_serving_side_is_a_500_and_harms_nobody) {
  handler.on_submit = [](const generation_request& request, token_sink& sink) {
    if (std::get<std::string>(request.prompts[0]) == "throw") throw std::runtime_error("secret detail");
    sink.on_output(chunk("x", finish_reason::stop));
    sink.on_finished({});
  };
  serve();
  auto c = connect();
  const auto broken = c.post("/v1/completions", R"({"prompt":"throw"})");
  EXPECT_EQ(broken.status, 500);
  EXPECT_EQ(broken.body.find("secret"), std::string::npos);
  EXPECT_EQ(c.post("/v1/completions", R"({"prompt":"fine"})").status, 200);
}

TEST_F(server_test, tokens_to_text_and_back) {
  serve();
  auto c = connect();
  const auto tokens = c.post("/tokenize", R"({"prompt":"ab","return_token_strs":true})").json();
  EXPECT_EQ(tokens.find("count")->as_int(), 2);
  EXPECT_EQ(tokens.find("max_model_len")->as_int(), 128);
  EXPECT_EQ(tokens.find("token_strs")->as_array()[1].as_string(), "\xef\xbf\xbd");
  EXPECT_EQ(c.post("/detokenize", R"({"tokens":[1,2,3]})").json().find("prompt")->as_string(), "xxx");
  EXPECT_NE(c.post("/detokenize", R"({"tokens":[1,100]})").error().find("100"), std::string::npos);
}

TEST_F(server_test, health_tells_loading_draining_and_death_apart) {
  serve();
  auto c = connect();
  handler.set_status({true, false, false, "loading"});
  EXPECT_EQ(c.get("/livez").status, 200);
  EXPECT_EQ(c.get("/readyz").status, 503);
  EXPECT_NE(c.get("/health").error().find("loading"), std::string::npos);
  const auto refused = c.post("/v1/completions", R"({"prompt":"a"})");
  EXPECT_EQ(refused.status, 503);
  EXPECT_EQ(handler.submitted(), 0U);
  handler.set_status({false, true, false, "no step in 120 s"});
  EXPECT_EQ(c.get("/livez").status, 503);
  EXPECT_NE(c.get("/health").error().find("no step in 120 s"), std::string::npos);
  EXPECT_EQ(c.get("/v1/models").status, 200);
}

TEST_F(server_test, keys_guard_every_route_but_the_probes) {
  options.api_keys = {"first-key", "second"};
  serve();
  for (const char* target : {"/v1/models", "/metrics", "/health", "/version", "/nowhere"}) {
    const auto refused = get(target);
    EXPECT_EQ(refused.status, 401) << target;
    EXPECT_EQ(refused.error("code"), "invalid_api_key");
    EXPECT_TRUE(refused.has_header("WWW-Authenticate: Bearer"));
  }
  auto c = connect();
  EXPECT_EQ(c.get("/livez").status, 200);
  EXPECT_EQ(c.get("/readyz").status, 200);
  EXPECT_EQ(c.get("/v1/models", "Authorization: Bearer second\r\n").status, 200);
  EXPECT_EQ(c.get("/nowhere", "Authorization: bearer  first-key\r\n").status, 404);
  EXPECT_EQ(c.get("/v1/models", "Authorization: Bearer first-ke\r\n").status, 401);
  EXPECT_EQ(c.get("/v1/models", "Authorization: Bearer first-key\r\nAuthorization: Bearer first-key\r\n").status, 401) << "ambiguous";
  EXPECT_EQ(c.post("/v1/completions", R"({"prompt":"a"})").status, 401);
  EXPECT_EQ(handler.submitted(), 0U);
}

TEST_F(server_test, a_body_for_a_refused_request_is_not_waited_for) {
  options.api_keys = {"k"};
  serve();
  auto c = connect();
  c.send("POST /v1/completions HTTP/1.1\r\nHost: h\r\nContent-Length: 1000000\r\n\r\n{");
  const auto refused = c.read_response();
  EXPECT_EQ(refused.status, 401);
  EXPECT_TRUE(refused.has_header("Connection: close"));
}

TEST_F(server_test, listening_on_a_taken_port_names_host_and_port) {
  serve();
  options.port = server->port();
  try {
    http::server second(options, handler, {});
    FAIL() << "a second server listens on the same port";
  } catch (const std::runtime_error& e) {
    EXPECT_NE(std::string(e.what()).find("127.0.0.1:" + std::to_string(options.port)), std::string::npos) << e.what();
  }
}

} // namespace
} // namespace troupe::testing
