#include "models/group_agreement.hpp"

#include <algorithm>
#include <array>
#include <string>
#include <vector>

#include "core/error.hpp"

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
constexpr std::size_t kWords = kEqual.size() + 1;

using words = std::array<std::int32_t, kWords>; // the equal ones, and the number of blocks

void agree_over(communicator& group, words& mine) {
  std::vector<std::int32_t> all(kWords * static_cast<std::size_t>(group.size()));
  group.all_gather({mine.data(), kWords, dtype::i32}, {all.data(), all.size(), dtype::i32});
  for (std::size_t i = 0; i < all.size(); ++i) {
    const std::size_t word = i % kWords;
    if (word == kEqual.size()) {
      mine[word] = std::min(mine[word], all[i]);
    } else if (all[i] != mine[word]) {
      throw load_error(std::string("the ranks of a group differ in ") + kEqual[word].name + ": " + std::to_string(mine[word]) + " and " +
                       std::to_string(all[i]));
    }
  }
}

} // namespace

executor_info agree(const executor_info& mine, const rank_context& rank) {
  words said;
  for (std::size_t i = 0; i < kEqual.size(); ++i) said[i] = mine.*kEqual[i].member;
  said.back() = mine.num_blocks;
  const auto among = [&](communicator& group) { agree_over(group, said); };
  if (rank.tensor) with_tensor(rank, among);
  if (rank.pipeline) with_pipeline(rank, among);
  executor_info agreed = mine;
  agreed.num_blocks = said.back();
  return agreed;
}

} // namespace troupe
