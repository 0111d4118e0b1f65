// The bytes between two ranks. Two connections join them: one for data, one for notices, which so never wait behind data.
// All integers are the machine's own; who has another order of bytes is refused at the introduction.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "transport/collective/call.hpp"
#include "transport/collective/socket.hpp"
#include "transport/collective/tcp_group.hpp"

namespace troupe::wire {

constexpr std::uint16_t kVersion = 1;

enum class lane : std::uint32_t { data, notices };

// The first bytes of every connection, from who has opened it.
struct introduction {
  std::array<char, 8> magic{'T', 'r', 'o', 'u', 'p', 'e', 'C', 'o'};
  std::uint16_t byte_order = 0x0102;
  std::uint16_t version = kVersion;
  std::int32_t rank = 0;
  std::int32_t size = 0;
  wire::lane lane = lane::data;
  std::array<std::uint8_t, 16> token{};
  std::array<std::uint8_t, 8> visitor{}; // random: both connections of a rank come from the same process
  std::array<char, 46> host{};           // where its rank listens for ranks above it
  std::uint16_t port = 0;
};
static_assert(sizeof(introduction) == 96);

// Compares in a time that does not depend on where the difference is.
bool knows_token(const introduction& hello, const std::array<std::uint8_t, 16>& token);
void set_endpoint(introduction& hello, const endpoint& at);

// Before the payload of every frame on the data connection. How many bytes follow is what the receiver's own call says, never what a
// header says: one that does not fit ends the group.
struct frame_header {
  std::uint32_t magic = kMagic;
  collective_op op = collective_op::form;
  dtype type = dtype::f32;
  std::uint16_t phase = 0;  // of a call that exchanges more than once
  std::uint64_t number = 0; // of this call among the collectives, or of this message from this peer
  std::uint64_t count = 0;
  std::int32_t root = 0;
  std::uint32_t unused = 0;

  static constexpr std::uint32_t kMagic = 0x70727254;
  friend bool operator==(const frame_header&, const frame_header&) = default;
};
static_assert(sizeof(frame_header) == 32);

frame_header header_of(const collective_call& call, std::uint16_t phase, std::uint64_t number);
collective_call call_of(const frame_header& header);

// On the connection for notices.
enum class notice_kind : std::uint32_t {
  table,   // rank 0 to each: where every rank listens
  refusal, // the introduction does not fit; the text says why
  fault,   // the sender ended the group; the text says why
};

struct notice_header {
  notice_kind kind = notice_kind::fault;
  std::uint32_t bytes = 0; // that follow
  collective_fault fault = collective_fault::failed;
  std::array<std::uint8_t, 3> unused{};
  std::int32_t peer = -1;
};
static_assert(sizeof(notice_header) == 16);

constexpr std::size_t kMaxText = 1024; // of a notice; longer ones are cut
constexpr std::size_t kEndpointBytes = 48;

struct notice {
  notice_kind kind = notice_kind::fault;
  group_fault fault;               // of a refusal or a fault
  std::vector<endpoint> endpoints; // of a table
};

// Never waits: what the socket does not take at once is lost. For small notices on an empty connection, from any thread.
void send_fault(const descriptor& socket, const group_fault& fault) noexcept;
void send_refusal(const descriptor& socket, const std::string& text) noexcept;
bool send_table(const descriptor& socket, const std::vector<endpoint>& endpoints, deadline_clock::time_point until);

// Nothing when it has not come by then, or the connection has ended or carries something else.
std::optional<notice> read_notice(const descriptor& socket, deadline_clock::time_point until);

} // namespace troupe::wire
