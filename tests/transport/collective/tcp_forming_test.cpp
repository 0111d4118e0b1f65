// How a group over TCP comes together, and who is not let in.
#include <sys/resource.h>

#include <algorithm>
#include <atomic>
#include <ctime>
#include <stdexcept>

#include "tests/transport/collective/child_rank.hpp"
#include "tests/transport/collective/group_testing.hpp"
#include "tests/transport/collective/tcp_threads.hpp"
#include "transport/collective/network_interface.hpp"
#include "transport/collective/tcp_wire.hpp"

namespace troupe {
namespace {

using namespace std::chrono_literals;

tcp_options patient(std::chrono::milliseconds form_deadline = kAmple) {
  tcp_options options;
  options.deadline = kAmple;
  options.form_deadline = form_deadline;
  options.name = "tp0";
  return options;
}

descriptor knock(const tcp_address& address) {
  return connect_to({address.host, address.port}, "127.0.0.1", deadline_clock::now() + kAmple);
}

descriptor knock(const tcp_address& address, std::span<const std::byte> says) {
  descriptor made = knock(address);
  write_all(made, says, deadline_clock::now() + kAmple);
  return made;
}

descriptor introduce(const tcp_address& address, const wire::introduction& hello) {
  return knock(address, std::as_bytes(std::span(&hello, 1)));
}

wire::introduction hello_of(const tcp_address& address, int rank, int size, wire::lane lane) {
  wire::introduction hello;
  hello.rank = rank;
  hello.size = size;
  hello.token = address.token;
  hello.lane = lane;
  return hello;
}

std::string refusal_of(const descriptor& socket) {
  const auto heard = wire::read_notice(socket, deadline_clock::now() + kAmple);
  return heard && heard->kind == wire::notice_kind::refusal ? heard->fault.text : "no refusal";
}

bool closed(const descriptor& socket) {
  std::array<std::byte, 1> one;
  return read_all(socket, one, deadline_clock::now() + kAmple) == transfer::closed;
}

// Forms a group of `size` while `visit` does its worst, and expects that it works.
void expect_group(int size, const std::function<void(const tcp_address&)>& visit) {
  const auto options = patient();
  tcp_rendezvous rendezvous(options);
  ends group(static_cast<std::size_t>(size));
  std::vector<std::thread> threads;
  threads.emplace_back([&] { group[0] = rendezvous.form(size); });
  visit(rendezvous.address());
  for (int rank = size - 1; rank > 0; --rank) { // the last first
    threads.emplace_back([&, rank] { group[static_cast<std::size_t>(rank)] = join_tcp_group(rendezvous.address(), rank, size, options); });
  }
  for (auto& thread : threads) thread.join();
  expect_success(run_ranks(group, [](communicator& me) {
    std::vector<float> data(3, 1);
    me.all_reduce(buffer_of(data, dtype::f32));
    EXPECT_EQ(data[0], static_cast<float>(me.size()));
  }));
}

TEST(tcp_forming, strangers_and_garbage_change_nothing) {
  std::mt19937 random(std::random_device{}());
  expect_group(4, [&](const tcp_address& address) {
    std::vector<descriptor> silent;
    for (int i = 0; i < 3; ++i) silent.push_back(knock(address));
    const std::string request = "GET / HTTP/1.1\r\nHost: x\r\n\r\n" + std::string(200, 'x');
    EXPECT_TRUE(closed(knock(address, std::as_bytes(std::span(request)))));
    for (int i = 0; i < 20; ++i) {
      bytes noise(sizeof(wire::introduction) + random() % 1000);
      for (auto& byte : noise) byte = static_cast<std::byte>(random());
      EXPECT_TRUE(closed(knock(address, noise)));
    }
    knock(address, bytes(10)); // closed by the visitor in the middle
    auto impostor = hello_of(address, 1, 4, wire::lane::notices);
    impostor.token[15] ^= 1;
    EXPECT_TRUE(closed(introduce(address, impostor))) << "not told why";
  });
}

TEST(tcp_forming, a_rank_that_does_not_fit_is_told_why) {
  expect_group(3, [](const tcp_address& address) {
    const auto told = [&](auto change) {
      auto hello = hello_of(address, 1, 3, wire::lane::notices);
      change(hello);
      return refusal_of(introduce(address, hello));
    };
    EXPECT_EQ(told([](auto& hello) { hello.size = 4; }), "a group of 4 ranks, here it is one of 3");
    EXPECT_EQ(told([](auto& hello) { hello.version = 7; }), "version 7 of the protocol, here it is 1");
    EXPECT_EQ(told([](auto& hello) { hello.byte_order = 0x0201; }), "another byte order");
    for (const int rank : {-1, 0, 3, 1 << 30}) {
      EXPECT_EQ(told([&](auto& hello) { hello.rank = rank; }),
                "rank " + std::to_string(rank) + " came to rank 0, which waits for ranks 1 to 2");
    }
    EXPECT_TRUE(closed(introduce(address, hello_of(address, 1, 3, static_cast<wire::lane>(7)))));
  });
}

TEST(tcp_forming, a_rank_that_comes_twice_is_let_in_once) {
  const auto options = patient();
  tcp_rendezvous rendezvous(options);
  std::unique_ptr<communicator> root;
  std::thread forming([&] { root = rendezvous.form(3); });
  std::atomic<int> refused{0};
  std::vector<std::unique_ptr<communicator>> joined(3);
  std::vector<std::thread> threads;
  for (std::size_t i = 0; i < 3; ++i) { // rank 1 three times, at once
    threads.emplace_back([&, i] {
      const outcome got = attempt([&] { joined[i] = join_tcp_group(rendezvous.address(), 1, 3, options); });
      if (!got.fault) return;
      EXPECT_EQ(got.fault, collective_fault::failed) << got.text;
      EXPECT_NE(got.text.find("rank 1 is here already, from another process"), std::string::npos) << got.text;
      ++refused;
    });
  }
  while (refused < 2) std::this_thread::sleep_for(1ms);
  const auto last = join_tcp_group(rendezvous.address(), 2, 3, options);
  forming.join();
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(refused, 2);
  EXPECT_EQ(std::count_if(joined.begin(), joined.end(), [](const auto& one) { return one != nullptr; }), 1);
}

TEST(tcp_forming, ranks_that_stay_away_are_named) {
  tcp_rendezvous rendezvous(patient(300ms));
  outcome member;
  std::thread rank_1([&] { member = attempt([&] { join_tcp_group(rendezvous.address(), 1, 4, patient()); }); });
  const auto stranger = knock(rendezvous.address(), bytes(200));
  const outcome root = attempt([&] { rendezvous.form(4); });
  rank_1.join();
  EXPECT_EQ(root.fault, collective_fault::deadline) << root.text;
  EXPECT_EQ(root.peer, 2);
  EXPECT_NE(root.text.find("tp0: rank 2, 3 of 4 did not come to rank 0 at 127.0.0.1:"), std::string::npos) << root.text;
  EXPECT_NE(root.text.find("within 300 ms; 1 connections were refused"), std::string::npos) << root.text;
  EXPECT_EQ(member.fault, collective_fault::deadline) << "who came hears of it: " << member.text;
  EXPECT_EQ(member.peer, 2) << member.text;
}

TEST(tcp_forming, a_rank_that_dies_meanwhile_ends_it_for_all) {
  tcp_rendezvous rendezvous(patient());
  child_rank doomed([&] { join_tcp_group(rendezvous.address(), 1, 3, patient()); });
  std::thread killing([&] {
    std::this_thread::sleep_for(100ms);
    doomed.signal(SIGKILL);
  });
  const outcome root = attempt([&] { rendezvous.form(3); });
  killing.join();
  EXPECT_EQ(root.fault, collective_fault::peer_lost) << root.text;
  EXPECT_EQ(root.peer, 1) << root.text;
  EXPECT_LT(root.took, 5s);
}

TEST(tcp_forming, a_rank_that_dies_between_its_two_connections_ends_it) {
  for (const auto lane : {wire::lane::data, wire::lane::notices}) {
    tcp_rendezvous rendezvous(patient());
    auto dying = introduce(rendezvous.address(), hello_of(rendezvous.address(), 1, 3, lane));
    std::thread killing([&] {
      std::this_thread::sleep_for(100ms);
      dying.close();
    });
    const outcome root = attempt([&] { rendezvous.form(3); });
    killing.join();
    EXPECT_EQ(root.fault, collective_fault::peer_lost) << root.text;
    EXPECT_EQ(root.peer, 1) << root.text;
    EXPECT_LT(root.took, 5s);
  }
}

std::chrono::nanoseconds cpu_time_of_this_thread() {
  timespec time{};
  ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return std::chrono::seconds(time.tv_sec) + std::chrono::nanoseconds(time.tv_nsec);
}

TEST(tcp_forming, a_process_without_free_descriptors_waits_quietly_for_one) {
  tcp_rendezvous rendezvous(patient());
  const child_rank member([&] {
    join_tcp_group(rendezvous.address(), 1, 2, patient());
    ::pause();
  });
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &before), 0);
  const descriptor next(::dup(STDERR_FILENO));
  const rlimit none{static_cast<rlim_t>(next.number()) + 1, before.rlim_max}; // all below are taken
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &none), 0);
  std::thread freeing([&] {
    std::this_thread::sleep_for(500ms);
    ::setrlimit(RLIMIT_NOFILE, &before);
  });
  const auto cpu = cpu_time_of_this_thread();
  const outcome root = attempt([&] { rendezvous.form(2); });
  const auto used = cpu_time_of_this_thread() - cpu;
  freeing.join();
  EXPECT_FALSE(root.fault) << root.text;
  EXPECT_GE(root.took, 400ms) << "somebody came in before";
  EXPECT_LT(used, 100ms);
}

