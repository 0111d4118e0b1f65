// A loopback HTTP server that answers each request with what a script says, over plain sockets.
#pragma once

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <mutex>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

namespace troupe::bench::testing {

struct scripted_answer {
  std::string bytes;                  // the whole answer as it goes over the wire; empty: none
  bool close = false;                 // afterwards
  std::chrono::milliseconds delay{0}; // before it
};

class script_server {
 public:
  using script = std::function<scripted_answer(int number, const std::string& request)>; // number: 0, 1 .. in order of arrival

  explicit script_server(script answer) : answer_(std::move(answer)), listener_(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof address;
    if (bind(listener_, reinterpret_cast<sockaddr*>(&address), size) != 0 || listen(listener_, 64) != 0 ||
        getsockname(listener_, reinterpret_cast<sockaddr*>(&address), &size) != 0) {
      throw std::runtime_error("cannot listen");
    }
    port_ = ntohs(address.sin_port);
    acceptor_ = std::thread([this] { accept_all(); });
  }

  ~script_server() {
    shutdown(listener_, SHUT_RDWR);
    acceptor_.join();
    {
      const std::lock_guard lock(guard_);
      for (const int fd : open_) shutdown(fd, SHUT_RDWR);
    }
    for (auto& each : workers_) each.join();
    for (const int fd : open_) ::close(fd);
    ::close(listener_);
  }

  std::uint16_t port() const { return port_; }
  int connections() const { return connections_; }
  int requests() const { return requests_; }
  int most_at_once() const { return most_; }

 private:
  void accept_all() {
    for (int fd = 0; (fd = accept(listener_, nullptr, nullptr)) >= 0;) {
      ++connections_;
      const std::lock_guard lock(guard_);
      open_.push_back(fd);
      workers_.emplace_back([this, fd] { serve(fd); });
    }
  }

  void serve(int fd) {
    std::string pending, request;
    while (read_request(fd, pending, request)) {
      for (int now = ++running_, most = most_; now > most && !most_.compare_exchange_weak(most, now);) {
      }
      const auto answer = answer_(requests_++, request);
      std::this_thread::sleep_for(answer.delay);
      --running_;
      if (send(fd, answer.bytes.data(), answer.bytes.size(), MSG_NOSIGNAL) < 0 || answer.close) break;
    }
    shutdown(fd, SHUT_RDWR);
  }

  static bool read_request(int fd, std::string& pending, std::string& request) {
    for (;;) {
      const auto header_end = pending.find("\r\n\r\n");
      if (header_end != std::string::npos) {
        const auto length_at = pending.find("Content-Length: ");
        const std::size_t body = length_at < header_end ? std::stoul(pending.substr(length_at + 16)) : 0;
        const auto whole = header_end + 4 + body;
        if (pending.size() >= whole) {
          request = pending.substr(0, whole);
          pending.erase(0, whole);
          return true;
        }
      }
      char buffer[4096];
      const auto got = recv(fd, buffer, sizeof buffer, 0);
      if (got <= 0) return false;
      pending.append(buffer, static_cast<std::size_t>(got));
    }
  }

  script answer_;
  int listener_;
  std::uint16_t port_ = 0;
  std::mutex guard_;
  std::vector<int> open_;
  std::vector<std::thread> workers_;
  std::thread acceptor_;
  std::atomic<int> connections_{0}, requests_{0}, running_{0}, most_{0};
};

} // namespace troupe::bench::testing
