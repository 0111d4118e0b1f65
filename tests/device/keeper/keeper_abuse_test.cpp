// What a keeper does with clients that are wrong, hostile or dead. After each of them it must serve as before, with no file left open.
#include <sys/socket.h>

#include <cstring>
#include <filesystem>
#include <random>

#include "tests/device/keeper/keeper_testing.hpp"

namespace troupe::keeper {
namespace {

using namespace testing;
using state = claim::state;

std::size_t open_files() {
  std::size_t count = 0;
  for ([[maybe_unused]] const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) ++count;
  return count;
}

class keeper_abuse_test : public ::testing::Test {
 protected:
  void SetUp() override {
    fill(keeper_.at, region("a model"), "weights");
    settle();
    files_ = open_files();
  }
  void TearDown() override {
    claim mine = ask(keeper_.at, region("a model"));
    ASSERT_EQ(mine.now(), state::complete) << mine.reason();
    EXPECT_EQ(text_in(mine.take_memory(), 7), "weights");
    settle();
    EXPECT_EQ(open_files(), files_);
  }

  // Until the keeper, which shares this process's files here, has closed what its clients left.
  void settle() {
    std::this_thread::sleep_for(std::chrono::milliseconds(250));
    EXPECT_TRUE(query(keeper_.at));
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }

  file_descriptor connect() { return connect_to(keeper_.at.name, std::chrono::seconds(1), std::chrono::seconds(2)); }

  message head(message_kind kind, const std::string& name = "a model") {
    message out;
    out.kind = kind;
    out.slot = 1;
    out.name = digest(name);
    out.bytes = 4096;
    std::copy(keeper_.at.token.begin(), keeper_.at.token.end(), out.token);
    return out;
  }

  // The reason of the refusal that answers `sent`, or what came instead.
  static std::string refusal(const file_descriptor& socket, const message& sent, int first = -1, int second = -1) {
    EXPECT_TRUE(send_packet(socket.get(), sent, first, second));
    packet got;
    if (receive_packet(socket.get(), got) != reception::whole) return "closed";
    return got.head.kind == message_kind::refused ? got.head.reason : "kind " + std::to_string(static_cast<int>(got.head.kind));
  }