TEST(tcp_forming, a_member_that_cannot_be_reached_is_told_to_all) {
  tcp_rendezvous rendezvous(patient());
  const auto address = rendezvous.address();
  outcome member, root;
  std::thread forming([&] { root = attempt([&] { rendezvous.form(3); }); });
  auto hello = hello_of(address, 1, 3, wire::lane::data);
  wire::set_endpoint(hello, {"127.0.0.1", 1}); // where nobody listens
  const auto data = introduce(address, hello);
  hello.lane = wire::lane::notices;
  const auto notices = introduce(address, hello);
  member = attempt([&] { join_tcp_group(address, 2, 3, patient()); });
  forming.join();
  for (const outcome& got : {member, root}) {
    EXPECT_EQ(got.fault, collective_fault::peer_lost) << got.text;
    EXPECT_EQ(got.peer, 1) << got.text;
    EXPECT_NE(got.text.find("rank 2 and rank 1 at 127.0.0.1:1: cannot reach 127.0.0.1:1"), std::string::npos) << got.text;
  }
}

TEST(tcp_forming, an_address_of_an_ended_group_is_an_error_at_once) {
  tcp_address old;
  {
    tcp_rendezvous rendezvous(patient());
    old = rendezvous.address();
  }
  const outcome ended = attempt([&] { join_tcp_group(old, 1, 2, patient()); });
  EXPECT_EQ(ended.fault, collective_fault::peer_lost) << ended.text;
  EXPECT_NE(ended.text.find("cannot reach"), std::string::npos) << ended.text;

  expect_group(2, [&](const tcp_address& address) { // another group listens where the old one did
    old.port = address.port;
    const outcome stale = attempt([&] { join_tcp_group(old, 1, 2, patient()); });
    EXPECT_EQ(stale.fault, collective_fault::peer_lost) << stale.text;
    EXPECT_NE(stale.text.find("another group"), std::string::npos) << stale.text;
  });
}

