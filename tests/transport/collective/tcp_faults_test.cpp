// A group over TCP whose peers die, freeze, or send what no rank sends.
#include <poll.h>

#include <thread>

#include "tests/transport/collective/child_rank.hpp"
#include "tests/transport/collective/group_testing.hpp"
#include "tests/transport/collective/tcp_threads.hpp"
#include "transport/collective/tcp_wire.hpp"

namespace troupe {
namespace {

using namespace std::chrono_literals;

tcp_options options_with(std::chrono::milliseconds deadline) {
  tcp_options options;
  options.deadline = deadline;
  return options;
}

void sum(communicator& me) {
  std::vector<float> data(1000, 1);
  me.all_reduce(buffer_of(data, dtype::f32));
}

// Sums for ever, as rank `rank` of a group.
std::function<void()> busy_rank(const tcp_address& address, int rank, int size, const tcp_options& options) {
  return [=] {
    const auto me = join_tcp_group(address, rank, size, options);
    for (;;) sum(*me);
  };
}

TEST(tcp_faults, a_killed_peer_is_lost_at_once_and_a_new_group_forms) {
  for (int round = 0; round < 3; ++round) {
    const auto options = options_with(kAmple);
    tcp_rendezvous rendezvous(options);
    child_rank doomed(busy_rank(rendezvous.address(), 2, 3, options));
    child_rank other(busy_rank(rendezvous.address(), 1, 3, options));
    const auto me = rendezvous.form(3);
    for (int i = 0; i < 10; ++i) sum(*me);
    doomed.signal(SIGKILL);
    const outcome got = attempt([&] {
      for (;;) sum(*me);
    });
    EXPECT_EQ(got.fault, collective_fault::peer_lost) << got.text;
    EXPECT_EQ(got.peer, 2) << got.text;
    EXPECT_NE(got.text.find("rank 2 at 127.0.0.1:"), std::string::npos) << got.text;
    EXPECT_LT(got.took, 2s);
    EXPECT_EQ(other.exit_code(), 1) << "the other rank hears of it too";
  }
}

TEST(tcp_faults, a_frozen_peer_is_a_fault_after_the_deadline) {
  const auto options = options_with(300ms);
  tcp_rendezvous rendezvous(options);
  child_rank frozen(busy_rank(rendezvous.address(), 1, 2, options));
  const auto me = rendezvous.form(2);
  sum(*me);
  frozen.signal(SIGSTOP);
  const outcome got = attempt([&] {
    for (;;) sum(*me);
  });
  EXPECT_EQ(got.fault, collective_fault::deadline) << got.text;
  EXPECT_EQ(got.peer, 1);
  EXPECT_NE(got.text.find("within 300 ms"), std::string::npos) << got.text;
  EXPECT_GE(got.took, 290ms);
  EXPECT_LT(got.took, 2s);
  frozen.signal(SIGCONT);
  EXPECT_EQ(frozen.exit_code(), 1) << "the frozen rank hears of it when it goes on";
}

TEST(tcp_faults, a_frozen_peer_holds_up_a_large_send_until_the_deadline) {
  const auto options = options_with(300ms);
  tcp_rendezvous rendezvous(options);
  child_rank frozen([address = rendezvous.address(), options] {
    const auto me = join_tcp_group(address, 1, 2, options);
    ::raise(SIGSTOP);
  });
  const auto me = rendezvous.form(2);
  std::vector<float> data(16 << 20);
  const outcome got = attempt([&] { me->send(buffer_of(data, dtype::f32), 1); });
  EXPECT_EQ(got.fault, collective_fault::deadline) << got.text;
  EXPECT_NE(got.text.find("took"), std::string::npos) << got.text;
  EXPECT_LT(got.took, 3s);
}

// A member of a group of two that says what it likes: rank 1, played by the test.
struct raw_member {
  descriptor data, notices;

  explicit raw_member(const tcp_address& address, bool confirms = true) {
    wire::introduction hello;
    hello.rank = 1;
    hello.size = 2;
    hello.token = address.token;
    notices = say(address, hello, wire::lane::notices); // the other way round than ranks do it
    data = say(address, hello, wire::lane::data);
    EXPECT_TRUE(wire::read_notice(notices, deadline_clock::now() + kAmple));
    if (confirms) write(wire::header_of({}, 0, 1));
  }

