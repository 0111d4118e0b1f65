#include "transport/collective/tcp_group.hpp"

#include <algorithm>
#include <cstring>
#include <random>
#include <span>
#include <stdexcept>
#include <utility>
#include <vector>

#include "transport/collective/call.hpp"
#include "transport/collective/call_times.hpp"
#include "transport/collective/network_interface.hpp"
#include "transport/collective/sum.hpp"
#include "transport/collective/tcp_exchange.hpp"
#include "transport/collective/tcp_mesh.hpp"
#include "transport/collective/tcp_wire.hpp"

namespace troupe {
namespace {

constexpr std::size_t kDirectBytes = 128 << 10; // that a rank sends: up to here all it has to every other

class tcp_communicator final : public communicator {
 public:
  tcp_communicator(int rank, std::vector<tcp_link> links, std::chrono::milliseconds deadline)
      : exchange_(rank, std::move(links), deadline) {}

  // Returns when every rank is connected with every other.
  void form(deadline_clock::time_point until) { exchange_.run({}, 0, to_all({}), from_all({}), until); }

  int rank() const override { return exchange_.rank(); }
  int size() const override { return exchange_.size(); }

  void all_reduce(collective_buffer data, collective_stream) override {
    refuse(objection_to_sum(data));
    const collective_call call{collective_op::all_reduce, data.type, data.count, 0};
    const auto own = bytes(data);
    if (size() == 1) return timed(own.size(), [&](auto) { return deadline_clock::now(); });
    const bool direct = own.size() * (ranks() - 1) <= kDirectBytes;
    timed(own.size(), [&](auto until) { return direct ? sum_directly(call, own, until) : sum_in_slices(call, own, until); });
  }

  void all_gather(collective_buffer mine, collective_buffer all, collective_stream) override {
    refuse(objection_to_gather(mine, all, size()));
    const auto own = bytes(mine);
    std::vector<std::span<std::byte>> places;
    for (std::size_t at = 0; at < ranks(); ++at) places.push_back(bytes(all).subspan(at * own.size(), own.size()));
    const auto place = places[static_cast<std::size_t>(rank())];
    if (!own.empty() && place.data() != own.data()) std::memcpy(place.data(), own.data(), own.size());
    timed(own.size(), [&](auto until) {
      return exchange_.run({collective_op::all_gather, mine.type, mine.count, 0}, 0, to_all(place), from_all(places), until);
    });
  }

  void broadcast(collective_buffer data, int root, collective_stream) override {
    refuse(objection_to_root(root, size()));
    const auto own = bytes(data);
    const collective_call call{collective_op::broadcast, data.type, data.count, root};
    timed(own.size(), [&](auto until) {
      if (rank() == root) return exchange_.run(call, 0, to_all(own), from_all({}), until);
      const tcp_exchange::outgoing here{root, {}}; // so that the root knows of a rank that called something else
      const tcp_exchange::incoming from{root, own};
      return exchange_.run(call, 0, {&here, 1}, {&from, 1}, until);
    });
  }

  void send(collective_buffer data, int peer, collective_stream) override {
    refuse(objection_to_peer(peer, rank(), size()));
    const tcp_exchange::outgoing to{peer, bytes(data)};
    timed(to.payload.size(), [&](auto until) {
      return exchange_.run({collective_op::message, data.type, data.count, rank()}, 0, {&to, 1}, {}, until);
    });
  }

  void receive(collective_buffer data, int peer, collective_stream) override {
    refuse(objection_to_peer(peer, rank(), size()));
    const tcp_exchange::incoming from{peer, bytes(data)};
    timed(from.payload.size(), [&](auto until) {
      return exchange_.run({collective_op::message, data.type, data.count, peer}, 0, {}, {&from, 1}, until);
    });
  }

  void abort(std::string_view reason) noexcept override { exchange_.end(abort_of(rank(), reason)); }
  collective_times take_times() override { return times_.take(); }

 private:
  static std::span<std::byte> bytes(const collective_buffer& buffer) { return {static_cast<std::byte*>(buffer.data), bytes_of(buffer)}; }
  std::size_t ranks() const { return static_cast<std::size_t>(size()); }

  void refuse(const std::string& objection) {
    if (!objection.empty())
      exchange_.end_and_raise({collective_fault::mismatch, rank(), "rank " + std::to_string(rank()) + ": " + objection});
  }

  // `call` gets the time by which it must be done, and returns when the last peer had come.
  template <class Call>
  void timed(std::size_t moved, Call call) {
    const auto begin = deadline_clock::now();
    const auto all_there = call(begin + exchange_.deadline());
    times_.add(moved, begin, all_there);
  }

  // `pieces`: by rank; one for all when there is just one, empty ones when there is none.
  template <class Transfer, class Piece>
  std::vector<Transfer> with_all(const std::vector<Piece>& pieces) const {
    std::vector<Transfer> out;
    for (int peer = 0; peer < size(); ++peer) {
      if (peer != rank()) out.push_back({peer, pieces.empty() ? Piece{} : pieces[pieces.size() == 1 ? 0 : static_cast<std::size_t>(peer)]});
    }
    return out;
  }
  std::vector<tcp_exchange::outgoing> to_all(std::span<const std::byte> piece) const {
    return with_all<tcp_exchange::outgoing, std::span<const std::byte>>({piece});
  }
  std::vector<tcp_exchange::incoming> from_all(const std::vector<std::span<std::byte>>& pieces) const {
    return with_all<tcp_exchange::incoming>(pieces);
  }

