// A plain blocking HTTP client over POSIX sockets, so that tests say exactly which bytes are sent when. Every wait ends after 10 s.
#pragma once

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstdlib>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/json.hpp"

namespace troupe::testing {

struct response {
  int status = 0;
  std::string head;
  std::string body; // with the chunks joined
  bool complete = false;

  bool has_header(std::string_view line) const { return head.find("\r\n" + std::string(line) + "\r\n") != std::string::npos; }
  value json() const {
    auto parsed = troupe::json::parse(body);
    if (!parsed) throw std::runtime_error("not JSON: " + body);
    return std::move(*parsed);
  }
  // error.message, or "" where the body is no error.
  std::string error(const char* member = "message") const {
    const auto parsed = troupe::json::parse(body);
    const value* failure = parsed ? parsed->find("error") : nullptr;
    const value* text = failure != nullptr ? failure->find(member) : nullptr;
    return text != nullptr && text->is_string() ? text->as_string() : "";
  }
  // What stands behind "data: ", event by event.
  std::vector<std::string> events() const {
    std::vector<std::string> out;
    for (std::size_t at = 0; (at = body.find("data: ", at)) != std::string::npos;) {
      const auto end = body.find("\n\n", at);
      out.push_back(body.substr(at + 6, end - at - 6));
      at = end;
    }
    return out;
  }
};

class client {
 public:
  // `receive_buffer` in bytes, 0: the system's choice.
  explicit client(std::uint16_t port, int receive_buffer = 0) : socket_(::socket(AF_INET, SOCK_STREAM, 0)) {
    if (receive_buffer > 0) setsockopt(socket_, SOL_SOCKET, SO_RCVBUF, &receive_buffer, sizeof receive_buffer);
    const timeval limit{10, 0};
    setsockopt(socket_, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
    setsockopt(socket_, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof limit);
    sockaddr_in to{};
    to.sin_family = AF_INET;
    to.sin_port = htons(port);
    to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    connected_ = ::connect(socket_, reinterpret_cast<const sockaddr*>(&to), sizeof to) == 0;
  }
  client(client&& other) noexcept
      : socket_(std::exchange(other.socket_, -1)), connected_(other.connected_), ended_(other.ended_), input_(std::move(other.input_)) {}
  client& operator=(client&&) = delete;
  ~client() { close(); }

  bool connected() const { return connected_; }
  void close() {
    if (socket_ >= 0) ::close(std::exchange(socket_, -1));
  }
  void end_sending() { ::shutdown(socket_, SHUT_WR); }

  // False when the server has closed the connection.
  bool send(std::string_view bytes) {
    while (!bytes.empty()) {
      const auto sent = ::send(socket_, bytes.data(), bytes.size(), MSG_NOSIGNAL);
      if (sent <= 0) return false;
      bytes.remove_prefix(static_cast<std::size_t>(sent));
    }
    return true;
  }

  // Reads until `text` has come; false when the connection ended first.
  bool read_until(std::string_view text) {
    while (input_.find(text) == std::string::npos) {
      if (!read_some()) return false;
    }
    return true;
  }
  // True when the server closes the connection without another byte.
  bool is_closed() { return input_.empty() && !read_some() && ended_; }
  std::string read_all() {
    while (read_some()) {
    }
    return std::exchange(input_, "");
  }

  response read_response(bool head_only = false) {
    response out;
    while (out.status == 0 || out.status == 100) { // a 100 Continue is passed over
      if (!read_until("\r\n\r\n")) return out;
      const auto end = input_.find("\r\n\r\n") + 4;
      out.head = input_.substr(0, end - 2);
      input_.erase(0, end);
      out.status = std::atoi(out.head.c_str() + 9);
    }
    if (head_only) {
      out.complete = true;
    } else if (out.has_header("Transfer-Encoding: chunked")) {
      read_chunks(out);
    } else if (const auto at = out.head.find("Content-Length: "); at != std::string::npos) {
      const auto size = std::strtoul(out.head.c_str() + at + 16, nullptr, 10);
      while (input_.size() < size && read_some()) {
      }
      out.complete = input_.size() >= size;
      out.body = input_.substr(0, size);
      input_.erase(0, size);
    } else {
      out.body = read_all();
      out.complete = ended_;
    }
    return out;
  }

  response get(const std::string& target, const std::string& lines = "") { return ask("GET", target, "", lines); }
  response post(const std::string& target, const std::string& body, const std::string& lines = "Content-Type: application/json\r\n") {
    return ask("POST", target, body, lines);
  }
  response ask(const std::string& method, const std::string& target, const std::string& body, const std::string& lines = "") {
    send(request_text(method, target, body, lines));
    return read_response(method == "HEAD");
  }
  static std::string request_text(const std::string& method, const std::string& target, const std::string& body,
                                  const std::string& lines = "Content-Type: application/json\r\n") {
    return method + ' ' + target + " HTTP/1.1\r\nHost: here\r\n" + lines + "Content-Length: " + std::to_string(body.size()) + "\r\n\r\n" +
           body;
  }

 private:
  bool read_some() {
    char buffer[16384];
    const auto got = ::recv(socket_, buffer, sizeof buffer, 0);
    if (got > 0) input_.append(buffer, static_cast<std::size_t>(got));
    ended_ = got == 0 || (got < 0 && errno == ECONNRESET);
    return got > 0;
  }

  void read_chunks(response& out) {
    for (;;) {
      if (!read_until("\r\n")) return;
      const auto size = std::strtoul(input_.c_str(), nullptr, 16);
      const auto start = input_.find("\r\n") + 2;
      while (input_.size() < start + size + 2) {
        if (!read_some()) return;
      }
      out.body += input_.substr(start, size);
      input_.erase(0, start + size + 2);
      if (size == 0) {
        out.complete = true;
        return;
      }
    }
  }

  int socket_;
  bool connected_ = false;
  bool ended_ = false;
  std::string input_;
};

} // namespace troupe::testing
