// Both ends of a cluster's door: who is let in, who is not, and that bytes arrive.
#include "transport/cluster/gate.hpp"

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <filesystem>
#include <functional>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "tests/eventually.hpp"
#include "tests/transport/cluster/certificates.hpp"
#include "transport/cluster/links.hpp"

namespace troupe::cluster {
namespace {

using namespace std::chrono_literals;

constexpr const char* kToken = "sixteen letters and more";
const identity kProgram{"1-aa", "1.0", "build-a"};

sockaddr_in loopback(std::uint16_t port) {
  sockaddr_in at{};
  at.sin_family = AF_INET;
  at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  at.sin_port = htons(port);
  return at;
}

// A listening socket, -1 where there is none, and its port.
int listen_on_loopback(std::uint16_t& port) {
  const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in at = loopback(0);
  socklen_t size = sizeof at;
  if (bind(fd, reinterpret_cast<sockaddr*>(&at), sizeof at) != 0 || listen(fd, 64) != 0 ||
      getsockname(fd, reinterpret_cast<sockaddr*>(&at), &size) != 0) {
    close(fd);
    return -1;
  }
  port = ntohs(at.sin_port);
  return fd;
}

int connect_to(std::uint16_t port) {
  const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in at = loopback(port);
  if (connect(fd, reinterpret_cast<sockaddr*>(&at), sizeof at) != 0) {
    close(fd);
    return -1;
  }
  timeval limit{20, 0};
  setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
  return fd;
}

void send_all(int fd, std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t sent = send(fd, bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (sent <= 0) return;
    bytes.remove_prefix(static_cast<std::size_t>(sent));
  }
}

// Until `count` bytes or the end.
std::string receive(int fd, std::size_t count) {
  std::string all;
  char bytes[4096];
  while (all.size() < count) {
    const ssize_t got = recv(fd, bytes, std::min(sizeof bytes, count - all.size()), 0);
    if (got <= 0) break;
    all.append(bytes, static_cast<std::size_t>(got));
  }
  return all;
}

// Answers each connection with its bytes.
class echo {
 public:
  echo() : door_(listen_on_loopback(port)) {
    EXPECT_GE(door_, 0);
    thread_ = std::thread([this] { serve(); });
  }
  ~echo() {
    shutdown(door_, SHUT_RDWR);
    thread_.join();
    for (auto& one : answers_) one.join();
    close(door_);
  }
  std::uint16_t port = 0;
  std::atomic<int> accepted{0};

 private:
  void serve() {
    while (true) {
      const int fd = accept4(door_, nullptr, nullptr, SOCK_CLOEXEC);
      if (fd < 0) return;
      ++accepted;
      answers_.emplace_back([fd] {
        for (std::string got = receive(fd, 1); !got.empty(); got = receive(fd, 1)) {
          char more[65536];
          const ssize_t count = recv(fd, more, sizeof more, MSG_DONTWAIT);
          if (count > 0) got.append(more, static_cast<std::size_t>(count));
          send_all(fd, got);
        }
        close(fd);
      });
    }
  }

  int door_;
  std::thread thread_;
  std::vector<std::thread> answers_;
};

class gate_test : public ::testing::Test {
 protected:
  gate_test() : folder_(std::filesystem::temp_directory_path() / ("troupe-gate-" + std::to_string(getpid()))) {
    std::filesystem::create_directories(folder_);
  }
  ~gate_test() override { std::filesystem::remove_all(folder_); }

  gate_options door(credentials who = {kToken, {}, {}, {}}) {
    gate_options o;
    o.address = "127.0.0.1";
    o.who = std::move(who);
    o.program = kProgram;
    o.log = [this](const std::string& line) {
      const std::lock_guard lock(guard_);
      log_ += line + "\n";
    };
    o.refused = [this] { ++refused_; };
    return o;
  }
  static link_options to(const gate& door, credentials who = {kToken, {}, {}, {}}, identity program = kProgram) {
    return {"localhost", door.port(), std::move(who), std::move(program)};
  }
  credentials certified(const test::certificates& by, const std::string& name) const {
    by.vouch_for(name);
    return {{}, folder_ / (name + ".pem"), folder_ / (name + ".key"), by.authority()};
  }
  static std::string refusal(const std::function<void()>& attempt) {
    try {
      attempt();
    } catch (const refused& e) {
      return e.what();
    } catch (const std::exception& e) {
      return std::string("not refused, but: ") + e.what();
    }
    return "let in";
  }
  std::string log() {
    const std::lock_guard lock(guard_);
    return log_;
  }
  // Those who are refused hear of it before the head counts them.
  void expect_refused(int count) const {
    test::eventually([&] { return refused_ >= count; }, std::chrono::seconds(5));
    EXPECT_EQ(refused_, count);
  }

  std::filesystem::path folder_;
  std::atomic<int> refused_{0};

