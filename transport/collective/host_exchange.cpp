#include "transport/collective/host_exchange.hpp"

#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>
#include <optional>
#include <stdexcept>

#include "device/keeper/socket.hpp"

namespace troupe {
namespace {

using clock = std::chrono::steady_clock;

template <std::size_t Bytes>
using words_of = std::array<std::int32_t, Bytes / sizeof(std::int32_t)>;

// Each rank's text of less than `Bytes` letters.
template <std::size_t Bytes>
std::vector<std::string> gather_texts(communicator& host, const std::string& mine) {
  words_of<Bytes> words{};
  std::memcpy(words.data(), mine.data(), std::min(mine.size(), Bytes - 1));
  std::vector<words_of<Bytes>> all(static_cast<std::size_t>(host.size()));
  host.all_gather({words.data(), words.size(), dtype::i32}, {all.data(), all.size() * words.size(), dtype::i32});
  std::vector<std::string> texts;
  for (const auto& one : all) texts.emplace_back(reinterpret_cast<const char*>(one.data()));
  return texts;
}

// Waits for a connection; throws when the time is over.
keeper::file_descriptor accept_one(int door, clock::time_point deadline) {
  while (true) {
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(deadline - clock::now());
    if (left.count() <= 0) throw std::runtime_error("a peer's file did not come in time");
    pollfd waiting{door, POLLIN, 0};
    if (::poll(&waiting, 1, static_cast<int>(left.count())) <= 0) continue;
    keeper::file_descriptor made(::accept4(door, nullptr, nullptr, SOCK_CLOEXEC));
    if (made) return made;
  }
}

struct given_file {
  std::size_t rank;
  keeper::file_descriptor file;
};

// None: whoever came is no rank of this group.
std::optional<given_file> take_file(int socket, const std::string& token, std::size_t ranks) {
  const auto peer = keeper::peer_of(socket);
  keeper::packet got;
  if (!peer || peer->uid != geteuid() || keeper::receive_packet(socket, got) != keeper::reception::whole) return std::nullopt;
  if (got.head.token != token || got.head.name >= ranks || !got.files[0]) return std::nullopt;
  return given_file{static_cast<std::size_t>(got.head.name), std::move(got.files[0])};
}

} // namespace

std::string first_objection(communicator& host, const std::string& mine) {
  const auto all = gather_texts<240>(host, mine);
  for (std::size_t rank = 0; rank < all.size(); ++rank) {
    if (!all[rank].empty()) return (all.size() > 1 ? "rank " + std::to_string(rank) + ": " : "") + all[rank];
  }
  return {};
}

std::vector<keeper::file_descriptor> exchange_files(communicator& host, const keeper::file_descriptor& mine,
                                                    std::chrono::milliseconds patience) {
  const auto deadline = clock::now() + patience;
  keeper::address here = keeper::random_address();
  keeper::file_descriptor door;
  std::string failure;
  try {
    door = keeper::listen_at(here.name);
  } catch (const std::runtime_error& e) { // told to the others by a name that nobody can connect to
    failure = e.what();
    here.name.clear();
  }
  const auto names = gather_texts<120>(host, here.name), tokens = gather_texts<40>(host, here.token);
  if (!failure.empty()) throw std::runtime_error(failure);
  const auto self = static_cast<std::size_t>(host.rank());
  std::vector<keeper::file_descriptor> sent; // open until everybody has taken what is his
  for (std::size_t rank = 0; rank < names.size(); ++rank) {
    if (rank == self) continue;
    sent.push_back(keeper::connect_to(names[rank], patience, patience));
    keeper::message head;
    head.kind = keeper::message_kind::complete;
    head.memory = keeper::memory_kind::cuda;
    head.name = self;
    std::memcpy(head.token, tokens[rank].data(), std::min(tokens[rank].size(), sizeof head.token - 1));
    if (!keeper::send_packet(sent.back().get(), head, mine.get())) throw std::runtime_error("a peer does not take this rank's file");
  }
  std::vector<keeper::file_descriptor> files(names.size());
  for (std::size_t missing = names.size() - 1; missing > 0;) {
    const keeper::file_descriptor caller = accept_one(door.get(), deadline);
    const timeval limit{1, 0}; // whoever connects and says nothing
    setsockopt(caller.get(), SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
    auto given = take_file(caller.get(), here.token, files.size());
    if (!given || given->rank == self || files[given->rank]) continue;
    files[given->rank] = std::move(given->file);
    --missing;
  }
  return files;
}

} // namespace troupe
