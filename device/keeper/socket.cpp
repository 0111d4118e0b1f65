#include "device/keeper/socket.hpp"

#include <sys/socket.h>
#include <sys/time.h>
#include <sys/un.h>

#include <cerrno>
#include <cstddef>
#include <cstring>
#include <stdexcept>
#include <thread>

#include "core/hex.hpp"

namespace troupe::keeper {
namespace {

struct socket_name {
  sockaddr_un address{};
  socklen_t size = 0;
};

socket_name abstract(const std::string& name) {
  socket_name out;
  out.address.sun_family = AF_UNIX;
  if (name.empty() || name.size() >= sizeof out.address.sun_path) throw std::runtime_error("keeper: no socket's name: '" + name + "'");
  std::memcpy(out.address.sun_path + 1, name.data(), name.size()); // behind a zero: the abstract namespace
  out.size = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
  return out;
}

[[noreturn]] void fail(const std::string& what, int error) { throw std::runtime_error("keeper: " + what + ": " + std::strerror(error)); }

file_descriptor make_socket(int flags) {
  file_descriptor made(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | flags, 0));
  if (!made) fail("no socket", errno);
  return made;
}

void limit_silence(int socket, std::chrono::milliseconds silence) {
  const timeval limit{silence.count() / 1000, silence.count() % 1000 * 1000};
  setsockopt(socket, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
  setsockopt(socket, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof limit);
}

void take_files(msghdr& received, packet& into) {
  std::size_t taken = 0;
  for (cmsghdr* part = CMSG_FIRSTHDR(&received); part != nullptr; part = CMSG_NXTHDR(&received, part)) {
    if (part->cmsg_level != SOL_SOCKET || part->cmsg_type != SCM_RIGHTS) continue;
    const std::size_t count = (part->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    for (std::size_t i = 0; i < count; ++i) {
      int number = -1;
      std::memcpy(&number, CMSG_DATA(part) + i * sizeof number, sizeof number);
      file_descriptor file(number); // closed here when there are too many
      if (taken < into.files.size()) into.files[taken++] = std::move(file);
    }
  }
}

} // namespace

address random_address() { return {"troupe-keeper-" + random_hex(16), random_hex(16)}; }

file_descriptor listen_at(const std::string& name) {
  const socket_name at = abstract(name);
  file_descriptor made = make_socket(SOCK_NONBLOCK);
  if (::bind(made.get(), reinterpret_cast<const sockaddr*>(&at.address), at.size) != 0) fail("cannot bind to " + name, errno);
  if (::listen(made.get(), 32) != 0) fail("cannot listen at " + name, errno);
  return made;
}

file_descriptor connect_to(const std::string& name, std::chrono::milliseconds patience, std::chrono::milliseconds silence) {
  const socket_name at = abstract(name);
  const auto deadline = std::chrono::steady_clock::now() + patience;
  while (true) {
    file_descriptor made = make_socket(0);
    limit_silence(made.get(), silence);
    if (::connect(made.get(), reinterpret_cast<const sockaddr*>(&at.address), at.size) == 0) return made;
    if (errno != ECONNREFUSED && errno != EINTR) fail("cannot connect to it", errno);
    if (std::chrono::steady_clock::now() >= deadline) fail("nobody listens", errno);
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
}

bool send_packet(int socket, const message& head, int first_file, int second_file) {
  iovec data{const_cast<message*>(&head), sizeof head}; // sendmsg only reads
  msghdr out{};
  out.msg_iov = &data;
  out.msg_iovlen = 1;
  const int files[files_per_region] = {first_file, second_file};
  const std::size_t count = first_file < 0 ? 0 : second_file < 0 ? 1 : 2;
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof files)] = {};
  if (count > 0) {
    out.msg_control = control;
    out.msg_controllen = CMSG_SPACE(count * sizeof(int));
    cmsghdr* const part = CMSG_FIRSTHDR(&out);
    part->cmsg_level = SOL_SOCKET;
    part->cmsg_type = SCM_RIGHTS;
    part->cmsg_len = CMSG_LEN(count * sizeof(int));
    std::memcpy(CMSG_DATA(part), files, count * sizeof(int));
  }
  ssize_t sent = -1;
  do {
    sent = ::sendmsg(socket, &out, MSG_NOSIGNAL);
  } while (sent < 0 && errno == EINTR);
  return sent == static_cast<ssize_t>(sizeof head);
}

reception receive_packet(int socket, packet& into) {
  into = packet{};
  iovec data{&into.head, sizeof into.head};
  msghdr in{};
  in.msg_iov = &data;
  in.msg_iovlen = 1;
  alignas(cmsghdr) char control[CMSG_SPACE(files_per_region * sizeof(int))] = {};
  in.msg_control = control;
  in.msg_controllen = sizeof control;
  ssize_t got = -1;
  do {
    got = ::recvmsg(socket, &in, MSG_CMSG_CLOEXEC);
  } while (got < 0 && errno == EINTR);
  if (got <= 0) return reception::closed;
  take_files(in, into);
  const bool cut = (in.msg_flags & (MSG_TRUNC | MSG_CTRUNC)) != 0;
  const bool ours = got >= static_cast<ssize_t>(offsetof(message, kind)) && into.head.magic == protocol_magic;
  if (ours && into.head.version != protocol_version) return reception::whole; // the caller says so to the peer
  if (cut || !ours || got != static_cast<ssize_t>(sizeof into.head)) return reception::malformed;
  into.head.token[sizeof into.head.token - 1] = into.head.reason[sizeof into.head.reason - 1] = '\0';
  return reception::whole;
}

std::optional<peer> peer_of(int socket) {
  ucred credentials{};
  socklen_t size = sizeof credentials;
  if (getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &credentials, &size) != 0) return std::nullopt;
  return peer{credentials.pid, credentials.uid};
}

} // namespace troupe::keeper
