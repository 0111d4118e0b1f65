#include "apps/admin/admin_socket.hpp"

#include <poll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <charconv>
#include <exception>
#include <filesystem>
#include <fstream>
#include <optional>
#include <set>
#include <string_view>
#include <utility>

#include "device/keeper/socket.hpp"

namespace troupe::apps {
namespace {

constexpr std::size_t kMostText = 8192;             // of a packet
constexpr std::chrono::milliseconds kSilence{2000}; // of a client that has connected
constexpr int kLookMs = 200;                        // how soon the thread sees that it is to end
constexpr std::string_view kNote = "note ", kDone = "done ", kFailed = "failed ";

bool send_text(int socket, std::string_view kind, const std::string& text) {
  std::string packet = std::string(kind) + text;
  packet.resize(std::min(packet.size(), kMostText));
  return ::send(socket, packet.data(), packet.size(), MSG_NOSIGNAL) == static_cast<ssize_t>(packet.size());
}

std::optional<std::string> receive_text(int socket) {
  std::string text(kMostText, '\0');
  ssize_t got = -1;
  do {
    got = ::recv(socket, text.data(), text.size(), 0);
  } while (got < 0 && errno == EINTR);
  if (got <= 0) return std::nullopt;
  text.resize(static_cast<std::size_t>(got));
  return text;
}

bool has_left(int client) {
  pollfd end{client, POLLRDHUP, 0};
  return ::poll(&end, 1, 0) > 0 && (end.revents & (POLLRDHUP | POLLHUP | POLLERR)) != 0;
}

} // namespace

namespace {

constexpr std::string_view kName = "troupe-admin-";

bool is_called(const std::filesystem::path& process, std::string_view subcommand) {
  struct stat owner {};
  if (::stat(process.c_str(), &owner) != 0 || owner.st_uid != ::geteuid()) return false;
  std::ifstream words(process / "cmdline");
  std::string word;
  std::getline(words, word, '\0');
  word.clear();
  std::getline(words, word, '\0');
  return word == subcommand;
}

} // namespace

std::string admin_name(pid_t pid) { return std::string(kName) + std::to_string(pid); }

std::vector<pid_t> admin_processes(std::string_view subcommand) {
  std::set<pid_t> found; // a socket stands there once, and once more for each client
  std::ifstream sockets("/proc/net/unix");
  for (std::string line; std::getline(sockets, line);) {
    const std::size_t at = line.rfind(" @" + std::string(kName));
    if (at == std::string::npos) continue;
    const std::string number = line.substr(at + 2 + kName.size());
    pid_t pid = 0;
    const auto [end, failed] = std::from_chars(number.data(), number.data() + number.size(), pid);
    if (failed != std::errc() || end != number.data() + number.size() || pid < 1) continue;
    if (is_called("/proc/" + number, subcommand)) found.insert(pid);
  }
  return {found.begin(), found.end()};
}

admin_socket::admin_socket(const std::string& name, handler handle)
    : listening_(keeper::listen_at(name)), handle_(std::move(handle)), thread_([this](const std::stop_token& stop) { serve(stop); }) {}

void admin_socket::serve(const std::stop_token& stop) const {
  while (!stop.stop_requested()) {
    pollfd waiting{listening_.get(), POLLIN, 0};
    if (::poll(&waiting, 1, kLookMs) <= 0) continue;
    const keeper::file_descriptor client(::accept4(listening_.get(), nullptr, nullptr, SOCK_CLOEXEC));
    if (!client) {
      ::poll(nullptr, 0, kLookMs); // out of files, perhaps: it stays acceptable
      continue;
    }
    const auto peer = keeper::peer_of(client.get());
    if (peer && peer->uid == ::geteuid()) answer(client.get());
  }
}

void admin_socket::answer(int client) const {
  pollfd waiting{client, POLLIN, 0};
  if (::poll(&waiting, 1, static_cast<int>(kSilence.count())) <= 0) return;
  const auto command = receive_text(client);
  if (!command || has_left(client)) return; // it waited for another command's end, and gave up
  outcome how;
  try {
    how = handle_(*command, [client](const std::string& line) { send_text(client, kNote, line); });
  } catch (const std::exception& e) {
    how = {false, e.what()};
  }
  send_text(client, how.done ? kDone : kFailed, how.text);
}

admin_socket::outcome ask_server(pid_t pid, const std::string& command, const admin_socket::tell_fn& tell) {
  const std::string who = "process " + std::to_string(pid);
  keeper::file_descriptor socket;
  try {
    socket = keeper::connect_to(admin_name(pid), std::chrono::milliseconds(0), std::chrono::milliseconds(0));
  } catch (const std::exception&) {
    return {false, who + " is no troupe server or node that can be reached from here"};
  }
  const auto peer = keeper::peer_of(socket.get());
  if (!peer || peer->uid != ::geteuid() || peer->pid != pid) return {false, who + " is not the one that listens under its name"};
  if (command.size() > kMostText || !send_text(socket.get(), "", command)) return {false, who + " takes no command"};
  while (const auto text = receive_text(socket.get())) {
    if (text->starts_with(kDone)) return {true, text->substr(kDone.size())};
    if (text->starts_with(kFailed)) return {false, text->substr(kFailed.size())};
    if (text->starts_with(kNote)) tell(text->substr(kNote.size()));
  }
  return {false, who + " ended, or does not speak this program's language"};
}

} // namespace troupe::apps
