#include "transport/collective/tcp_exchange.hpp"

#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include <cerrno>
#include <cstring>
#include <system_error>
#include <thread>

namespace troupe {
namespace {

constexpr std::chrono::microseconds kSpin{20};
constexpr std::chrono::milliseconds kNotice{200}; // for a notice that explains why a connection ended

// What is left of a frame.
msghdr rest_of(wire::frame_header& header, std::byte* payload, std::size_t bytes, std::size_t done, iovec (&parts)[2]) {
  const std::size_t head = std::min(done, sizeof header);
  parts[0] = {reinterpret_cast<std::byte*>(&header) + head, sizeof header - head};
  parts[1] = {payload + (done - head), bytes - (done - head)};
  msghdr message{};
  message.msg_iov = head < sizeof header ? parts : parts + 1;
  message.msg_iovlen = head < sizeof header ? 2 : 1;
  return message;
}

std::string error_text(int error) { return std::generic_category().message(error); }

} // namespace

tcp_exchange::tcp_exchange(int rank, std::vector<tcp_link> links, std::chrono::milliseconds deadline)
    : rank_(rank),
      deadline_(deadline),
      spins_(links.size() <= std::thread::hardware_concurrency()),
      lanes_(links.size()),
      wake_(::eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)) {
  if (!wake_) throw std::system_error(errno, std::generic_category(), "eventfd");
  for (std::size_t peer = 0; peer < links.size(); ++peer) lanes_[peer].link = std::move(links[peer]);
}

deadline_clock::time_point tcp_exchange::run(const collective_call& call, std::uint16_t phase, std::span<const outgoing> out,
                                             std::span<const incoming> in, deadline_clock::time_point until) {
  raise_if_ended();
  all_there_ = deadline_clock::now();
  if (phase == 0) allowed_ = std::chrono::ceil<std::chrono::milliseconds>(until - all_there_);
  start(call, phase, out, in);
  if (phase == 0) sleep(all_there_); // hears of a group that has ended, also where nobody is waited for
  auto idle_since = all_there_;
  while (left_ > 0) {
    bool moved = false;
    for (const outgoing& one : out) moved |= push(one.peer);
    for (const incoming& one : in) moved |= pull(one.peer);
    if (left_ == 0) break;
    raise_if_ended();
    const auto now = deadline_clock::now();
    if (now >= until) late();
    if (moved) idle_since = now;
    const bool again = moved || (spins_ && now - idle_since < kSpin);
    if (!again) sleep(until);
  }
  return all_there_;
}

void tcp_exchange::start(const collective_call& call, std::uint16_t phase, std::span<const outgoing> out, std::span<const incoming> in) {
  call_ = call;
  const bool is_message = call.op == collective_op::message;
  if (!is_message && phase == 0) ++collectives_;
  for (const outgoing& one : out) {
    lane& to = lane_of(one.peer);
    to.out = {true,
              wire::header_of(call, phase, is_message ? ++to.sent : collectives_),
              {},
              const_cast<std::byte*>(one.payload.data()),
              one.payload.size()};
  }
  for (const incoming& one : in) {
    lane& from = lane_of(one.peer);
    from.in = {true, wire::header_of(call, phase, is_message ? ++from.received : collectives_), {}, one.payload.data(), one.payload.size()};
  }
  left_ = out.size() + in.size();
}

bool tcp_exchange::push(int peer) {
  lane& to = lane_of(peer);
  half_lane& out = to.out;
  if (!out.active) return false;
  iovec parts[2];
  const msghdr message = rest_of(out.own, out.payload, out.bytes, out.done, parts);
  const ssize_t sent = ::sendmsg(to.link.data.number(), &message, MSG_NOSIGNAL);
  if (sent < 0 && (errno == EAGAIN || errno == EINTR)) return false;
  if (sent < 0) lost(peer, error_text(errno));
  out.done += static_cast<std::size_t>(sent);
  if (out.done < out.whole()) return true;
  out.active = false;
  --left_;
  return true;
}

bool tcp_exchange::pull(int peer) {
  lane& from = lane_of(peer);
  half_lane& in = from.in;
  if (!in.active) return false;
  iovec parts[2];
  msghdr message = rest_of(in.received, in.payload, in.bytes, in.done, parts);
  const ssize_t got = ::recvmsg(from.link.data.number(), &message, 0);
  if (got < 0 && (errno == EAGAIN || errno == EINTR)) return false;
  if (got < 0) lost(peer, error_text(errno));
  if (got == 0) lost(peer, "it has closed the connection");
  if (in.done == 0) all_there_ = deadline_clock::now();
  const bool had_header = in.done >= sizeof(wire::frame_header);
  in.done += static_cast<std::size_t>(got);
  if (!had_header && in.done >= sizeof(wire::frame_header)) check_header(peer);
  if (in.done < in.whole()) return true;
  in.active = false;
  --left_;
  return true;
}

