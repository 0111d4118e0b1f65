#include "apps/bench/load.hpp"

#include <gtest/gtest.h>

#include <csignal>

#include "tests/apps/bench/script_server.hpp"

namespace troupe::bench {
namespace {

using namespace std::chrono_literals;
using testing::script_server;
using testing::scripted_answer;

std::string sized(int status, const std::string& body) {
  return "HTTP/1.1 " + std::to_string(status) + " X\r\nContent-Length: " + std::to_string(body.size()) + "\r\n\r\n" + body;
}

std::string events(int tokens, bool whole = true) {
  std::string body;
  for (int i = 0; i < tokens; ++i) body += "data: {\"choices\":[{\"text\":\"x\"}]}\n\n";
  if (whole) {
    body +=
        "data: {\"choices\":[],\"usage\":{\"prompt_tokens\":3,\"completion_tokens\":" + std::to_string(tokens) + "}}\n\ndata: [DONE]\n\n";
  }
  return body;
}

std::string stream(int tokens) { return sized(200, events(tokens)); }

load_options options(const script_server& server, std::size_t count) {
  load_options out;
  out.connection.url = parse_url("http://127.0.0.1:" + std::to_string(server.port())).value;
  out.connection.timeout = 5s;
  out.due.assign(count, 0.0);
  return out;
}

std::vector<planned_request> requests(std::size_t count) { return std::vector<planned_request>(count, {"/v1/completions", "{}", 3}); }

TEST(Load, KeepsConnectionsAndRecordsEveryRequest) {
  script_server server([](int, const std::string&) { return scripted_answer{stream(4)}; });
  auto with = options(server, 20);
  with.max_concurrency = 1;
  const auto ran = run_load(with, requests(20));
  ASSERT_TRUE(ran);
  ASSERT_EQ(ran->records.size(), 20U);
  for (const auto& record : ran->records) {
    EXPECT_EQ(record.failure, "") << record.detail;
    EXPECT_EQ(record.output_tokens, 4);
    EXPECT_EQ(record.gaps.size(), 3U);
    EXPECT_GE(record.ended, record.first.value());
  }
  EXPECT_EQ(server.requests(), 20);
  EXPECT_EQ(server.connections(), 1);
}

TEST(Load, EveryKindOfFailureIsTold) {
  script_server server([](int number, const std::string&) -> scripted_answer {
    switch (number) {
      case 0:
        return {sized(429, R"({"error":{"message":"full"}})")};
      case 1:
        return {sized(200, events(2, false))};
      case 2:
        return {"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n" + events(1, false), true};
      case 3:
        return {"", true};
      case 4:
        return {"SSH-2.0\r\n\r\n", true};
      case 5:
        return {sized(200, "data: {\n\n")};
      case 6:
        return {sized(200, "data: {\"error\":{\"message\":\"lost\"}}\n\n")};
      default:
        return {stream(1)};
    }
  });
  auto with = options(server, 8);
  with.max_concurrency = 1;
  with.connection.timeout = 2s;
  const auto ran = run_load(with, requests(8));
  ASSERT_TRUE(ran);
  std::vector<std::string> kinds;
  for (const auto& record : ran->records) kinds.push_back(record.failure);
  // The fourth is answered by a close on a kept or a new connection; the client tries a kept one once more.
  EXPECT_EQ(kinds[0], "http 429");
  EXPECT_EQ(ran->records[0].detail, "full");
  EXPECT_EQ(kinds[1], "cut off");
  EXPECT_EQ(kinds[2], "disconnected");
  EXPECT_EQ(kinds[3], "disconnected");
  EXPECT_EQ(kinds[4], "malformed answer");
  EXPECT_EQ(kinds[5], "malformed event");
  EXPECT_EQ(kinds[6], "error event");
  EXPECT_EQ(kinds[7], "");
}

TEST(Load, AKeptConnectionThatTheServerClosedIsNoFailure) {
  script_server server([](int, const std::string&) { return scripted_answer{stream(2), true}; }); // closes without saying so
  auto with = options(server, 10);
  with.max_concurrency = 1;
  const auto ran = run_load(with, requests(10));
  ASSERT_TRUE(ran);
  for (const auto& record : ran->records) EXPECT_EQ(record.failure, "") << record.detail;
  EXPECT_EQ(server.connections(), 10);
}

TEST(Load, NoMoreRequestsAtOnceThanAllowed) {
  script_server server([](int, const std::string&) { return scripted_answer{stream(1), false, 50ms}; });
  auto with = options(server, 20);
  with.max_concurrency = 3;
  ASSERT_TRUE(run_load(with, requests(20)));
  EXPECT_EQ(server.most_at_once(), 3);
}

TEST(Load, ArrivalsDoNotWaitForAnswers) {
  script_server server([](int, const std::string&) { return scripted_answer{stream(1), false, 600ms}; });
  auto with = options(server, 5);
  with.due = {0, 0.03, 0.06, 0.09, 0.12};
  const auto ran = run_load(with, requests(5));
  ASSERT_TRUE(ran);
  EXPECT_EQ(server.most_at_once(), 5);
  for (std::size_t i = 0; i < 5; ++i) {
    EXPECT_GE(ran->records[i].sent, with.due[i]);
    EXPECT_LT(ran->records[i].sent, with.due[i] + 0.4);
    EXPECT_GE(time_to_first_token(ran->records[i]), 0.6);
  }
}

TEST(Load, ASilentServerRunsIntoTheTimeout) {
  script_server server([](int, const std::string&) { return scripted_answer{"", false}; });
  auto with = options(server, 2);
  with.connection.timeout = 100ms;
  const auto ran = run_load(with, requests(2));
  ASSERT_TRUE(ran);
  for (const auto& record : ran->records) EXPECT_EQ(record.failure, "timeout");
}

TEST(Load, NobodyListeningIsAFailureOfEachRequest) {
  std::uint16_t port = 0;
  {
    port = script_server([](int, const std::string&) { return scripted_answer{}; }).port();
  }
  load_options with;
  with.connection.url = parse_url("http://127.0.0.1:" + std::to_string(port)).value;
  with.due = {0, 0};
  const auto ran = run_load(with, requests(2));
  ASSERT_TRUE(ran);
  for (const auto& record : ran->records) EXPECT_EQ(record.failure, "connect");
  EXPECT_FALSE(get(with.connection, "/v1/models"));
}

TEST(Load, InterruptKeepsWhatEndedAndReturnsAtOnce) {
  script_server server([](int number, const std::string&) -> scripted_answer {
    if (number < 2) return {stream(1)};
    if (number == 2) std::raise(SIGINT);
    return {"", false};
  });
  auto with = options(server, 50);
  with.max_concurrency = 1;
  const auto ran = run_load(with, requests(50));
  ASSERT_TRUE(ran);
  EXPECT_TRUE(ran->interrupted);
  EXPECT_EQ(ran->records.size(), 2U);
}

TEST(Load, KeyHostAndProgressAreSentAndReported) {
  std::string seen;
  script_server server([&](int, const std::string& request) {
    seen = request;
    return scripted_answer{stream(3)};
  });
  auto with = options(server, 1);
  with.connection.api_key = "secret";
  with.connection.url.prefix = "/gate";
  progress last;
  with.on_progress = [&](const progress& now) { last = now; };
  ASSERT_TRUE(run_load(with, requests(1)));
  EXPECT_EQ(last.finished, 1U);
  EXPECT_EQ(last.outputs, 3);
  EXPECT_TRUE(seen.starts_with("POST /gate/v1/completions HTTP/1.1\r\n"));
  EXPECT_NE(seen.find("Authorization: Bearer secret\r\n"), std::string::npos);
  EXPECT_NE(seen.find("Host: 127.0.0.1:" + std::to_string(server.port()) + "\r\n"), std::string::npos);
}

TEST(Get, ReturnsTheBodyOrTheServersReason) {
  script_server server([](int number, const std::string&) {
    return scripted_answer{number == 0 ? sized(200, "fine") : sized(401, R"({"error":{"message":"no key"}})")};
  });
  const auto with = options(server, 0).connection;
  EXPECT_EQ(*get(with, "/x"), "fine");
  const auto refused = get(with, "/x");
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.failure().message, "/x answered 401: no key");
}

} // namespace
} // namespace troupe::bench
