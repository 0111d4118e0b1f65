#include "transport/collective/tcp_wire.hpp"

#include <sys/socket.h>

#include <algorithm>
#include <cstring>

namespace troupe::wire {
namespace {

struct listed_endpoint {
  std::array<char, 46> host{};
  std::uint16_t port = 0;
};
static_assert(sizeof(listed_endpoint) == kEndpointBytes);

std::array<char, 46> host_field(const std::string& host) {
  std::array<char, 46> field{};
  std::copy_n(host.begin(), std::min(host.size(), field.size() - 1), field.begin());
  return field;
}

std::string host_text(const std::array<char, 46>& field) { return {field.begin(), std::find(field.begin(), field.end(), '\0')}; }

// In one piece, so that notices of two threads do not mix.
std::vector<std::byte> packed(const notice_header& header, const void* payload) {
  std::vector<std::byte> out(sizeof header + header.bytes);
  std::memcpy(out.data(), &header, sizeof header);
  if (header.bytes > 0) std::memcpy(out.data() + sizeof header, payload, header.bytes);
  return out;
}

void send_text(const descriptor& socket, notice_kind kind, const group_fault& fault) noexcept {
  try {
    const auto bytes =
        packed({kind, static_cast<std::uint32_t>(std::min(fault.text.size(), kMaxText)), fault.fault, {}, fault.peer}, fault.text.data());
    ::send(socket.number(), bytes.data(), bytes.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
  } catch (...) { // without memory the other side sees the connection end
  }
}

} // namespace

bool knows_token(const introduction& hello, const std::array<std::uint8_t, 16>& token) {
  unsigned difference = hello.magic == introduction{}.magic ? 0 : 1;
  for (std::size_t i = 0; i < token.size(); ++i) difference |= static_cast<unsigned>(hello.token[i] ^ token[i]);
  return difference == 0;
}

void set_endpoint(introduction& hello, const endpoint& at) {
  hello.host = host_field(at.host);
  hello.port = at.port;
}

frame_header header_of(const collective_call& call, std::uint16_t phase, std::uint64_t number) {
  return {frame_header::kMagic, call.op, call.type, phase, number, call.count, call.root, 0};
}

collective_call call_of(const frame_header& header) { return {header.op, header.type, header.count, header.root}; }

void send_fault(const descriptor& socket, const group_fault& fault) noexcept { send_text(socket, notice_kind::fault, fault); }

void send_refusal(const descriptor& socket, const std::string& text) noexcept {
  send_text(socket, notice_kind::refusal, {collective_fault::failed, 0, text});
}

bool send_table(const descriptor& socket, const std::vector<endpoint>& endpoints, deadline_clock::time_point until) {
  std::vector<listed_endpoint> listed;
  for (const auto& one : endpoints) listed.push_back({host_field(one.host), one.port});
  const auto bytes = packed(
      {notice_kind::table, static_cast<std::uint32_t>(listed.size() * kEndpointBytes), collective_fault::failed, {}, -1}, listed.data());
  return write_all(socket, bytes, until) == transfer::done;
}

std::optional<notice> read_notice(const descriptor& socket, deadline_clock::time_point until) {
  notice_header header;
  if (read_all(socket, std::as_writable_bytes(std::span(&header, 1)), until) != transfer::done) return std::nullopt;
  const bool is_table = header.kind == notice_kind::table;
  if (header.kind > notice_kind::fault || header.bytes > (is_table ? kMaxTcpRanks * kEndpointBytes : kMaxText)) return std::nullopt;
  if (header.fault > collective_fault::failed || header.peer < -1 || header.peer >= kMaxTcpRanks) return std::nullopt;
  std::vector<std::byte> payload(header.bytes);
  if (read_all(socket, payload, until) != transfer::done) return std::nullopt;
  notice out{header.kind, {header.fault, header.peer, {}}, {}};
  if (!is_table) {
    out.fault.text.assign(reinterpret_cast<const char*>(payload.data()), payload.size());
    return out;
  }
  for (std::size_t at = 0; at + kEndpointBytes <= payload.size(); at += kEndpointBytes) {
    listed_endpoint one;
    std::memcpy(&one, payload.data() + at, sizeof one);
    out.endpoints.push_back({host_text(one.host), one.port});
  }
  return out;
}

} // namespace troupe::wire
