// Ranks of a group that find each other, in threads and over TCP.
#include "apps/groups/links.hpp"

#include <gtest/gtest.h>

#include <future>
#include <mutex>
#include <thread>
#include <vector>

namespace troupe::apps {
namespace {

using namespace std::chrono_literals;

TEST(TcpAddress, TextAndBack) {
  tcp_address address{"127.0.0.1", 4711, {0, 1, 0xab, 255}};
  const tcp_address back = parse_tcp_address(to_text(address));
  EXPECT_EQ(back.host, address.host);
  EXPECT_EQ(back.port, address.port);
  EXPECT_EQ(back.token, address.token);
  for (const char* bad : {"", "127.0.0.1", "127.0.0.1 99999999 00", "127.0.0.1 1 zz112233445566778899aabbccddeeff"}) {
    EXPECT_THROW(parse_tcp_address(bad), std::invalid_argument) << bad;
  }
}

struct layout_case {
  int tp, stages;
  bool processes;
};

class group_links_test : public ::testing::TestWithParam<layout_case> {};

// As supervisor and ranks do: rank 0 publishes, the others start with what it said. Each adds up its neighbours' numbers.
TEST_P(group_links_test, every_rank_meets_its_stage_and_its_column) {
  const auto [tp, stages, processes] = GetParam();
  group_links links({.tp_size = tp, .stages = stages, .processes = processes, .form_deadline = 20s, .call_deadline = 20s});
  std::promise<std::string> published;
  const std::shared_future<std::string> rendezvous = published.get_future().share();
  const auto run = [&](int rank) {
    actors::rank_start place{0, rank, tp * stages, 1, rank > 0 ? rendezvous.get() : std::string()};
    const auto link = links.open(place, [&](std::string text) { published.set_value(std::move(text)); });
    const rank_context context = link->meet();
    EXPECT_EQ(context.number(), rank);
    float in_stage = static_cast<float>(rank), in_column = static_cast<float>(rank);
    if (context.tensor) context.tensor->all_reduce({&in_stage, 1, dtype::f32});
    if (context.pipeline) context.pipeline->all_reduce({&in_column, 1, dtype::f32});
    return std::pair(in_stage, in_column);
  };
  std::vector<std::future<std::pair<float, float>>> sums;
  for (int rank = 0; rank < tp * stages; ++rank) sums.push_back(std::async(std::launch::async, run, rank));
  for (int rank = 0; rank < tp * stages; ++rank) {
    float in_stage = 0, in_column = 0;
    for (int other = 0; other < tp * stages; ++other) {
      if (other / tp == rank / tp) in_stage += static_cast<float>(other);
      if (other % tp == rank % tp) in_column += static_cast<float>(other);
    }
    EXPECT_EQ(sums[static_cast<std::size_t>(rank)].get(),
              std::pair(tp > 1 ? in_stage : static_cast<float>(rank), stages > 1 ? in_column : static_cast<float>(rank)));
  }
}

INSTANTIATE_TEST_SUITE_P(layouts, group_links_test,
                         ::testing::Values(layout_case{2, 1, false}, layout_case{1, 3, false}, layout_case{2, 2, false},
                                           layout_case{3, 1, true}, layout_case{1, 2, true}, layout_case{2, 3, true}));

TEST(GroupLinks, ARankOfAnOldGenerationIsRefused) {
  group_links links({.tp_size = 2, .form_deadline = 1s, .call_deadline = 1s});
  std::string at;
  links.open({0, 0, 2, 1, ""}, [&](std::string text) { at = std::move(text); });
  links.open({0, 0, 2, 2, ""}, [](std::string) {});
  EXPECT_THROW(links.open({0, 1, 2, 1, at}, {}), std::runtime_error);
  EXPECT_THROW(links.open({1, 1, 2, 2, at}, {}), std::runtime_error) << "another replica";
  EXPECT_THROW(links.open({0, 0, 3, 2, ""}, {}), std::runtime_error) << "another size";
}

} // namespace
} // namespace troupe::apps
