// What ranks hand each other before they share memory, between threads of one process.
#include "transport/collective/host_exchange.hpp"

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include "tests/transport/collective/group_testing.hpp"
#include "transport/collective/local_group.hpp"

namespace troupe {
namespace {

using namespace std::chrono_literals;

keeper::file_descriptor file_with(const std::string& text) {
  keeper::file_descriptor file(memfd_create("test", MFD_CLOEXEC));
  EXPECT_EQ(::write(file.get(), text.data(), text.size()), static_cast<ssize_t>(text.size()));
  return file;
}

std::string text_of(const keeper::file_descriptor& file) {
  std::string text(64, '\0');
  text.resize(static_cast<std::size_t>(std::max<ssize_t>(0, ::pread(file.get(), text.data(), text.size(), 0))));
  return text;
}

TEST(host_exchange, all_ranks_hear_the_first_objection) {
  auto group = make_local_group(4, kAmple);
  expect_success(run_ranks(group, [](communicator& me) {
    EXPECT_EQ(first_objection(me, ""), "");
    EXPECT_EQ(first_objection(me, me.rank() >= 2 ? "no peer access" : ""), "rank 2: no peer access");
    EXPECT_EQ(first_objection(me, std::string(1000, 'x')).size(), 239U + std::string("rank 0: ").size()) << "cut, not overrun";
  }));
  auto alone = make_local_group(1, kAmple);
  EXPECT_EQ(first_objection(*alone[0], "no"), "no");
}

TEST(host_exchange, every_rank_gets_every_other_ranks_file) {
  for (const int size : {1, 2, 5, 8}) {
    auto group = make_local_group(size, kAmple);
    expect_success(run_ranks(group, [size](communicator& me) {
      for (int round = 0; round < 3; ++round) {
        const auto told = [round](int rank) { return "round " + std::to_string(round) + " of " + std::to_string(rank); };
        const auto files = exchange_files(me, file_with(told(me.rank())), 10s);
        ASSERT_EQ(files.size(), static_cast<std::size_t>(size));
        for (int rank = 0; rank < size; ++rank) {
          const auto& file = files[static_cast<std::size_t>(rank)];
          ASSERT_EQ(static_cast<bool>(file), rank != me.rank());
          if (!file) continue;
          EXPECT_EQ(text_of(file), told(rank));
        }
      }
    }));
  }
}

TEST(host_exchange, a_rank_without_a_file_lets_the_others_give_up_in_time) {
  auto group = make_local_group(2, kAmple);
  const auto begin = std::chrono::steady_clock::now();
  expect_success(run_ranks(group, [](communicator& me) {
    const keeper::file_descriptor mine = me.rank() == 0 ? file_with("here") : keeper::file_descriptor();
    if (me.rank() == 0) {
      EXPECT_THROW(exchange_files(me, mine, 300ms), std::runtime_error);
    } else {
      EXPECT_EQ(text_of(exchange_files(me, mine, 300ms)[0]), "here");
    }
  }));
  EXPECT_LT(std::chrono::steady_clock::now() - begin, 5s);
}

} // namespace
} // namespace troupe
