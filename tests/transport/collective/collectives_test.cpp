// What every kind of group promises.

#include "tests/transport/collective/group_testing.hpp"
#include "tests/transport/collective/tcp_threads.hpp"
#include "transport/collective/local_group.hpp"

namespace troupe {
namespace {

using namespace std::chrono_literals;

struct kind {
  std::string name;
  group_maker make;
};
void PrintTo(const kind& one, std::ostream* out) { *out << one.name; }

class collectives : public ::testing::TestWithParam<kind> {
 protected:
  static ends make(int size, std::chrono::milliseconds deadline = kAmple) { return GetParam().make(size, deadline); }
};

TEST_P(collectives, sum_in_the_order_of_ranks_to_the_last_bit) {
  std::mt19937 random(std::random_device{}());
  for (const int size : {1, 2, 3, 4, 5, 8}) {
    auto group = make(size);
    for (const dtype type : {dtype::f32, dtype::f16, dtype::bf16}) {
      for (const std::size_t count : {0UL, 1UL, 3UL, 65UL, 1023UL, 4099UL, 40'007UL}) {
        std::vector<bytes> data;
        for (int rank = 0; rank < size; ++rank) data.push_back(random_elements(random, type, count));
        const bytes expected = plain_sum(data, type);
        expect_success(
            run_ranks(group, [&](communicator& me) { me.all_reduce(buffer_of(data[static_cast<std::size_t>(me.rank())], type)); }));
        for (int rank = 0; rank < size; ++rank) {
          EXPECT_TRUE(data[static_cast<std::size_t>(rank)] == expected)
              << "rank " << rank << " of " << size << ", " << count << " elements";
        }
      }
    }
  }
}

TEST_P(collectives, gather_in_the_order_of_ranks) {
  for (const int size : {1, 2, 3, 8}) {
    auto group = make(size);
    for (const std::size_t count : {0UL, 1UL, 1000UL, 50'001UL}) {
      std::vector<std::int32_t> expected;
      for (int rank = 0; rank < size; ++rank) {
        for (std::size_t i = 0; i < count; ++i) expected.push_back(rank * 1'000'000 + static_cast<std::int32_t>(i));
      }
      expect_success(run_ranks(group, [&](communicator& me) {
        const auto begin = expected.begin() + static_cast<std::ptrdiff_t>(me.rank() * count);
        std::vector<std::int32_t> mine(begin, begin + static_cast<std::ptrdiff_t>(count));
        std::vector<std::int32_t> all(count * static_cast<std::size_t>(size), -1);
        me.all_gather(buffer_of(mine, dtype::i32), buffer_of(all, dtype::i32));
        EXPECT_EQ(all, expected);
        std::vector<std::int32_t> in_place(all.size(), -2);
        const std::size_t place = static_cast<std::size_t>(me.rank()) * count;
        std::copy(mine.begin(), mine.end(), in_place.begin() + static_cast<std::ptrdiff_t>(place));
        me.all_gather({in_place.data() + place, count, dtype::i32}, buffer_of(in_place, dtype::i32));
        EXPECT_EQ(in_place, expected);
      }));
    }
  }
}

TEST_P(collectives, broadcast_from_any_root) {
  for (const int size : {1, 2, 5}) {
    auto group = make(size);
    for (const std::size_t count : {0UL, 1UL, 70'001UL}) {
      for (int root = 0; root < size; ++root) {
        expect_success(run_ranks(group, [&](communicator& me) {
          std::vector<std::uint8_t> data(count, static_cast<std::uint8_t>(me.rank() + 1));
          me.broadcast(buffer_of(data, dtype::u8), root);
          EXPECT_EQ(data, std::vector<std::uint8_t>(count, static_cast<std::uint8_t>(root + 1)));
        }));
      }
    }
  }
}

TEST_P(collectives, messages_keep_their_order_between_collectives) {
  constexpr int kRounds = 40;
  auto group = make(3);
  expect_success(run_ranks(group, [&](communicator& me) {
    std::mt19937 random(7); // the same lengths on every rank
    for (int round = 0; round < kRounds; ++round) {
      const std::size_t count = random() % 3000;
      std::vector<std::int32_t> first(count, round), second(count / 2, round * 2), back(1, me.rank());
      std::vector<float> sum(5, static_cast<float>(me.rank()));
      if (me.rank() == 0) {
        me.send(buffer_of(first, dtype::i32), 1);
        me.send(buffer_of(second, dtype::i32), 1);
        me.receive(buffer_of(back, dtype::i32), 2);
        me.all_reduce(buffer_of(sum, dtype::f32));
        EXPECT_EQ(back[0], 2);
      } else if (me.rank() == 1) {
        std::vector<std::int32_t> got_first(count, -1), got_second(count / 2, -1);
        me.receive(buffer_of(got_first, dtype::i32), 0);
        me.receive(buffer_of(got_second, dtype::i32), 0);
        me.all_reduce(buffer_of(sum, dtype::f32));
        EXPECT_EQ(got_first, first);
        EXPECT_EQ(got_second, second);
      } else {
        me.send(buffer_of(back, dtype::i32), 0);
        me.all_reduce(buffer_of(sum, dtype::f32));
      }
      EXPECT_EQ(sum, std::vector<float>(5, 3.0F));
    }
  }));
}

TEST_P(collectives, several_sends_do_not_wait_for_the_receiver) {
  auto group = make(2);
  std::vector<std::int32_t> data(1000, 5);
  for (int i = 0; i < 4; ++i) group[0]->send(buffer_of(data, dtype::i32), 1); // nobody receives yet
  std::vector<std::int32_t> got(1000);
  for (int i = 0; i < 4; ++i) group[1]->receive(buffer_of(got, dtype::i32), 0);
  EXPECT_EQ(got, data);
}

TEST_P(collectives, who_does_not_come_is_named_at_the_deadline) {
  auto group = make(3, 200ms);
  std::vector<float> data(10);
  const auto outcomes = run_ranks(group, [&](communicator& me) {
    std::vector<float> mine(10);
    if (me.rank() != 2) me.all_reduce(buffer_of(mine, dtype::f32));
  });
  for (const int rank : {0, 1}) {
    const outcome& got = outcomes[static_cast<std::size_t>(rank)];
    EXPECT_EQ(got.fault, collective_fault::deadline) << got.text;
    EXPECT_EQ(got.peer, 2) << got.text;
    EXPECT_NE(got.text.find("rank 2"), std::string::npos) << got.text;
    EXPECT_NE(got.text.find("200 ms"), std::string::npos) << got.text;
    EXPECT_NE(got.text.find("all_reduce of 10 F32"), std::string::npos) << got.text;
    EXPECT_GE(got.took, 150ms); // the other rank's watch may have begun a little earlier
    EXPECT_LT(got.took, 2s);
  }
  const outcome late = attempt([&] { group[2]->all_reduce(buffer_of(data, dtype::f32)); });
  EXPECT_EQ(late.fault, collective_fault::deadline) << "the late one hears of it: " << late.text;
}

TEST_P(collectives, a_receive_without_a_send_ends_at_the_deadline) {
  auto group = make(2, 100ms);
  std::vector<float> data(10);
  const outcome got = attempt([&] { group[1]->receive(buffer_of(data, dtype::f32), 0); });
  EXPECT_EQ(got.fault, collective_fault::deadline) << got.text;
  EXPECT_EQ(got.peer, 0);
}

TEST_P(collectives, a_rank_that_left_is_lost_at_once) {
  auto group = make(3);
  group[1].reset();
  for (const std::size_t rank : {0UL, 2UL}) {
    std::vector<float> data(10);
    const outcome got = attempt([&] { group[rank]->all_reduce(buffer_of(data, dtype::f32)); });
    EXPECT_EQ(got.fault, collective_fault::peer_lost) << got.text;
    EXPECT_EQ(got.peer, 1) << got.text;
    EXPECT_LT(got.took, 2s);
  }
}

TEST_P(collectives, ranks_may_leave_one_after_the_other_when_all_is_done) {
  for (int round = 0; round < 20; ++round) {
    auto group = make(4);
    expect_success(run_ranks(group, [&](communicator& me) {
      std::vector<float> small(3, 1), large(30'000, 1);
      me.all_reduce(buffer_of(large, dtype::f32));
      me.all_reduce(buffer_of(small, dtype::f32));
      EXPECT_EQ(small[2], 4);
      group[static_cast<std::size_t>(me.rank())].reset();
    }));
  }
}

TEST_P(collectives, abort_wakes_every_rank_from_any_thread) {
  for (const bool in_message : {false, true}) {
    auto group = make(3);
    std::thread aborting([&] {
      std::this_thread::sleep_for(50ms);
      group[0]->abort("the operator said so");
    });
    const auto outcomes = run_ranks(group, [&](communicator& me) {
      std::vector<float> data(10);
      if (in_message) me.receive(buffer_of(data, dtype::f32), (me.rank() + 1) % 3);
      if (!in_message && me.rank() == 2) std::this_thread::sleep_for(100ms); // the others are in the call
      if (!in_message) me.all_reduce(buffer_of(data, dtype::f32));
    });
    aborting.join();
    for (const outcome& got : outcomes) {
      EXPECT_EQ(got.fault, collective_fault::aborted) << got.text;
      EXPECT_EQ(got.peer, 0) << got.text;
      EXPECT_NE(got.text.find("the operator said so"), std::string::npos) << got.text;
      EXPECT_LT(got.took, 5s);
    }
  }
}

TEST_P(collectives, after_a_fault_every_call_throws_the_same) {
  auto group = make(2);
  group[1]->abort("enough");
  std::vector<float> data(4);
  std::vector<float> all(8);
  for (auto& end : group) {
    const int peer = 1 - end->rank();
    const std::vector<std::function<void()>> calls = {[&] { end->all_reduce(buffer_of(data, dtype::f32)); },
                                                      [&] { end->all_gather(buffer_of(data, dtype::f32), buffer_of(all, dtype::f32)); },
                                                      [&] { end->broadcast(buffer_of(data, dtype::f32), 1 - end->rank()); },
                                                      [&] { end->receive(buffer_of(data, dtype::f32), peer); },
                                                      [&] { end->send(buffer_of(data, dtype::f32), peer); }};
    for (std::size_t i = 0; i < calls.size(); ++i)
      EXPECT_EQ(attempt(calls[i]).fault, collective_fault::aborted) << end->rank() << " call " << i;
  }
}

struct pair_of_calls {
  std::function<void(communicator&)> first, second;
  std::string first_says, second_says;
};

std::vector<pair_of_calls> calls_that_do_not_fit() {
  const auto sum = [](std::size_t count, dtype type) {
    return [=](communicator& me) {
      std::vector<float> data(count);
      me.all_reduce({data.data(), count, type});
    };
  };
  const auto cast = [](std::size_t count, int root) {
    return [=](communicator& me) {
      std::vector<float> data(count);
      me.broadcast(buffer_of(data, dtype::f32), root);
    };
  };
  const auto gather = [](std::size_t count) {
    return [=](communicator& me) {
      std::vector<float> mine(count), all(count * static_cast<std::size_t>(me.size()));
      me.all_gather(buffer_of(mine, dtype::f32), buffer_of(all, dtype::f32));
    };
  };
  return {
      {sum(8, dtype::f32), sum(9, dtype::f32), "all_reduce of 8 F32", "all_reduce of 9 F32"},
      {sum(100'000, dtype::f32), sum(9, dtype::f32), "all_reduce of 100000 F32", "all_reduce of 9 F32"},
      {sum(8, dtype::f16), sum(8, dtype::bf16), "all_reduce of 8 F16", "all_reduce of 8 BF16"},
      {sum(8, dtype::f32), gather(8), "all_reduce of 8 F32", "all_gather of 8 F32 of each rank"},
      {cast(8, 0), cast(7, 0), "broadcast of 8 F32 from rank 0", "broadcast of 7 F32 from rank 0"},
      {cast(8, 1), cast(8, 0), "broadcast of 8 F32 from rank 1", "broadcast of 8 F32 from rank 0"},
  };
}

TEST_P(collectives, calls_that_do_not_fit_are_told_with_both_sides_numbers) {
  for (const auto& [first, second, first_says, second_says] : calls_that_do_not_fit()) {
    auto group = make(2);
    const auto outcomes = run_ranks(group, [&](communicator& me) { me.rank() == 0 ? first(me) : second(me); });
    for (const outcome& got : outcomes) {
      EXPECT_EQ(got.fault, collective_fault::mismatch) << got.text;
      EXPECT_NE(got.text.find(first_says), std::string::npos) << got.text;
      EXPECT_NE(got.text.find(second_says), std::string::npos) << got.text;
      EXPECT_LT(got.took, 5s);
    }
  }
}

TEST_P(collectives, a_message_of_another_size_is_told_with_both_sides_numbers) {
  auto group = make(2);
  const auto outcomes = run_ranks(group, [&](communicator& me) {
    std::vector<float> data(me.rank() == 0 ? 8 : 6);
    if (me.rank() == 0) me.send(buffer_of(data, dtype::f32), 1);
    if (me.rank() == 1) me.receive(buffer_of(data, dtype::f32), 0);
  });
  EXPECT_EQ(outcomes[1].fault, collective_fault::mismatch) << outcomes[1].text;
  EXPECT_NE(outcomes[1].text.find("a message of 8 F32"), std::string::npos) << outcomes[1].text;
  EXPECT_NE(outcomes[1].text.find("a message of 6 F32"), std::string::npos) << outcomes[1].text;
}

TEST_P(collectives, a_message_that_was_not_received_before_a_collective_is_told) {
  auto group = make(2);
  const auto outcomes = run_ranks(group, [&](communicator& me) {
    std::vector<float> data(8);
    if (me.rank() == 0) me.send(buffer_of(data, dtype::f32), 1);
    me.all_reduce(buffer_of(data, dtype::f32));
  });
  EXPECT_EQ(outcomes[1].fault, collective_fault::mismatch) << outcomes[1].text;
  EXPECT_NE(outcomes[1].text.find("rank 1 called all_reduce of 8 F32, rank 0 a message of 8 F32"), std::string::npos) << outcomes[1].text;
  std::vector<float> data(8); // the sender had all it needed to go on, and hears of it in its next call
  EXPECT_EQ(attempt([&] { group[0]->all_reduce(buffer_of(data, dtype::f32)); }).fault, collective_fault::mismatch);
}

TEST_P(collectives, a_call_that_no_rank_could_make_ends_the_group) {
  const std::vector<std::function<void(communicator&)>> calls = {
      [](communicator& me) {
        std::vector<std::int32_t> data(4);
        me.all_reduce(buffer_of(data, dtype::i32));
      },
      [](communicator& me) {
        std::vector<float> data(4), all(7);
        me.all_gather(buffer_of(data, dtype::f32), buffer_of(all, dtype::f32));
      },
      [](communicator& me) {
        std::vector<float> data(4);
        me.broadcast(buffer_of(data, dtype::f32), 2);
      },
      [](communicator& me) {
        std::vector<float> data(4);
        me.send(buffer_of(data, dtype::f32), me.rank());
      },
  };
  for (const auto& call : calls) {
    auto group = make(2);
    EXPECT_EQ(attempt([&] { call(*group[0]); }).fault, collective_fault::mismatch);
    std::vector<float> data(4);
    EXPECT_EQ(attempt([&] { group[1]->all_reduce(buffer_of(data, dtype::f32)); }).fault, collective_fault::mismatch);
  }
}

TEST_P(collectives, times_tell_waiting_from_moving) {
  auto group = make(3);
  std::vector<collective_times> times(3);
  expect_success(run_ranks(group, [&](communicator& me) {
    std::vector<float> data(100);
    for (int i = 0; i < 4; ++i) me.all_reduce(buffer_of(data, dtype::f32));
    me.take_times();
    if (me.rank() == 1) std::this_thread::sleep_for(100ms);
    me.all_reduce(buffer_of(data, dtype::f32));
    times[static_cast<std::size_t>(me.rank())] = me.take_times();
    EXPECT_EQ(me.take_times().calls, 0U);
  }));
  for (const std::size_t rank : {0UL, 2UL}) {
    EXPECT_EQ(times[rank].calls, 1U);
    EXPECT_EQ(times[rank].bytes, 400U);
    EXPECT_GE(times[rank].wait_ns, 50'000'000U);
  }
  EXPECT_LT(times[1].wait_ns, times[0].wait_ns);
}

INSTANTIATE_TEST_SUITE_P(kinds, collectives, ::testing::Values(kind{"local", make_local_group}, kind{"tcp", make_tcp_group}),
                         [](const auto& chosen) { return chosen.param.name; });

} // namespace
} // namespace troupe
