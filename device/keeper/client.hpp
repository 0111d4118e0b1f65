// A worker's side of the keeper: asks for a region, and gets it filled, or to be filled, or neither.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include "device/keeper/socket.hpp"

namespace troupe::keeper {

struct region_request {
  std::uint64_t slot = 0; // what a newer region takes the place of
  std::string manifest;   // text: everything that tells this region's content from another's, byte for byte
  std::uint64_t bytes = 0;
  memory_kind memory = memory_kind::host;
  region_use use = region_use::constant;
};

// The answer to a request. Nothing that a keeper does or fails to do is an exception here: without it a worker makes its own memory.
class claim {
 public:
  enum class state : std::uint8_t { alone, complete, to_fill };

  state now() const { return now_; }
  const std::string& reason() const { return reason_; } // alone: why
  // complete: the region's memory, as those before left it. Once. A leased region is this client's as long as the claim lives.
  file_descriptor take_memory() { return std::move(memory_); }
  // to_fill: gives the memory to the keeper, which holds it from here on: filled, or, of a leased region, before it is written. False,
  // with a reason(), when it will not. While the claim lives unsealed, others wait for it; when it goes, they fill the region.
  bool seal(int memory);

 private:
  friend claim ask(const address& at, const region_request& wanted);
  void begin(const address& at, const region_request& wanted);
  void take(packet& given, const region_request& wanted);
  void fail(std::string reason);

  state now_ = state::alone;
  std::string reason_ = "no keeper was asked";
  file_descriptor memory_, socket_;
  message head_; // what this client sends, but for its kind
  std::string manifest_;
};

// Waits while another client fills the region, as long as the keeper says so every few seconds; for one that is leased to another only for
// a moment, as its process should be gone.
claim ask(const address& at, const region_request& wanted);

struct keeper_counts {
  std::uint64_t slot_bytes = 0; // of memory that the complete region in the slot that was asked for takes
  std::uint64_t kept_bytes = 0; // of all complete constant regions
  std::uint64_t regions = 0;    // complete ones
  std::uint64_t handed_out = 0; // constant regions given to clients since the keeper began
  std::uint64_t sealed = 0;     // constant regions made since then
};
// None when nobody answers.
std::optional<keeper_counts> query(const address& at, std::uint64_t slot = 0);

// For those who load weights: where to keep them, and who hears of it.
struct access {
  address at;
  std::function<void(const std::string&)> log; // one line each
};

} // namespace troupe::keeper
