// Groups of ranks on threads, for tests: models of any shape cut into any group, and their logits.
#pragma once

#include <algorithm>
#include <chrono>
#include <cmath>
#include <numeric>
#include <ostream>
#include <string>
#include <thread>
#include <vector>

#include "models/cpu_model.hpp"
#include "models/group_executor.hpp"
#include "tests/models/executor_testing.hpp"
#include "tests/transport/collective/tcp_threads.hpp"

namespace troupe::test {

struct group_shape {
  int tp_size = 1;
  int stages = 1;

  std::string name() const { return "tp" + std::to_string(tp_size) + "_pp" + std::to_string(stages); }
  friend std::ostream& operator<<(std::ostream& out, const group_shape& shape) { return out << shape.name(); }
};

inline constexpr std::chrono::seconds group_deadline{20};

// Logits [sequence.size()][vocab] of one sequence that is computed in chunks of `chunk` rows. f32 KV cache.
inline std::vector<float> group_logits(const model_weights& whole, group_shape shape, const tokens& sequence, std::size_t chunk = 64) {
  constexpr std::int32_t block_size = 8, head_rows = 8;
  const auto ranks = make_local_ranks(shape.tp_size, shape.stages, group_deadline);
  std::vector<float> logits;
  const auto run = [&](const rank_context& rank) {
    const auto blocks = static_cast<std::int32_t>(sequence.size()) / block_size + 1;
    cpu_model model(std::make_shared<const model_weights>(shard_weights(whole, rank)),
                    {1, static_cast<std::int32_t>(chunk), head_rows, block_size, blocks, dtype::f32}, rank);
    model.kv().fill(0xff);
    std::vector<block_id> table(static_cast<std::size_t>(blocks));
    std::iota(table.rbegin(), table.rend(), 0);
    for (std::size_t at = 0; at < sequence.size(); at += chunk) {
      const tokens part = part_of(sequence, at, std::min(sequence.size(), at + chunk));
      const auto rows = static_cast<std::int32_t>(part.size());
      std::vector<std::int32_t> positions(part.size());
      std::iota(positions.begin(), positions.end(), static_cast<std::int32_t>(at));
      const attention_span span{0, rows, static_cast<std::int32_t>(at), table.data()};
      model.forward({part, positions, {&span, 1}});
      for (std::int32_t first = 0; rank.last_stage() && first < rows; first += head_rows) {
        std::vector<std::int32_t> of(static_cast<std::size_t>(std::min(head_rows, rows - first)));
        std::iota(of.begin(), of.end(), first);
        const float* const mine = model.logits(of);
        for (std::size_t row = 0; rank.leader() && row < of.size(); ++row) {
          const float* const from = mine + static_cast<std::int64_t>(row) * model.logits_stride();
          logits.insert(logits.end(), from, from + whole.config.vocab_size);
        }
      }
    }
  };
  std::vector<std::jthread> threads;
  for (const rank_context& rank : ranks) threads.emplace_back([&run, &rank] { run(rank); });
  threads.clear();
  return logits;
}

// Nothing where there is one rank.
inline std::vector<std::shared_ptr<communicator>> join_by_tcp(int size) {
  std::vector<std::shared_ptr<communicator>> ends(static_cast<std::size_t>(size));
  if (size > 1) std::ranges::move(make_tcp_group(size, group_deadline), ends.begin());
  return ends;
}

inline std::vector<rank_context> make_tcp_ranks(group_shape shape) {
  std::vector<rank_context> ranks;
  for (int stage = 0; stage < shape.stages; ++stage) {
    const auto peers = join_by_tcp(shape.tp_size);
    for (int tp_rank = 0; tp_rank < shape.tp_size; ++tp_rank) {
      ranks.push_back({tp_rank, shape.tp_size, stage, shape.stages, peers[static_cast<std::size_t>(tp_rank)], nullptr});
    }
  }
  for (int tp_rank = 0; tp_rank < shape.tp_size; ++tp_rank) {
    const auto column = join_by_tcp(shape.stages);
    for (int stage = 0; stage < shape.stages; ++stage) {
      ranks[static_cast<std::size_t>(stage * shape.tp_size + tp_rank)].pipeline = column[static_cast<std::size_t>(stage)];
    }
  }
  return ranks;
}

// The largest difference, as a share of the largest number.
inline double worst_difference(const std::vector<float>& a, const std::vector<float>& b) {
  if (a.size() != b.size()) return std::numeric_limits<double>::infinity();
  double worst = 0, scale = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    worst = std::max(worst, static_cast<double>(std::abs(a[i] - b[i])));
    scale = std::max(scale, static_cast<double>(std::abs(b[i])));
  }
  return scale == 0 ? worst : worst / scale;
}

inline model_config small_config() {
  model_config config;
  config.family = "llama";
  config.vocab_size = 203; // odd
  config.hidden_size = 48;
  config.intermediate_size = 80;
  config.num_layers = 4;
  config.num_heads = 4;
  config.num_kv_heads = 2;
  config.head_dim = 12;
  config.rope.rotary_dim = 12;
  config.max_position = 512;
  return config;
}

inline std::vector<float> part_of_row(const std::vector<float>& row, std::size_t first, std::size_t count) {
  const auto begin = row.begin() + static_cast<std::ptrdiff_t>(first);
  return {begin, begin + static_cast<std::ptrdiff_t>(count)};
}

inline tokens random_tokens(std::size_t count, std::int32_t vocab, std::uint32_t seed) {
  std::mt19937 random(seed);
  tokens drawn(count);
  for (token_id& token : drawn) token = std::uniform_int_distribution<token_id>(0, vocab - 1)(random);
  return drawn;
}

} // namespace troupe::test
