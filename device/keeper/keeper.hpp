// Holds memory for processes that may end: files that a worker made (a memfd, or an exported allocation of a GPU), each under a name, and
// each complete or not there. It maps and reads none of it, needs no GPU context, and so outlives whatever its clients do to theirs.
//
// A constant region is read by any number of clients; a leased one is one client's at a time, until that ends or closes its socket.
//
// A slot holds one region at a time. Who claims another name in it (the checkpoint was replaced) makes the keeper forget the one before.
// A client that dies before it has sealed its region loses it, to the next that waits.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <list>
#include <map>
#include <string>

#include "device/keeper/socket.hpp"

namespace troupe::keeper {

struct keeper_limits {
  std::size_t regions = 256;
  std::size_t connections = 256;
  std::chrono::milliseconds first_packet{2000}; // so long may a client be silent before its first packet
  std::chrono::milliseconds wait_notice{1000};  // a client that waits hears so, so often
};

class server {
 public:
  // Listens. `log` gets one line for what an operator may want to know. Throws std::runtime_error when it cannot.
  server(address at, std::function<void(const std::string&)> log, keeper_limits limits = {});

  // Serves clients until `owner` (a pipe) is closed by its other end.
  void run(int owner);

 private:
  using clock = std::chrono::steady_clock;
  enum class stage : std::uint8_t { fresh, filling, waiting, leasing, done };
  struct connection {
    file_descriptor socket;
    pid_t pid = 0;
    stage now = stage::fresh;
    std::uint64_t slot = 0, name = 0;
    clock::time_point due{}; // fresh: of its first packet; waiting: of the next notice
  };
  struct region {
    std::uint64_t name = 0;
    std::uint64_t bytes = 0;
    memory_kind memory = memory_kind::host;
    region_use use = region_use::constant;
    const connection* filler = nullptr; // null: complete
    const connection* lessee = nullptr; // who may write a leased region now; null: nobody
    file_descriptor data, manifest;
  };

  void accept_client();
  void read_from(connection& from);
  void claim(connection& from, const message& wanted);
  void seal(connection& from, packet& made);
  void count(connection& from, std::uint64_t slot);
  void give(connection& to, region& held);
  void lease(connection& to, region& held);
  void let_fill(connection& by, region& empty);
  void answer(connection& to, message what, const region* files = nullptr);
  void refuse(connection& from, const std::string& reason);
  void forget(const connection& gone);
  void serve_waiting(std::uint64_t slot);
  void pass_time(clock::time_point now);
  void drop_ended();
  int poll_timeout(clock::time_point now) const;

  address at_;
  std::function<void(const std::string&)> log_;
  keeper_limits limits_;
  file_descriptor listening_;
  std::list<connection> connections_;
  std::map<std::uint64_t, region> regions_; // by slot
  std::uint64_t handed_out_ = 0, sealed_ = 0;
};

} // namespace troupe::keeper