  // Room for `bytes` from each peer, by rank; the own piece is `own`.
  std::vector<std::span<std::byte>> pieces(std::span<std::byte> own) {
    scratch_.resize(std::max(scratch_.size(), own.size() * ranks()));
    std::vector<std::span<std::byte>> out;
    for (std::size_t at = 0; at < ranks(); ++at) out.push_back(std::span(scratch_).subspan(at * own.size(), own.size()));
    out[static_cast<std::size_t>(rank())] = own;
    return out;
  }

  static void sum_into(std::span<std::byte> own, const std::vector<std::span<std::byte>>& all, dtype type) {
    std::vector<const std::byte*> inputs;
    for (const auto& one : all) inputs.push_back(one.data());
    sum_in_rank_order(type, inputs, own.data(), own.size() / row_bytes(type, 1));
  }

  deadline_clock::time_point sum_directly(const collective_call& call, std::span<std::byte> own, deadline_clock::time_point until) {
    const auto all = pieces(own);
    const auto all_there = exchange_.run(call, 0, to_all(own), from_all(all), until);
    sum_into(own, all, call.type);
    return all_there;
  }

  // Every rank sums its slice of all, and sends the sum to all.
  deadline_clock::time_point sum_in_slices(const collective_call& call, std::span<std::byte> own, deadline_clock::time_point until) {
    std::vector<std::span<std::byte>> slices;
    for (std::size_t at = 0; at < ranks(); ++at) {
      const std::size_t begin = slice_begin(call.count, at, ranks());
      slices.push_back(own.subspan(row_bytes(call.type, begin), row_bytes(call.type, slice_begin(call.count, at + 1, ranks()) - begin)));
    }
    const auto mine = slices[static_cast<std::size_t>(rank())];
    const auto theirs = pieces(mine);
    const std::vector<std::span<const std::byte>> leaving(slices.begin(), slices.end());
    const auto all_there = exchange_.run(call, 0, with_all<tcp_exchange::outgoing>(leaving), from_all(theirs), until);
    sum_into(mine, theirs, call.type);
    exchange_.run(call, 1, to_all(mine), from_all(slices), until);
    return all_there;
  }

  tcp_exchange exchange_;
  call_times times_;
  std::vector<std::byte> scratch_;
};

std::unique_ptr<communicator> finish(const tcp_meeting& meeting, std::vector<tcp_link> links, const tcp_options& options) {
  auto made = std::make_unique<tcp_communicator>(meeting.rank, std::move(links), options.deadline);
  made->form(meeting.until);
  return made;
}

void check_size(int rank, int size) {
  if (size >= 1 && size <= kMaxTcpRanks && rank >= 0 && rank < size) return;
  throw std::invalid_argument("there is no rank " + std::to_string(rank) + " of " + std::to_string(size) + "; a group has 1 to " +
                              std::to_string(kMaxTcpRanks) + " ranks");
}

// Errors name the group.
template <class Meet>
std::unique_ptr<communicator> named(const tcp_options& options, Meet meet) {
  try {
    return meet();
  } catch (const collective_error& e) {
    throw collective_error(e.fault(), e.peer(), options.name + ": " + e.what());
  }
}

} // namespace

struct tcp_rendezvous::impl {
  explicit impl(tcp_options given)
      : options(std::move(given)),
        host(choose_interface(options.interface, options.across_nodes).address),
        listener(listen_at({host, 0}, 2 * kMaxTcpRanks)),
        address{host, local_endpoint(listener).port, {}} {
    std::random_device random;
    for (auto& byte : address.token) byte = static_cast<std::uint8_t>(random());
  }

  tcp_options options;
  std::string host;
  descriptor listener;
  tcp_address address;
};

tcp_rendezvous::tcp_rendezvous(tcp_options options) : impl_(std::make_unique<impl>(std::move(options))) {}
tcp_rendezvous::~tcp_rendezvous() = default;
const tcp_address& tcp_rendezvous::address() const { return impl_->address; }

std::unique_ptr<communicator> tcp_rendezvous::form(int size) {
  check_size(0, size);
  if (!impl_->listener) throw std::logic_error("a rendezvous forms one group");
  const tcp_options& options = impl_->options;
  const tcp_meeting meeting{0,
                            size,
                            impl_->address.token,
                            impl_->host,
                            std::move(impl_->listener),
                            options.form_deadline,
                            deadline_clock::now() + options.form_deadline};
  return named(options, [&] { return finish(meeting, meet_as_root(meeting), options); });
}

std::unique_ptr<communicator> join_tcp_group(const tcp_address& address, int rank, int size, const tcp_options& options) {
  check_size(rank, size);
  if (rank == 0) throw std::invalid_argument("rank 0 has the rendezvous; it does not join one");
  const std::string host = choose_interface(options.interface, options.across_nodes).address;
  tcp_meeting meeting{rank, size, address.token, host, {}, options.form_deadline, deadline_clock::now() + options.form_deadline};
  if (rank < size - 1) meeting.listener = listen_at({host, 0}, 2 * kMaxTcpRanks);
  return named(options, [&] { return finish(meeting, meet_at(address, meeting), options); });
}

} // namespace troupe