TEST(tcp_forming, who_says_nothing_does_not_keep_the_others_out) {
  expect_group(2, [](const tcp_address& address) {
    static std::vector<descriptor> silent; // until the group has formed
    for (int i = 0; i < 70; ++i) silent.push_back(knock(address));
  });
}

TEST(tcp_forming, tokens_and_ports_differ) {
  tcp_rendezvous one(patient()), other(patient());
  EXPECT_NE(one.address().token, other.address().token);
  EXPECT_NE(one.address().port, other.address().port);
}

TEST(tcp_forming, ranks_and_sizes_are_checked) {
  tcp_rendezvous rendezvous(patient());
  EXPECT_THROW(rendezvous.form(0), std::invalid_argument);
  EXPECT_THROW(rendezvous.form(513), std::invalid_argument);
  EXPECT_THROW(join_tcp_group(rendezvous.address(), 0, 2, patient()), std::invalid_argument);
  EXPECT_THROW(join_tcp_group(rendezvous.address(), 2, 2, patient()), std::invalid_argument);
  EXPECT_EQ(rendezvous.form(1)->size(), 1);
  EXPECT_THROW(rendezvous.form(1), std::logic_error);
}

std::string objection_to(const std::string& interface, bool across_nodes) {
  try {
    auto options = patient();
    options.interface = interface;
    options.across_nodes = across_nodes;
    tcp_rendezvous rendezvous(options);
  } catch (const std::invalid_argument& e) {
    return e.what();
  }
  return "none";
}

TEST(tcp_forming, the_interface_is_chosen_and_never_guessed) {
  EXPECT_EQ(objection_to("127.0.0.1", false), "none");
  EXPECT_EQ(objection_to("lo", false), "none");
  for (const char* everything : {"0.0.0.0", "::", "0:0::0", ""}) {
    EXPECT_NE(objection_to(everything, false).find("a group needs one interface"), std::string::npos) << everything;
  }
  for (const char* loopback : {"127.0.0.1", "lo"}) {
    const std::string text = objection_to(loopback, true);
    EXPECT_NE(text.find("several machines, and lo (127.0.0.1) is loopback"), std::string::npos) << text;
  }
  EXPECT_NE(objection_to("nosuch0", false).find("'nosuch0'; there are lo 127.0.0.1"), std::string::npos);
  EXPECT_EQ(choose_interface("lo", false).address, "127.0.0.1");
  EXPECT_EQ(choose_interface("127.0.0.1", false).name, "lo");
}

} // namespace
} // namespace troupe
