// Which replica gets a request: the one that holds the longest part of its prompt, within bounds of load. Pure.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <list>
#include <span>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "core/ids.hpp"
#include "kvcache/block_hash.hpp"

namespace troupe {

// A prefix is worth a queue of up to twice the shortest one: `load` and `least` count sequences that wait or run.
constexpr bool worth_waiting(std::int64_t load, std::int64_t least) { return load <= 2 * least + 1; }

struct replica_load {
  bool up = true;
  std::int64_t sequences = 0; // that wait or run
};

struct router_config {
  std::int32_t replicas = 1;
  std::int32_t block_size = 16;            // tokens
  std::int32_t num_blocks = 0;             // of a replica's pool: so many blocks are remembered of what it was given
  std::array<std::uint64_t, 2> hash_key{}; // random, so that clients cannot make hashes collide
};

// It remembers the prompts that it sent to each replica, in whole blocks, as long as the replica may still have them: it asks nobody. What
// a replica evicted earlier, or found by its outputs, costs or saves a recompute and nothing else.
class replica_router {
 public:
  explicit replica_router(const router_config& config);

  // Among the replicas that are up (all of them when none is): the longest remembered prefix whose replica is worth waiting for; of equal
  // ones the least loaded; of equally loaded ones each in turn. The prompt is remembered as that replica's. `loads`: one per replica.
  std::size_t choose(std::span<const token_id> prompt, std::string_view salt, std::span<const replica_load> loads);
  // Its cache is gone.
  void forget(std::size_t replica);

 private:
  // The blocks given to one replica; the one used longest ago goes first.
  class memory {
   public:
    explicit memory(std::size_t most) : most_(most) {}
    bool holds(std::uint64_t block) const { return at_.contains(block); }
    void use(std::uint64_t block);
    void clear();

   private:
    std::size_t most_;
    std::list<std::uint64_t> by_use_; // latest first
    std::unordered_map<std::uint64_t, std::list<std::uint64_t>::iterator> at_;
  };

  std::vector<std::uint64_t> blocks_of(std::span<const token_id> prompt, std::string_view salt) const;
  std::size_t pick(const std::vector<std::uint64_t>& blocks, std::span<const replica_load> loads);

  std::size_t block_size_;
  block_hash hash_;
  std::vector<memory> memories_; // by replica
  std::size_t next_ = 0;         // whose turn it is among equals
};

} // namespace troupe
