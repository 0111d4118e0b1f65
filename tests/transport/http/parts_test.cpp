// The small parts: routes, keys, the request reader, heads, and the channel between threads.
#include <gtest/gtest.h>

#include "transport/http/auth.hpp"
#include "transport/http/http_head.hpp"
#include "transport/http/reply_channel.hpp"
#include "transport/http/request_reader.hpp"
#include "transport/http/router.hpp"

namespace troupe::http {
namespace {

TEST(router, finds_routes_in_every_form_of_target) {
  EXPECT_EQ(find_route("GET", "/v1/models").target, route::models);
  EXPECT_EQ(find_route("GET", "/v1/models?after=1").target, route::models);
  EXPECT_EQ(find_route("GET", "http://host:80/v1/models?x").target, route::models);
  EXPECT_EQ(find_route("POST", "/v1/chat/completions").target, route::chat_completions);
  for (const char* other :
       {"", "/", "*", "host:80", "/v1", "/v1/models/", "/V1/models", "/v1/models2", "//v1/models", "http://host", "/v1/completions/"}) {
    const auto found = find_route("GET", other);
    EXPECT_EQ(found.target, route::unknown) << other;
    EXPECT_EQ(found.name, "other");
  }
}

TEST(router, decodes_model_names_and_labels_them_alike) {
  const auto plain = find_route("GET", "/v1/models/org/name");
  const auto encoded = find_route("GET", "/v1/models/org%2Fname?x=%");
  EXPECT_EQ(plain.argument, "org/name");
  EXPECT_EQ(encoded.argument, "org/name");
  EXPECT_EQ(encoded.name, "/v1/models/{id}");
  EXPECT_EQ(find_route("GET", "/v1/models/%").argument, "%");
  EXPECT_EQ(find_route("GET", "/v1/models/%4").argument, "%4");
  EXPECT_EQ(find_route("GET", "/v1/models/%-1%zz").argument, "%-1%zz");
}

TEST(router, tells_which_methods_a_route_takes) {
  EXPECT_TRUE(find_route("HEAD", "/metrics").method_allowed);
  EXPECT_FALSE(find_route("HEAD", "/tokenize").method_allowed);
  EXPECT_FALSE(find_route("get", "/livez").method_allowed);
  EXPECT_EQ(find_route("PUT", "/tokenize").allow, "POST");
}

TEST(auth, only_a_whole_key_opens) {
  const std::vector<std::string> keys = {"abc", "a-much-longer-key"};
  EXPECT_TRUE(is_authorized("", {}));
  EXPECT_TRUE(is_authorized("Bearer abc", keys));
  EXPECT_TRUE(is_authorized("BEARER   a-much-longer-key", keys));
  for (const char* bad : {"", "Bearer", "Bearer ", "Bearer    ", "abc", "Basic abc", "Bearer ab", "Bearer abcd", "Bearer abcabc",
                          "Bearer abc ", "Bearer ABC", "Bearerabc"}) {
    EXPECT_FALSE(is_authorized(bad, keys)) << bad;
  }
  EXPECT_FALSE(is_authorized("Bearer ", {""})) << "an empty key opens nothing";
}

// Feeds `text` in pieces of `size`, as the session does. Returns the last state.
request_reader::progress feed_all(request_reader& reader, const std::string& text, std::size_t size, std::string* rest = nullptr) {
  std::string pending;
  auto state = request_reader::progress::need_more;
  for (std::size_t at = 0; at < text.size() && state != request_reader::progress::complete && state != request_reader::progress::failed;
       at += size) {
    pending += text.substr(at, size);
    do {
      const auto step = reader.feed(pending);
      pending.erase(0, step.consumed);
      state = step.state;
    } while (state == request_reader::progress::header_ready);
    if (rest != nullptr) *rest = pending + (at + size < text.size() ? text.substr(at + size) : "");
  }
  return state;
}

TEST(request_reader, any_split_of_the_bytes_reads_the_same) {
  const std::string text =
      "\r\nPOST /x?y HTTP/1.1\r\nHost: h\r\nX-Two: a\r\nX-Two: b\r\nTransfer-Encoding: "
      "chunked\r\n\r\n3;ext=1\r\nabc\r\n2\r\nde\r\n0\r\nTrail: er\r\n\r\nGET ";
  for (std::size_t size = 1; size <= text.size(); ++size) {
    request_reader reader{server_limits()};
    std::string rest;
    ASSERT_EQ(feed_all(reader, text, size, &rest), request_reader::progress::complete) << size;
    EXPECT_EQ(reader.body(), "abcde");
    EXPECT_EQ(reader.method(), "POST");
    EXPECT_EQ(reader.target(), "/x?y");
    EXPECT_EQ(reader.header("host"), "h");
    EXPECT_EQ(reader.header("X-Two"), "") << "not there once";
    EXPECT_EQ(reader.header_count("x-two"), 2U);
    EXPECT_EQ(rest, "GET ") << "the next request is not touched";
    reader.reset();
    EXPECT_FALSE(reader.started());
    EXPECT_EQ(feed_all(reader, "GET / HTTP/1.0\r\n\r\n", size), request_reader::progress::complete);
    EXPECT_TRUE(reader.is_http_1_0());
    EXPECT_FALSE(reader.keep_alive());
  }
}

TEST(request_reader, limits_hold_for_every_part) {
  server_limits small;
  small.header_bytes = 200;
  small.body_bytes = 100;
  auto status = [&](const std::string& text) {
    request_reader reader(small);
    EXPECT_EQ(feed_all(reader, text, 64), request_reader::progress::failed) << text.substr(0, 60);
    EXPECT_EQ(reader.feed("x").state, request_reader::progress::failed) << "a failure is final";
    return reader.failure_status();
  };
  EXPECT_EQ(status("GET /" + std::string(300, 'x')), 431);
  EXPECT_EQ(status("GET / HTTP/1.1\r\n" + std::string(300, 'x')), 431);
  EXPECT_EQ(status("POST / HTTP/1.1\r\nContent-Length: 101\r\n\r\n"), 413);
  EXPECT_EQ(status("POST / HTTP/1.1\r\nContent-Length: 99999999999999999999\r\n\r\n"), 400);
  EXPECT_EQ(status("POST / HTTP/1.1\r\nContent-Length: -1\r\n\r\n"), 400);
  EXPECT_EQ(status("POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n65\r\n" + std::string(101, 'x')), 413);
  EXPECT_EQ(status("POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\nfffffffffffffffff\r\n"), 400);
  EXPECT_EQ(status("POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n1;" + std::string(70'000, 'e')), 431);
  EXPECT_EQ(status("POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n0\r\nT: " + std::string(70'000, 'e')), 431);
  EXPECT_EQ(status("GET / HTTP/2.0\r\n\r\n"), 505);
  EXPECT_EQ(status("nonsense\r\n\r\n"), 400);
}

TEST(http_head, only_harmless_ids_are_echoed) {
  EXPECT_TRUE(is_echoable_id("A-1_~!"));
  EXPECT_TRUE(is_echoable_id(std::string(128, 'x')));
  for (const std::string& bad :
       {std::string(), std::string(129, 'x'), std::string("a b"), std::string("a\tb"), std::string("\xc3\xa9"), std::string("a\x7f")}) {
    EXPECT_FALSE(is_echoable_id(bad));
  }
}

TEST(http_head, chunks_are_framed) {
  EXPECT_EQ(chunk_of("hello"), "5\r\nhello\r\n");
  EXPECT_EQ(chunk_of(std::string(255, 'x')).substr(0, 4), "ff\r\n");
}

TEST(reply_channel, the_first_end_wins) {
  reply_channel whole(100);
  whole.fail({error_kind::overloaded, "full", "", 3});
  whole.answer({});
  whole.stream("late");
  auto out = whole.take();
  ASSERT_TRUE(out.whole);
  EXPECT_EQ(out.whole->status, 429);
  EXPECT_EQ(out.whole->header_lines, "Retry-After: 3\r\n");
  EXPECT_TRUE(out.ended);
  EXPECT_FALSE(whole.is_open());

  reply_channel stream(100);
  stream.stream("a");
  stream.answer({}); // not once it streams
  stream.fail({error_kind::internal, "broken", "", std::nullopt});
  stream.end_stream("[DONE]");
  out = stream.take();
  EXPECT_FALSE(out.whole);
  EXPECT_EQ(out.events.substr(0, 10), "adata: {\"e");
  EXPECT_EQ(out.events.find("[DONE]"), std::string::npos);
  EXPECT_TRUE(out.failed);
}

TEST(reply_channel, what_a_client_does_not_read_is_bounded) {
  reply_channel channel(100);
  channel.stream(std::string(60, 'x'));
  EXPECT_EQ(channel.take().events.size(), 60U); // taken, but not yet sent
  channel.stream(std::string(60, 'x'));
  EXPECT_FALSE(channel.take().overflowed) << "one event may pass the limit";
  channel.stream("y");
  const auto out = channel.take();
  EXPECT_TRUE(out.overflowed);
  EXPECT_TRUE(out.events.empty());
  EXPECT_FALSE(channel.is_open());

  reply_channel reading(100);
  for (int i = 0; i < 100; ++i) {
    reading.stream(std::string(60, 'x'));
    reading.sent(reading.take().events.size());
  }
  EXPECT_TRUE(reading.is_open());
}

TEST(reply_channel, one_wake_for_many_events_and_none_after_detach) {
  reply_channel channel(100);
  int wakes = 0;
  channel.attach([&] { ++wakes; });
  channel.stream("a");
  channel.stream("b");
  EXPECT_EQ(wakes, 1);
  EXPECT_EQ(channel.take().events, "ab");
  channel.stream("c");
  EXPECT_EQ(wakes, 2);
  channel.detach();
  channel.take();
  channel.stream("d");
  channel.fail({error_kind::internal, "late", "", std::nullopt});
  EXPECT_EQ(wakes, 2);
  EXPECT_TRUE(channel.take().events.empty());
}

} // namespace
} // namespace troupe::http