 private:
  std::mutex guard_;
  std::string log_;
};

void expect_echo(links& from, const std::string& purpose, std::size_t bytes) {
  const int fd = connect_to(from.open(purpose));
  ASSERT_GE(fd, 0);
  std::string sent;
  for (std::size_t i = 0; i < bytes; ++i) sent += static_cast<char>(i * 7 + i / 251);
  std::thread sender([&] { send_all(fd, sent); });
  EXPECT_TRUE(receive(fd, bytes) == sent);
  sender.join();
  close(fd);
}

TEST_F(gate_test, who_knows_the_token_gets_to_the_actors_and_bytes_arrive) {
  echo actors, group;
  gate head(door());
  head.lead_join_to(actors.port);
  links node(to(head));
  EXPECT_EQ(node.probe().from, "127.0.0.1");
  expect_echo(node, "join", 10);
  expect_echo(node, "join", 3'000'000);
  head.open(group.port);
  expect_echo(node, std::to_string(group.port), 100'000);
  EXPECT_EQ(actors.accepted, 2);
  EXPECT_EQ(group.accepted, 1);
  EXPECT_EQ(refused_, 0);
}

TEST_F(gate_test, a_port_that_awaits_nobody_is_not_to_be_reached) {
  echo other;
  gate head(door());
  links node(to(head));
  for (const std::string& purpose :
       {std::to_string(other.port), std::string("join"), std::string("99999999"), std::string("0"), std::string("-1")}) {
    const int fd = connect_to(node.open(purpose));
    EXPECT_EQ(receive(fd, 1), "") << purpose;
    close(fd);
  }
  head.open(other.port);
  head.close(other.port);
  const int fd = connect_to(node.open(std::to_string(other.port)));
  EXPECT_EQ(receive(fd, 1), "");
  close(fd);
  EXPECT_EQ(other.accepted, 0);
}

TEST_F(gate_test, each_misfit_is_told_what_does_not_match) {
  gate head(door());
  EXPECT_EQ(refusal([&] { links(to(head, {"another token altogether", {}, {}, {}})).probe(); }), "the token is not this cluster's");
  EXPECT_EQ(refusal([&] {
              links(to(head, {kToken, {}, {}, {}}, {"1-aa", "1.1", "build-a"})).probe();
            }),
            "the node runs Troupe 1.1, the cluster 1.0");
  EXPECT_EQ(refusal([&] {
              links(to(head, {kToken, {}, {}, {}}, {"1-aa", "1.0", "build-b"})).probe();
            }),
            "the node runs another build of Troupe 1.0 (build-b) than the cluster (build-a)");
  expect_refused(3);
  EXPECT_NE(log().find("the token is not this cluster's"), std::string::npos) << log();
}

TEST_F(gate_test, another_build_is_let_in_where_the_flag_says_so) {
  auto o = door();
  o.any_build = true;
  gate head(std::move(o));
  EXPECT_EQ(refusal([&] { links(to(head, {kToken, {}, {}, {}}, {"1-aa", "1.0", "build-b"})).probe(); }), "let in");
  EXPECT_EQ(refusal([&] { links(to(head, {kToken, {}, {}, {}}, {"1-aa", "1.1", "build-b"})).probe(); }), "let in");
  EXPECT_EQ(refusal([&] {
              links(to(head, {kToken, {}, {}, {}}, {"1-bb", "1.1", "build-b"})).probe();
            }),
            "the node speaks protocol 1-bb (Troupe 1.1), the cluster 1-aa (Troupe 1.0)");
}

TEST_F(gate_test, strangers_bytes_of_any_kind_harm_nobody) {
  echo actors;
  gate head(door());
  head.lead_join_to(actors.port);
  const std::string header("\0\0\0\0\xff\xff\xff\xff\0\0\0\0\0\0\0\0\xc0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0", 32);
  const std::string peer = "troupe-cluster 1 1-aa 1.0 build-a join 00 ";
  for (const std::string& bytes : {header, std::string(100'000, 'x'), std::string("GET / HTTP/1.1\r\n\r\n"), std::string("\n\n\n"),
                                   std::string("troupe-cluster 2 a b c d e\n"), std::string("troupe-cluster 1\n"),
                                   peer + std::string(64, '0') + "\n", peer + "\n", std::string("\x16\x03\x01\x02\0\x01", 6) + "\n"}) {
    const int fd = connect_to(head.port());
    ASSERT_GE(fd, 0);
    send_all(fd, bytes);
    shutdown(fd, SHUT_WR);
    receive(fd, 1'000'000);
    close(fd);
  }
  EXPECT_EQ(actors.accepted, 0);
  expect_refused(9);
  links node(to(head));
  expect_echo(node, "join", 1000);
}

TEST_F(gate_test, a_recorded_proof_is_of_no_use_a_second_time) {
  // A stranger who answers in the head's place hears a true proof, and says it to the true head.
  echo actors;
  gate head(door());
  head.lead_join_to(actors.port);
  const peer_statement said{kProgram, "join", random_nonce(), {}};
  auto recorded = said;
  recorded.proof = prove_peer(kToken, random_nonce(), said);
  const int fd = connect_to(head.port());
  receive(fd, head_line(random_nonce()).size());
  send_all(fd, peer_line(recorded));
  EXPECT_EQ(receive(fd, 100), "refused the token is not this cluster's\n");
  close(fd);
}

TEST_F(gate_test, silent_ones_do_not_keep_others_out) {
  gate head(door());
  std::vector<int> silent;
  for (int i = 0; i < 60; ++i) silent.push_back(connect_to(head.port()));
  EXPECT_EQ(refusal([&] { links(to(head)).probe(); }), "let in");
  for (const int fd : silent) {
    receive(fd, 1000); // the head's line, and the end after 5 s
    close(fd);
  }
  expect_refused(60);
}

TEST_F(gate_test, mutual_tls_carries_bytes_and_needs_no_token) {
  const test::certificates authority(folder_);
  echo actors;
  gate head(door(certified(authority, "head")));
  head.lead_join_to(actors.port);
  links node(to(head, certified(authority, "node")));
  expect_echo(node, "join", 3'000'000);
}

TEST_F(gate_test, who_has_no_certificate_of_the_authority_is_not_let_in_on_either_side) {
  const test::certificates ours(folder_);
  std::filesystem::create_directories(folder_ / "theirs");
  const test::certificates theirs(folder_ / "theirs");
  theirs.vouch_for("stranger");
  credentials stranger{{}, folder_ / "theirs/stranger.pem", folder_ / "theirs/stranger.key", ours.authority()};
  gate head(door(certified(ours, "head")));
  EXPECT_NE(refusal([&] { links(to(head, stranger)).probe(); }).find("TLS"), std::string::npos);
  EXPECT_NE(refusal([&] { links(to(head)).probe(); }).find("TLS"), std::string::npos) << "without TLS at all";
  gate impostor(door(stranger));
  EXPECT_NE(refusal([&] { links(to(impostor, certified(ours, "node"))).probe(); }).find("TLS"), std::string::npos);
}

TEST_F(gate_test, tls_and_a_token_are_both_asked_for_where_both_are_set) {
  const test::certificates authority(folder_);
  credentials with_token = certified(authority, "head");
  with_token.token = kToken;
  gate head(door(with_token));
  EXPECT_EQ(refusal([&] { links(to(head, certified(authority, "node"))).probe(); }), "the token is not this cluster's");
  EXPECT_EQ(refusal([&] { links(to(head, with_token)).probe(); }), "let in");
}

TEST_F(gate_test, a_head_that_does_not_know_the_token_is_not_believed) {
  // It lets everybody in, and cannot prove itself.
  std::uint16_t port = 0;
  const int fake = listen_on_loopback(port);
  ASSERT_GE(fake, 0);
  std::thread impostor([&] {
    const int fd = accept4(fake, nullptr, nullptr, SOCK_CLOEXEC);
    send_all(fd, head_line(random_nonce()));
    receive(fd, 60);
    send_all(fd, "welcome " + std::string(64, '0') + "\n");
    receive(fd, 1000);
    close(fd);
  });
  links node({"127.0.0.1", port, {kToken, {}, {}, {}}, kProgram});
  EXPECT_NE(refusal([&] { node.probe(); }).find("does not know the token"), std::string::npos);
  impostor.join();
  close(fake);
}

TEST(credentials, what_would_let_anybody_in_is_refused) {
  EXPECT_THROW(check_credentials({}), std::invalid_argument);
  EXPECT_THROW(check_credentials({"short", {}, {}, {}}), std::invalid_argument);
  EXPECT_THROW(check_credentials({kToken, "a.pem", "a.key", {}}), std::invalid_argument) << "TLS without an authority";
  EXPECT_THROW(check_credentials({kToken, {}, {}, "ca.pem"}), std::invalid_argument);
  EXPECT_NO_THROW(check_credentials({kToken, {}, {}, {}}));
  EXPECT_NO_THROW(check_credentials({{}, "a.pem", "a.key", "ca.pem"}));
}

TEST(credentials, beyond_loopback_only_with_tls_or_by_the_users_word) {
  const credentials token{kToken, {}, {}, {}};
  EXPECT_THROW(check_exposure("10.0.0.1", token, false), std::invalid_argument);
  EXPECT_THROW(check_exposure("fd00::1", token, false), std::invalid_argument);
  EXPECT_NO_THROW(check_exposure("10.0.0.1", token, true));
  EXPECT_NO_THROW(check_exposure("10.0.0.1", {{}, "a", "b", "c"}, false));
  for (const char* address : {"127.0.0.1", "127.8.9.1", "::1", "::ffff:127.0.0.1"}) EXPECT_NO_THROW(check_exposure(address, token, false));
}

TEST(credentials, files_that_will_not_do_are_named) {
  gate_options o;
  o.address = "127.0.0.1";
  o.who = {{}, "/no/such.pem", "/no/such.key", "/no/ca.pem"};
  try {
    gate head(std::move(o));
    FAIL();
  } catch (const std::invalid_argument& e) {
    EXPECT_NE(std::string(e.what()).find("--cluster-cert /no/such.pem"), std::string::npos) << e.what();
  }
}

} // namespace
} // namespace troupe::cluster