  running_keeper keeper_{{.first_packet = std::chrono::milliseconds(200)}};
  std::size_t files_ = 0;
};

TEST_F(keeper_abuse_test, a_wrong_token_gets_nothing) {
  for (const std::string& token : {std::string(), std::string("0"), keeper_.at.token.substr(1), keeper_.at.token + "0"}) {
    const claim mine = ask({keeper_.at.name, token}, region("a model"));
    EXPECT_EQ(mine.now(), state::alone);
    EXPECT_NE(mine.reason().find("token"), std::string::npos) << mine.reason();
  }
}

TEST_F(keeper_abuse_test, another_version_is_told_both) {
  message old = head(message_kind::claim);
  old.version = 7;
  EXPECT_EQ(refusal(connect(), old), "the keeper speaks version " + std::to_string(protocol_version) + ", the client 7");
}

// A later version's packets may be longer or shorter.
TEST_F(keeper_abuse_test, another_version_of_another_size_is_told_too) {
  message old = head(message_kind::claim);
  old.version = protocol_version + 1;
  char packet_bytes[4096] = {};
  std::memcpy(packet_bytes, &old, sizeof old);
  for (const std::size_t size : {std::size_t{8}, sizeof packet_bytes}) {
    const file_descriptor socket = connect();
    ASSERT_EQ(send(socket.get(), packet_bytes, size, 0), static_cast<ssize_t>(size));
    packet got;
    ASSERT_EQ(receive_packet(socket.get(), got), reception::whole);
    EXPECT_EQ(std::string(got.head.reason),
              "the keeper speaks version " + std::to_string(protocol_version) + ", the client " + std::to_string(protocol_version + 1));
  }
}

TEST_F(keeper_abuse_test, packets_out_of_turn_are_refused) {
  EXPECT_EQ(refusal(connect(), head(message_kind::seal)), "a packet out of turn");
  EXPECT_EQ(refusal(connect(), head(message_kind::complete)), "a packet out of turn");
  message unknown = head(message_kind::claim);
  const std::uint16_t number = 999;
  std::memcpy(&unknown.kind, &number, sizeof number);
  EXPECT_EQ(refusal(connect(), unknown), "a packet out of turn");
  message strange = head(message_kind::claim, "new");
  std::memcpy(&strange.memory, &number, sizeof number);
  EXPECT_EQ(refusal(connect(), strange), "memory of an unknown kind");
}

TEST_F(keeper_abuse_test, impossible_sizes_are_refused) {
  for (const std::uint64_t bytes : {std::uint64_t{0}, most_region_bytes + 1, ~std::uint64_t{0}}) {
    message odd = head(message_kind::claim, "new");
    odd.slot = 2;
    odd.bytes = bytes;
    EXPECT_EQ(refusal(connect(), odd), "a region of " + std::to_string(bytes) + " bytes");
  }
}

TEST_F(keeper_abuse_test, memory_that_could_still_change_is_refused) {
  const auto seal_with = [&](const file_descriptor& memory, const file_descriptor& manifest) {
    const file_descriptor socket = connect();
    message claim_other = head(message_kind::claim, "new");
    claim_other.slot = 2;
    EXPECT_EQ(refusal(socket, claim_other), "kind " + std::to_string(static_cast<int>(message_kind::fill)));
    return refusal(socket, head(message_kind::seal), memory ? memory.get() : -1, manifest ? manifest.get() : -1);
  };
  EXPECT_EQ(seal_with({}, {}), "a region comes as two files");
  EXPECT_EQ(seal_with(memory_of("w"), {}), "a region comes as two files");
  EXPECT_EQ(seal_with(memory_of("w", 4096, false), memory_of("m")), "the memory is not a sealed memfd");
  EXPECT_EQ(seal_with(file_descriptor(::open("/dev/null", O_RDWR | O_CLOEXEC)), memory_of("m")), "the memory is not a sealed memfd");
  EXPECT_EQ(seal_with(memory_of("w", 100), memory_of("m")), "the memory has 100 bytes and not 4096");
  EXPECT_EQ(seal_with(memory_of("w"), memory_of("m", 64, false)), "the manifest is not a sealed memfd of a bearable size");
  EXPECT_EQ(seal_with(memory_of("w"), memory_of("m", most_manifest_bytes + 1)), "the manifest is not a sealed memfd of a bearable size");
  EXPECT_EQ(query(keeper_.at)->regions, 1U);
}

TEST_F(keeper_abuse_test, files_that_nobody_asked_for_are_closed) {
  const file_descriptor gift = memory_of("gift");
  for (int i = 0; i < 50; ++i) {
    const file_descriptor socket = connect();
    EXPECT_TRUE(send_packet(socket.get(), head(message_kind::query), gift.get(), gift.get()));
  }
}

TEST_F(keeper_abuse_test, more_files_than_a_region_has_are_closed) {
  const file_descriptor gift = memory_of("gift");
  for (int i = 0; i < 20; ++i) {
    const file_descriptor socket = connect();
    message sent = head(message_kind::claim);
    iovec data{&sent, sizeof sent};
    int files[16];
    std::fill(std::begin(files), std::end(files), gift.get());
    alignas(cmsghdr) char control[CMSG_SPACE(sizeof files)] = {};
    msghdr out{};
    out.msg_iov = &data;
    out.msg_iovlen = 1;
    out.msg_control = control;
    out.msg_controllen = sizeof control;
    cmsghdr* const part = CMSG_FIRSTHDR(&out);
    part->cmsg_level = SOL_SOCKET;
    part->cmsg_type = SCM_RIGHTS;
    part->cmsg_len = CMSG_LEN(sizeof files);
    std::memcpy(CMSG_DATA(part), files, sizeof files);
    ASSERT_EQ(sendmsg(socket.get(), &out, MSG_NOSIGNAL), static_cast<ssize_t>(sizeof sent));
    packet got;
    ASSERT_EQ(receive_packet(socket.get(), got), reception::whole);
    EXPECT_EQ(got.head.kind, message_kind::refused);
  }
}

TEST_F(keeper_abuse_test, garbage_of_any_size_is_refused) {
  std::mt19937 random(5);
  for (int i = 0; i < 300; ++i) {
    std::string garbage(1 + random() % 1000, '\0');
    for (char& c : garbage) c = static_cast<char>(random());
    if (i % 3 == 0) { // ours at the beginning, and nonsense behind it
      const message good = head(message_kind::claim);
      garbage.resize(sizeof good, 'x');
      std::memcpy(garbage.data(), &good, offsetof(message, slot));
    }
    const file_descriptor socket = connect();
    ASSERT_EQ(send(socket.get(), garbage.data(), garbage.size(), 0), static_cast<ssize_t>(garbage.size()));
    packet got;
    ASSERT_EQ(receive_packet(socket.get(), got), reception::whole);
    EXPECT_EQ(got.head.kind, message_kind::refused);
  }
}

TEST_F(keeper_abuse_test, silent_clients_make_room_after_their_time) {
  std::vector<file_descriptor> silent;
  for (std::size_t i = 0; i < keeper_limits{}.connections; ++i) silent.push_back(connect());
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  EXPECT_FALSE(query(keeper_.at)) << "all places are taken";
  std::this_thread::sleep_for(std::chrono::milliseconds(400));
  EXPECT_TRUE(query(keeper_.at));
}

TEST_F(keeper_abuse_test, a_client_that_never_reads_harms_nobody) {
  std::vector<file_descriptor> deaf;
  for (int i = 0; i < 20; ++i) {
    deaf.push_back(connect());
    EXPECT_TRUE(send_packet(deaf.back().get(), head(message_kind::claim)));
  }
  EXPECT_TRUE(query(keeper_.at));
}

} // namespace
} // namespace troupe::keeper
