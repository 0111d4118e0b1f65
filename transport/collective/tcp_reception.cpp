#include "transport/collective/tcp_reception.hpp"

#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>

namespace troupe {
namespace {

constexpr std::size_t kMaxVisitors = 64;             // that are listened to at the same time; others wait at the listener
constexpr std::chrono::milliseconds kPatience{2000}; // with one visitor's introduction
constexpr std::chrono::milliseconds kNotice{200};    // for a notice that has begun to come
constexpr std::chrono::milliseconds kRest{50};       // of the listener, when this process can open no more connections

} // namespace

tcp_reception::tcp_reception(const tcp_meeting& meeting, std::vector<tcp_link>& links)
    : meeting_(meeting), links_(links), listening_(links.size()), visitors_of_(links.size()) {}

void tcp_reception::run() {
  while (!complete()) {
    if (deadline_clock::now() >= meeting_.until) give_up();
    wait_for_somebody();
  }
}

bool tcp_reception::complete() const { return first_missing() == meeting_.size; }

int tcp_reception::first_missing() const {
  int rank = meeting_.rank + 1;
  while (rank < meeting_.size && has_come(static_cast<std::size_t>(rank))) ++rank;
  return rank;
}

std::string tcp_reception::missing() const {
  std::string text;
  for (int rank = meeting_.rank + 1; rank < meeting_.size; ++rank) {
    if (!has_come(static_cast<std::size_t>(rank))) text += (text.empty() ? "" : ", ") + std::to_string(rank);
  }
  return text;
}

void tcp_reception::give_up() const {
  std::string text = "rank " + missing() + " of " + std::to_string(meeting_.size) + " did not come to rank " +
                     std::to_string(meeting_.rank) + " at " + to_text(local_endpoint(meeting_.listener)) + " within " +
                     std::to_string(meeting_.patience.count()) + " ms";
  if (refused_ > 0) text += "; " + std::to_string(refused_) + " connections were refused";
  throw collective_error(collective_fault::deadline, first_missing(), text);
}

void tcp_reception::wait_for_somebody() {
  std::vector<pollfd> waiting;
  auto until = meeting_.until;
  for (const visitor& one : visitors_) {
    waiting.push_back({one.socket.number(), POLLIN, 0});
    until = std::min(until, one.until);
  }
  for (const tcp_link& link : links_) { // a rank that is between its two connections can do no more than hang up; poll() passes over -1
    waiting.push_back(link.notices ? pollfd{link.notices.number(), POLLIN, 0} : pollfd{link.data.number(), POLLRDHUP, 0});
  }
  const bool rests = deadline_clock::now() < opens_again_;
  if (rests) until = std::min(until, opens_again_);
  if (!rests && visitors_.size() < kMaxVisitors) waiting.push_back({meeting_.listener.number(), POLLIN, 0});
  if (::poll(waiting.data(), waiting.size(), milliseconds_until(until)) < 0) return;

  auto event = waiting.begin();
  for (auto one = visitors_.begin(); one != visitors_.end(); ++event) {
    const bool stays = event->revents == 0 ? deadline_clock::now() < one->until : listen_to(*one);
    if (!stays && one->have < sizeof one->said) ++refused_;
    one = stays ? std::next(one) : visitors_.erase(one);
  }
  for (std::size_t rank = 0; rank < links_.size(); ++rank, ++event) {
    if (event->revents != 0) hear(rank);
  }
  if (event != waiting.end() && event->revents != 0) open_doors();
}

void tcp_reception::open_doors() {
  visitor one;
  one.socket = accept_from(meeting_.listener, one.from);
  if (!one.socket) {
    if (errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM) opens_again_ = deadline_clock::now() + kRest;
    return;
  }
  one.until = deadline_clock::now() + kPatience;
  visitors_.push_back(std::move(one));
}

bool tcp_reception::listen_to(visitor& one) {
  auto* bytes = reinterpret_cast<std::byte*>(&one.said);
  const ssize_t got = ::recv(one.socket.number(), bytes + one.have, sizeof one.said - one.have, 0);
  if (got < 0) return errno == EAGAIN || errno == EINTR;
  if (got == 0) return false;
  one.have += static_cast<std::size_t>(got);
  if (one.have < sizeof one.said) return true;
  if (!wire::knows_token(one.said, meeting_.token)) {
    ++refused_;
  } else if (const auto objection = objection_to(one)) {
    ++refused_;
    if (one.said.lane == wire::lane::notices) wire::send_refusal(one.socket, *objection);
  } else {
    let_in(one);
  }
  return false;
}

std::optional<std::string> tcp_reception::objection_to(const visitor& one) const {
  const auto& said = one.said;
  if (said.byte_order != wire::introduction{}.byte_order) return "another byte order";
  if (said.version != wire::kVersion)
    return "version " + std::to_string(said.version) + " of the protocol, here it is " + std::to_string(wire::kVersion);
  if (said.size != meeting_.size) {
    return "a group of " + std::to_string(said.size) + " ranks, here it is one of " + std::to_string(meeting_.size);
  }
  if (said.rank <= meeting_.rank || said.rank >= meeting_.size) {
    return "rank " + std::to_string(said.rank) + " came to rank " + std::to_string(meeting_.rank) + ", which waits for ranks " +
           std::to_string(meeting_.rank + 1) + " to " + std::to_string(meeting_.size - 1);
  }
  if (said.lane > wire::lane::notices) return "an unknown kind of connection";
  const auto rank = static_cast<std::size_t>(said.rank);
  const descriptor& taken = said.lane == wire::lane::data ? links_[rank].data : links_[rank].notices;
  if (taken || (visitors_of_[rank] && *visitors_of_[rank] != said.visitor)) {
    return "rank " + std::to_string(said.rank) + " is here already, from another process";
  }
  return std::nullopt;
}

void tcp_reception::let_in(visitor& one) {
  const auto rank = static_cast<std::size_t>(one.said.rank);
  visitors_of_[rank] = one.said.visitor;
  listening_[rank] = {{one.said.host.begin(), std::find(one.said.host.begin(), one.said.host.end(), '\0')}, one.said.port};
  tcp_link& link = links_[rank];
  link.name = "rank " + std::to_string(rank) + " at " + to_text(one.from);
  (one.said.lane == wire::lane::data ? link.data : link.notices) = std::move(one.socket);
}

void tcp_reception::hear(std::size_t rank) const {
  const tcp_link& link = links_[rank];
  if (link.notices) {
    if (const auto heard = wire::read_notice(link.notices, deadline_clock::now() + kNotice)) heard->fault.raise();
  }
  throw collective_error(collective_fault::peer_lost, static_cast<int>(rank), link.name + " left while the group was forming");
}

} // namespace troupe
