#include "models/group_agreement.hpp"

#include <algorithm>
#include <array>
#include <string>
#include <utility>
#include <vector>

#include "core/error.hpp"
#include "device/cpu/host_limits.hpp"

namespace troupe {
namespace {

struct named_member {
  const char* name;
  std::int32_t executor_info::*member;
};

constexpr std::array<named_member, 7> kEqual = {{{"block_size", &executor_info::block_size},
                                                 {"max_num_seqs", &executor_info::max_num_seqs},
                                                 {"max_batched_tokens", &executor_info::max_batched_tokens},
                                                 {"max_model_len", &executor_info::max_model_len},
                                                 {"vocab_size", &executor_info::vocab_size},
                                                 {"max_verify_tokens", &executor_info::max_verify_tokens},
                                                 {"max_proposals", &executor_info::max_proposals}}};
constexpr std::size_t kBlocks = kEqual.size(), kBytes = kBlocks + 1, kMachine = kBlocks + 2, kWords = kBlocks + 3;

using words = std::array<std::int64_t, kWords>; // what one rank says: the equal ones, blocks, bytes, machine

void gather(communicator& group, std::vector<words>& said) {
  std::vector<words> all(said.size() * static_cast<std::size_t>(group.size()));
  group.all_gather({said.data(), said.size() * kWords, dtype::i64}, {all.data(), all.size() * kWords, dtype::i64});
  said = std::move(all);
}

void check_equal(const words& mine, const words& other) {
  for (std::size_t i = 0; i < kEqual.size(); ++i) {
    if (mine[i] == other[i]) continue;
    throw load_error(std::string("the ranks of a group differ in ") + kEqual[i].name + ": " + std::to_string(mine[i]) + " and " +
                     std::to_string(other[i]));
  }
}

void check_memory(const words& mine, const std::vector<words>& all, std::uint64_t available) {
  std::uint64_t bytes = 0, ranks = 0;
  for (const words& one : all) {
    if (one[kMachine] != mine[kMachine]) continue;
    bytes += static_cast<std::uint64_t>(one[kBytes]);
    ++ranks;
  }
  if (bytes <= available) return;
  throw load_error("not enough memory: " + std::to_string(ranks) + " ranks on this machine take " + std::to_string(bytes) + " bytes, but " +
                   std::to_string(available) + " are available; a smaller KV cache of each may fit (--kv-cache-memory)");
}

} // namespace

executor_info agree(const executor_info& mine, const memory_claim& memory, const rank_context& rank) {
  words said;
  for (std::size_t i = 0; i < kEqual.size(); ++i) said[i] = mine.*kEqual[i].member;
  said[kBlocks] = mine.num_blocks;
  said[kBytes] = static_cast<std::int64_t>(memory.bytes);
  said[kMachine] = static_cast<std::int64_t>(cpu::machine_number());
  std::vector<words> all{said};
  if (rank.tensor) with_tensor(rank, [&](communicator& peers) { gather(peers, all); });
  if (rank.pipeline) with_pipeline(rank, [&](communicator& stages) { gather(stages, all); });
  executor_info agreed = mine;
  for (const words& one : all) {
    check_equal(said, one);
    agreed.num_blocks = std::min(agreed.num_blocks, static_cast<std::int32_t>(one[kBlocks]));
  }
  if (memory.available) check_memory(said, all, *memory.available);
  return agreed;
}

} // namespace troupe