  static descriptor say(const tcp_address& address, wire::introduction hello, wire::lane lane) {
    hello.lane = lane;
    descriptor made = connect_to({address.host, address.port}, "127.0.0.1", deadline_clock::now() + kAmple);
    EXPECT_EQ(write_all(made, std::as_bytes(std::span(&hello, 1)), deadline_clock::now() + kAmple), transfer::done);
    return made;
  }
  template <class T>
  void write(const T& what) {
    EXPECT_EQ(write_all(data, std::as_bytes(std::span(&what, 1)), deadline_clock::now() + kAmple), transfer::done);
  }
};

// How a sum of rank 0 ends when rank 1 does this.
outcome sum_beside(const std::function<void(raw_member&)>& rank_1_does) {
  tcp_rendezvous rendezvous(options_with(300ms));
  outcome got;
  std::thread rank_1([&] {
    raw_member member(rendezvous.address());
    rank_1_does(member);
    std::this_thread::sleep_for(50ms);
    if (member.notices) wait_until_ready(member.notices, POLLIN, deadline_clock::now() + kAmple);
  });
  const auto me = rendezvous.form(2);
  got = attempt([&] { sum(*me); });
  rank_1.join();
  return got;
}

TEST(tcp_faults, a_member_that_does_not_confirm_is_given_up) {
  auto options = options_with(kAmple);
  options.form_deadline = 300ms;
  tcp_rendezvous rendezvous(options);
  std::thread rank_1([&] {
    const raw_member member(rendezvous.address(), false);
    wait_until_ready(member.notices, POLLIN, deadline_clock::now() + kAmple);
  });
  const outcome got = attempt([&] { rendezvous.form(2); });
  rank_1.join();
  EXPECT_EQ(got.fault, collective_fault::deadline) << got.text;
  EXPECT_NE(got.text.find("did not come within"), std::string::npos) << got.text;
  EXPECT_NE(got.text.find("the forming of the group"), std::string::npos) << got.text;
  EXPECT_LT(got.took, 2s);
}

TEST(tcp_faults, garbage_from_a_member_ends_the_group) {
  const outcome got = sum_beside([](raw_member& me) { me.write(std::array<std::uint64_t, 4>{1, 2, 3, 4}); });
  EXPECT_EQ(got.fault, collective_fault::failed) << got.text;
  EXPECT_NE(got.text.find("no frame"), std::string::npos) << got.text;
}

TEST(tcp_faults, a_frame_that_stops_in_its_middle_is_told) {
  const outcome got = sum_beside([](raw_member& me) {
    me.write(wire::header_of({collective_op::all_reduce, dtype::f32, 1000, 0}, 0, 2));
    me.write(std::array<float, 250>{});
  });
  EXPECT_EQ(got.fault, collective_fault::deadline) << got.text;
  EXPECT_NE(got.text.find("sent 1032 of 4032 bytes"), std::string::npos) << got.text;
}

TEST(tcp_faults, a_frame_that_comes_too_slowly_is_given_up) {
  const outcome got = sum_beside([](raw_member& me) {
    me.write(wire::header_of({collective_op::all_reduce, dtype::f32, 1000, 0}, 0, 2));
    for (int i = 0; i < 100 && !wait_until_ready(me.notices, POLLIN, deadline_clock::now() + 10ms); ++i) me.write(1.0F);
  });
  EXPECT_EQ(got.fault, collective_fault::deadline) << got.text;
  EXPECT_NE(got.text.find(" of 4032 bytes within 300 ms"), std::string::npos) << got.text;
  EXPECT_LT(got.took, 900ms);
}

TEST(tcp_faults, a_peer_that_has_lost_count_is_told) {
  const outcome got = sum_beside([](raw_member& me) { me.write(wire::header_of({collective_op::all_reduce, dtype::f32, 1000, 0}, 0, 9)); });
  EXPECT_EQ(got.fault, collective_fault::mismatch) << got.text;
  EXPECT_NE(got.text.find("call 9"), std::string::npos) << got.text;
}

TEST(tcp_faults, a_notice_that_is_none_changes_nothing) {
  const outcome got = sum_beside([](raw_member& me) {
    const wire::notice_header huge{wire::notice_kind::fault, 0xffffffff, collective_fault::failed, {}, 0};
    EXPECT_EQ(write_all(me.notices, std::as_bytes(std::span(&huge, 1)), deadline_clock::now() + kAmple), transfer::done);
    std::this_thread::sleep_for(50ms);
    me.write(wire::header_of({collective_op::all_reduce, dtype::f32, 1000, 0}, 0, 2));
    me.write(std::array<float, 1000>{});
    me.data.close();
    me.notices.close();
  });
  EXPECT_FALSE(got.fault) << got.text;
}

TEST(tcp_faults, a_notice_explains_a_connection_that_ended) {
  const outcome got = sum_beside([](raw_member& me) {
    me.data.close();
    std::this_thread::sleep_for(30ms);
    wire::send_fault(me.notices, {collective_fault::aborted, 1, "out of memory"});
  });
  EXPECT_EQ(got.fault, collective_fault::aborted) << got.text;
  EXPECT_EQ(got.text, "out of memory");
}

} // namespace
} // namespace troupe
