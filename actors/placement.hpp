// Which slots the ranks of a group get: tensor parallel ranks on one machine, stages across machines, replicas anywhere. Pure.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

namespace troupe::actors {

using node_number = std::uint64_t;
inline constexpr node_number this_machine = 0; // of the serving process

// Where one rank runs: one of the ranks that a machine offers room for.
struct place {
  node_number node = this_machine;
  std::int32_t slot = 0;

  friend bool operator==(const place&, const place&) = default;
};

struct free_slots {
  node_number node = this_machine;
  std::vector<std::int32_t> slots;
};

struct placement {
  std::vector<place> ranks;  // by rank: stage * tp + tensor rank
  bool stages_split = false; // some stage's ranks are on several machines, since no machine had room for it
};

// A group goes whole to the machine that it fills best; else its stages, in order, to the machines that have room for most of them; and
// where no machine has room for a stage, its ranks are shared out. None when there are too few slots in all. `free` may be in any order;
// equal input gives equal output.
std::optional<placement> place_group(std::vector<free_slots> free, std::int32_t tp, std::int32_t stages);

} // namespace troupe::actors