void tcp_exchange::check_header(int peer) {
  const half_lane& in = lane_of(peer).in;
  if (in.received == in.own) return;
  if (in.received.magic != wire::frame_header::kMagic) {
    end_and_raise({collective_fault::failed, peer, lane_of(peer).link.name + " sent something that is no frame"});
  }
  group_fault fault = mismatch_of(rank_, call_, peer, wire::call_of(in.received));
  if (in.received.number != in.own.number) {
    fault.text += "; the one was call " + std::to_string(in.own.number) + ", the other call " + std::to_string(in.received.number);
  }
  end_and_raise(fault);
}

void tcp_exchange::sleep(deadline_clock::time_point until) {
  waiting_.assign(1, {wake_.number(), POLLIN, 0});
  for (const lane& one : lanes_) {
    const int events = (one.in.active ? POLLIN : 0) | (one.out.active ? POLLOUT : 0);
    waiting_.push_back({events == 0 ? -1 : one.link.data.number(), static_cast<short>(events), 0});
    waiting_.push_back({one.notices_ended ? -1 : one.link.notices.number(), POLLIN, 0});
  }
  if (::poll(waiting_.data(), waiting_.size(), milliseconds_until(until)) <= 0) return;
  for (int peer = 0; peer < size(); ++peer) {
    if (waiting_[2 + 2 * static_cast<std::size_t>(peer)].revents != 0) hear(peer);
  }
}

// Only frames say that a peer is lost: one that has nothing more to do may leave while others finish.
void tcp_exchange::hear(int peer) {
  lane& from = lane_of(peer);
  if (const auto heard = wire::read_notice(from.link.notices, deadline_clock::now() + kNotice)) end_and_raise(heard->fault);
  from.notices_ended = true;
}

void tcp_exchange::lost(int peer, const std::string& why) {
  raise_if_ended();
  const lane& gone = lane_of(peer);
  if (!gone.notices_ended) {
    if (const auto heard = wire::read_notice(gone.link.notices, deadline_clock::now() + kNotice)) end_and_raise(heard->fault);
  }
  end_and_raise({collective_fault::peer_lost, peer,
                 gone.link.name + " is lost: " + why + "; rank " + std::to_string(rank_) + " needed it in " + describe(call_)});
}

void tcp_exchange::late() {
  const std::string within =
      " within " + std::to_string(allowed_.count()) + " ms; rank " + std::to_string(rank_) + " waited for it in " + describe(call_);
  const auto fault = [&](int peer, const std::string& what) {
    return group_fault{collective_fault::deadline, peer, lane_of(peer).link.name + what + within};
  };
  const auto progress = [](const half_lane& half) { return std::to_string(half.done) + " of " + std::to_string(half.whole()) + " bytes"; };
  for (int peer = 0; peer < size(); ++peer) {
    const half_lane& in = lane_of(peer).in;
    if (in.active && in.done == 0) end_and_raise(fault(peer, " did not come"));
  }
  for (int peer = 0; peer < size(); ++peer) {
    const half_lane& in = lane_of(peer).in;
    const half_lane& out = lane_of(peer).out;
    if (in.active) end_and_raise(fault(peer, " sent " + progress(in)));
    if (out.active) end_and_raise(fault(peer, " took " + progress(out)));
  }
  end_and_raise({collective_fault::deadline, -1, "nobody came" + within});
}

void tcp_exchange::raise_if_ended() {
  if (!ended_.load(std::memory_order_acquire)) return;
  const std::lock_guard lock(fault_mutex_);
  fault_->raise();
}

void tcp_exchange::end(const group_fault& fault) noexcept {
  const std::lock_guard lock(fault_mutex_);
  if (fault_) return;
  fault_ = fault;
  ended_.store(true, std::memory_order_release);
  for (const lane& one : lanes_) {
    if (!one.link.notices) continue;
    wire::send_fault(one.link.notices, fault);
    ::shutdown(one.link.data.number(), SHUT_RDWR);
  }
  const std::uint64_t one = 1;
  [[maybe_unused]] const ssize_t written = ::write(wake_.number(), &one, sizeof one);
}

void tcp_exchange::end_and_raise(const group_fault& fault) {
  end(fault);
  const std::lock_guard lock(fault_mutex_);
  fault_->raise();
}

} // namespace troupe
