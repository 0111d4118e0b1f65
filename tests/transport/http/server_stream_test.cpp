// Streams, clients that leave or do not read, drain and stop, over real sockets.
#include <atomic>
#include <chrono>
#include <thread>

#include "tests/tools/echo_handler.hpp"
#include "tests/transport/http/server_fixture.hpp"

namespace troupe::testing {
namespace {

using namespace std::chrono_literals;
using server_stream_test = server_fixture;

TEST_F(server_stream_test, events_arrive_as_they_are_made_and_the_connection_goes_on) {
  serve();
  auto c = connect();
  c.send(client::request_text("POST", "/v1/chat/completions", chat_stream_body));
  const auto taken = handler.wait_for();
  ASSERT_TRUE(taken.sink);
  EXPECT_EQ(server->active_requests(), 1U);
  taken.sink->on_output(chunk("first"));
  ASSERT_TRUE(c.read_until("\"first\"")) << "the first event waits for no second";
  taken.sink->on_output(chunk("second", finish_reason::stop));
  taken.sink->on_finished({1, 2, 0});
  const auto got = c.read_response();
  EXPECT_TRUE(got.complete);
  EXPECT_TRUE(got.has_header("Content-Type: text/event-stream; charset=utf-8"));
  EXPECT_EQ(got.events().back(), "[DONE]");
  EXPECT_EQ(got.events().size(), 5U) << got.body; // role, two deltas, the finish, [DONE]
  EXPECT_EQ(c.get("/livez").status, 200);
  EXPECT_EQ(server->active_requests(), 0U);
  EXPECT_EQ(handler.cancels(), 0U);
  EXPECT_EQ(count_done("/v1/chat/completions", 200), 1);
}

TEST_F(server_stream_test, an_error_after_the_start_is_an_event_and_then_the_end) {
  serve();
  auto c = connect();
  c.send(client::request_text("POST", "/v1/chat/completions", chat_stream_body));
  const auto taken = handler.wait_for();
  taken.sink->on_output(chunk("some"));
  taken.sink->on_error({error_kind::internal, "the device broke", "", std::nullopt});
  taken.sink->on_output(chunk("late call, ignored"));
  const auto got = c.read_response();
  EXPECT_TRUE(got.complete);
  EXPECT_NE(got.events().back().find("the device broke"), std::string::npos);
  EXPECT_EQ(got.body.find("[DONE]"), std::string::npos);
  EXPECT_TRUE(c.is_closed());
}

TEST_F(server_stream_test, a_choice_that_failed_ends_the_answer_with_an_error) {
  serve();
  auto streaming = connect();
  streaming.send(client::request_text("POST", "/v1/chat/completions", chat_stream_body));
  auto taken = handler.wait_for(0);
  taken.sink->on_output(chunk("some"));
  taken.sink->on_output(chunk("", finish_reason::failed));
  EXPECT_NE(streaming.read_response().events().back().find("\"error\""), std::string::npos);
  auto whole = connect();
  whole.send(client::request_text("POST", "/v1/chat/completions", chat_body));
  taken = handler.wait_for(1);
  taken.sink->on_output(chunk("some"));
  taken.sink->on_output(chunk("", finish_reason::failed));
  EXPECT_EQ(whole.read_response().status, 500);
}

TEST_F(server_stream_test, a_client_that_leaves_cancels_its_request_at_every_stage) {
  serve();
  for (int stage = 0; stage < 4; ++stage) {
    auto c = connect();
    c.send(client::request_text("POST", "/v1/chat/completions", stage == 3 ? chat_body : chat_stream_body));
    const auto taken = handler.wait_for(static_cast<std::size_t>(stage));
    ASSERT_TRUE(taken.sink);
    if (stage == 1) taken.sink->on_output(chunk("x"));
    if (stage == 2) {
      taken.sink->on_output(chunk("y"));
      ASSERT_TRUE(c.read_until("\"y\""));
    }
    c.close();
    EXPECT_TRUE(handler.wait_cancelled(taken.request.id)) << "stage " << stage;
    taken.sink->on_output(chunk("to nobody"));
    taken.sink->on_error({error_kind::cancelled, "cancelled", "", std::nullopt});
    EXPECT_TRUE(eventually([&] { return server->active_requests() == 0; }));
  }
  // 499 where no answer had begun (at stage 1 it may have), else the status that was sent.
  const auto gone = count_done("/v1/chat/completions", 499);
  EXPECT_TRUE(gone == 2 || gone == 3) << gone;
  EXPECT_EQ(gone + count_done("/v1/chat/completions", 200), 4);
}

TEST_F(server_stream_test, pipelined_work_of_a_client_that_left_is_never_begun) {
  serve();
  auto c = connect();
  const auto request = client::request_text("POST", "/v1/chat/completions", chat_body);
  c.send(request + request + request);
  const auto taken = handler.wait_for();
  c.close();
  EXPECT_TRUE(handler.wait_cancelled(taken.request.id));
  EXPECT_TRUE(eventually([&] { return server->active_requests() == 0; }));
  EXPECT_EQ(handler.submitted(), 1U);
}

TEST_F(server_stream_test, a_flood_behind_a_request_is_not_buffered_without_end) {
  serve();
  auto c = connect();
  c.send(client::request_text("POST", "/v1/chat/completions", chat_body));
  const auto taken = handler.wait_for();
  std::atomic<std::size_t> sent{0};
  std::thread flood([&] {
    const std::string block(64 << 10, 'x');
    while (sent < (64U << 20) && c.send(block)) sent += block.size();
  });
  std::this_thread::sleep_for(300ms);
  EXPECT_LT(sent, 32U << 20) << "the server stops reading, the client stops getting rid of bytes";
  taken.sink->on_output(chunk("x", finish_reason::stop));
  taken.sink->on_finished({});
  flood.join();
  EXPECT_EQ(c.read_response().status, 200);
}

TEST_F(server_stream_test, a_slow_reader_is_dropped_and_its_request_cancelled) {
  options.limits.unsent_bytes = 64 << 10;
  serve();
  auto c = connect(4096);
  c.send(client::request_text("POST", "/v1/chat/completions", chat_stream_body));
  const auto taken = handler.wait_for();
  const std::string text(8 << 10, 'x');
  std::size_t made = 0;
  for (; dropped == 0 && made < (256U << 20); made += text.size()) taken.sink->on_output(chunk(text));
  EXPECT_TRUE(handler.wait_cancelled(taken.request.id));
  EXPECT_EQ(dropped, 1);
  EXPECT_TRUE(eventually([&] { return server->active_requests() == 0; }));
}

// Slowly enough that each event goes into a write of its own: one of them gets stuck, long before the channel is full.
TEST_F(server_stream_test, a_reader_that_stops_while_a_write_is_under_way_is_dropped_too) {
  options.limits.unsent_bytes = 64 << 10;
  options.limits.write_timeout = std::chrono::minutes(5);
  serve();
  auto c = connect(4096);
  c.send(client::request_text("POST", "/v1/chat/completions", chat_stream_body));
  const auto taken = handler.wait_for();
  const std::string text(256 << 10, 'x');
  for (int i = 0; dropped == 0 && i < 2000; ++i) {
    taken.sink->on_output(chunk(text));
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  EXPECT_EQ(dropped, 1);
  EXPECT_TRUE(handler.wait_cancelled(taken.request.id));
}

TEST_F(server_stream_test, a_reader_that_stands_still_is_dropped_after_the_write_timeout) {
  options.limits.write_timeout = 1s;
  options.limits.unsent_bytes = 1U << 30;
  serve();
  auto c = connect(4096);
  c.send(client::request_text("POST", "/v1/chat/completions", chat_stream_body));
  const auto taken = handler.wait_for();
  taken.sink->on_output(chunk(std::string(16U << 20, 'x')));
  EXPECT_TRUE(handler.wait_cancelled(taken.request.id));
  EXPECT_EQ(dropped, 1);
}

TEST_F(server_stream_test, a_reader_that_keeps_up_is_never_dropped) {
  options.limits.unsent_bytes = 64 << 10;
  serve();
  auto c = connect();
  c.send(client::request_text("POST", "/v1/chat/completions", chat_stream_body));
  const auto taken = handler.wait_for();
  const std::string text(1000, 'x');
  for (int i = 0; i < 2000; ++i) {
    taken.sink->on_output(chunk("<" + std::to_string(i) + ">" + text));
    if (i % 20 == 19) {
      ASSERT_TRUE(c.read_until("<" + std::to_string(i) + ">"));
    }
  }
  taken.sink->on_finished({});
  EXPECT_TRUE(c.read_response().complete);
  EXPECT_EQ(dropped, 0);
}

TEST_F(server_stream_test, draining_refuses_new_work_and_lets_running_work_end) {
  serve();
  auto running = connect();
  auto idle = connect();
  EXPECT_EQ(idle.get("/readyz").status, 200);
  running.send(client::request_text("POST", "/v1/chat/completions", chat_stream_body));
  const auto taken = handler.wait_for();
  taken.sink->on_output(chunk("before"));
  ASSERT_TRUE(running.read_until("before"));
  server->drain();
  EXPECT_TRUE(eventually([&] { return !connect().connected(); })) << "no new connection";
  EXPECT_EQ(idle.get("/v1/models").status, 200) << "a connection that is open may still ask";
  EXPECT_TRUE(idle.is_closed()) << "once";
  EXPECT_EQ(server->active_requests(), 1U);
  taken.sink->on_output(chunk("after", finish_reason::stop));
  taken.sink->on_finished({});
  const auto got = running.read_response();
  EXPECT_EQ(got.events().back(), "[DONE]");
  EXPECT_EQ(running.get("/livez").status, 200) << "it was told that it may go on: once more";
  EXPECT_TRUE(running.is_closed());
  EXPECT_EQ(server->active_requests(), 0U);
}

TEST_F(server_stream_test, draining_refuses_work_on_open_connections) {
  serve();
  auto probe = connect();
  auto worker = connect();
  EXPECT_EQ(probe.get("/readyz").status, 200);
  EXPECT_EQ(worker.get("/livez").status, 200);
  server->drain();
  const auto refused = worker.post("/v1/chat/completions", chat_body);
  EXPECT_EQ(refused.status, 503);
  EXPECT_TRUE(refused.has_header("Connection: close"));
  EXPECT_NE(probe.get("/readyz").error().find("draining"), std::string::npos);
  EXPECT_EQ(handler.submitted(), 0U);
}

TEST_F(server_stream_test, stop_ends_streams_with_an_error_event_and_whole_answers_with_503) {
  serve();
  auto streaming = connect();
  auto waiting = connect();
  auto idle = connect();
  EXPECT_EQ(idle.get("/livez").status, 200);
  streaming.send(client::request_text("POST", "/v1/chat/completions", chat_stream_body));
  const auto first = handler.wait_for(0);
  first.sink->on_output(chunk("begun"));
  waiting.send(client::request_text("POST", "/v1/chat/completions", chat_body));
  const auto second = handler.wait_for(1);
  ASSERT_TRUE(streaming.read_until("begun"));
  const auto before = std::chrono::steady_clock::now();
  server->stop();
  EXPECT_LT(std::chrono::steady_clock::now() - before, 2s) << "clients that read are not waited for";
  const auto events = streaming.read_response();
  EXPECT_TRUE(events.complete);
  EXPECT_NE(events.events().back().find("shutting down"), std::string::npos);
  EXPECT_EQ(waiting.read_response().status, 503);
  EXPECT_TRUE(idle.is_closed());
  EXPECT_TRUE(handler.wait_cancelled(first.request.id));
  EXPECT_TRUE(handler.wait_cancelled(second.request.id));
  EXPECT_EQ(server->active_requests(), 0U);
  first.sink->on_error({error_kind::cancelled, "cancelled", "", std::nullopt}); // after the server's end: touches nothing of it
  server->stop();
}

TEST_F(server_stream_test, stop_does_not_wait_for_a_client_that_never_reads) {
  options.limits.unsent_bytes = 1U << 30;
  serve();
  auto c = connect(4096);
  c.send(client::request_text("POST", "/v1/chat/completions", chat_stream_body));
  const auto taken = handler.wait_for();
  taken.sink->on_output(chunk(std::string(16U << 20, 'x')));
  const auto before = std::chrono::steady_clock::now();
  server->stop();
  EXPECT_LT(std::chrono::steady_clock::now() - before, 5s);
}

TEST_F(server_stream_test, sinks_and_replies_that_outlive_the_server_do_no_harm) {
  std::function<void(result<std::string>)> late;
  std::atomic<bool> asked{false};
  handler.on_detokenize = [&](auto reply) {
    late = std::move(reply);
    asked = true;
  };
  serve();
  auto c = connect();
  c.send(client::request_text("POST", "/detokenize", R"({"tokens":[1]})"));
  auto streaming = connect();
  streaming.send(client::request_text("POST", "/v1/chat/completions", chat_stream_body));
  const auto taken = handler.wait_for();
  ASSERT_TRUE(eventually([&] { return asked.load(); }));
  std::thread producer([&] {
    for (int i = 0; i < 20'000; ++i) taken.sink->on_output(chunk("x"));
  });
  server.reset();
  late(std::string("too late"));
  producer.join();
  taken.sink->on_finished({});
}

TEST_F(server_stream_test, two_hundred_streams_at_once_are_all_whole) {
  echo_handler echo(1ms);
  http::server many(options, echo, {});
  constexpr int streams = 200;
  std::vector<client> clients;
  for (int i = 0; i < streams; ++i) {
    clients.emplace_back(many.port());
    const std::string prompt = "stream " + std::to_string(i) + " says one two three four";
    clients.back().send(client::request_text("POST", "/v1/completions", R"({"prompt":")" + prompt + R"(","max_tokens":20,"stream":true})"));
  }
  for (int i = 0; i < streams; ++i) {
    if (i % 10 == 3) {
      clients[static_cast<std::size_t>(i)].close();
      continue;
    }
    const auto got = clients[static_cast<std::size_t>(i)].read_response();
    EXPECT_TRUE(got.complete);
    const auto events = got.events();
    ASSERT_EQ(events.size(), 21U);
    std::string text;
    for (std::size_t e = 0; e + 1 < events.size(); ++e) {
      text += json::parse(events[e])->find("choices")->as_array()[0].find("text")->as_string();
    }
    EXPECT_EQ(text.find("stream " + std::to_string(i) + " says one two three fourstream"), 0U) << text;
  }
  EXPECT_TRUE(eventually([&] { return many.active_requests() == 0; }));
}

} // namespace
} // namespace troupe::testing
