// A server on a free loopback port in front of a scripted handler.
#pragma once

#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>

#include "tests/eventually.hpp"
#include "tests/transport/http/client.hpp"
#include "tests/transport/http/scripted_handler.hpp"
#include "transport/http/server.hpp"

namespace troupe::testing {

class server_fixture : public ::testing::Test {
 protected:
  void serve() {
    http::server_hooks hooks;
    hooks.metrics_text = [] { return std::string("troupe_up 1\n"); };
    hooks.request_done = [this](std::string_view route, int status) {
      const std::lock_guard guard(lock);
      ++done[{std::string(route), status}];
    };
    hooks.slow_reader_dropped = [this] { ++dropped; };
    server = std::make_unique<http::server>(options, handler, hooks);
  }
  void TearDown() override { server.reset(); } // before the handler and the counts

  client connect(int receive_buffer = 0) { return client(server->port(), receive_buffer); }
  response get(const std::string& target) { return connect().get(target); }
  response post(const std::string& target, const std::string& body) { return connect().post(target, body); }
  int count_done(const std::string& route, int status) {
    const std::lock_guard guard(lock);
    return done[{route, status}];
  }
  template <class Condition>
  static bool eventually(Condition condition) {
    return test::eventually(condition, std::chrono::seconds(10));
  }

  http::server_options options{"127.0.0.1", 0, 2, {}, "1.2.3", {}};
  scripted_handler handler;
  std::mutex lock;
  std::map<std::pair<std::string, int>, int> done;
  std::atomic<int> dropped{0};
  std::unique_ptr<http::server> server;
};

inline const char* const chat_body = R"({"messages":[{"role":"user","content":"hi"}]})";
inline const char* const chat_stream_body = R"({"messages":[{"role":"user","content":"hi"}],"stream":true})";

} // namespace troupe::testing
