// Token texts and the way back: an open-addressing hash table over them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/ids.hpp"

namespace troupe {

// Finds ids by text. Does not own the texts; they must not move while this lives.
class text_index {
 public:
  explicit text_index(std::size_t expected);
  // A text that is there already keeps its id.
  void insert(std::string_view text, token_id id);
  std::optional<token_id> find(std::string_view text) const;

 private:
  struct slot {
    std::string_view text;
    std::uint32_t hash = 0; // never 0 in a taken slot
    token_id id = 0;
  };
  static std::uint32_t hash_of(std::string_view text);
  void grow();

  std::vector<slot> slots_; // power of two, at most half full
  std::size_t used_ = 0;
};

} // namespace troupe
