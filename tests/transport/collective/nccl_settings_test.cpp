#include "transport/collective/nccl_settings.hpp"

#include <gtest/gtest.h>

#include <map>
#include <stdexcept>

namespace troupe {
namespace {

using variables = std::map<std::string, std::string>;

// What would be set, or why not.
variables settings(const std::string& interface, bool across_nodes, const variables& users) {
  variables out;
  try {
    for (const auto& one : nccl_settings(interface, across_nodes, [&](const char* name) {
           const auto found = users.find(name);
           return found == users.end() ? nullptr : found->second.c_str();
         })) {
      out[one.name] = one.value;
    }
  } catch (const std::invalid_argument& e) {
    out["refused"] = e.what();
  }
  return out;
}

TEST(nccl_settings, multicast_is_off_and_the_users_word_stands) {
  EXPECT_EQ(settings("", false, {}), (variables{{"NCCL_NVLS_ENABLE", "0"}}));
  EXPECT_EQ(settings("", false, {{"NCCL_NVLS_ENABLE", "2"}}), variables{});
}

TEST(nccl_settings, sockets_use_exactly_the_interface_that_was_chosen) {
  EXPECT_EQ(settings("127.0.0.1", false, {})["NCCL_SOCKET_IFNAME"], "=lo");
  EXPECT_EQ(settings("lo", false, {{"NCCL_SOCKET_IFNAME", "eth"}}).count("NCCL_SOCKET_IFNAME"), 0U);
}

TEST(nccl_settings, loopback_is_never_used_across_nodes) {
  EXPECT_NE(settings("lo", true, {})["refused"].find("is loopback"), std::string::npos);
  EXPECT_NE(settings("", true, {})["refused"].find("needs an interface"), std::string::npos);
  for (const char* loopback : {"lo", "=lo", "l", "eth0,lo", "=eth0,lo", "lo:4711"}) {
    EXPECT_NE(settings("", true, {{"NCCL_SOCKET_IFNAME", loopback}})["refused"].find("is loopback"), std::string::npos) << loopback;
  }
  for (const char* other : {"eth", "=eth0", "=l", "^lo", "^docker", "lox", "=eth0,ib0"}) {
    EXPECT_EQ(settings("", true, {{"NCCL_SOCKET_IFNAME", other}}).count("refused"), 0U) << other;
  }
}

TEST(nccl_settings, peers_memory_is_left_alone_where_the_user_forbids_it) {
  const auto forbidding = [](const variables& users) {
    return forbids_peer_memory([&](const char* name) {
      const auto found = users.find(name);
      return found == users.end() ? nullptr : found->second.c_str();
    });
  };
  EXPECT_EQ(forbidding({}), "");
  EXPECT_EQ(forbidding({{"NCCL_P2P_DISABLE", "0"}, {"NCCL_P2P_LEVEL", "NVL"}}), "");
  EXPECT_EQ(forbidding({{"NCCL_P2P_DISABLE", "1"}}), "NCCL_P2P_DISABLE=1");
  EXPECT_EQ(forbidding({{"NCCL_P2P_LEVEL", "LOC"}}), "NCCL_P2P_LEVEL=LOC");
  EXPECT_EQ(forbidding({{"NCCL_P2P_LEVEL", "0"}}), "NCCL_P2P_LEVEL=0");
}

} // namespace
} // namespace troupe
