// Prompt lookup (Saxena 2023, "Prompt Lookup Decoding"): where the last few tokens stood before, what followed them may follow again.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <vector>

#include "scheduler/token_view.hpp"

namespace troupe {

// The n-grams of one sequence, for two lengths, and what followed each where it stood last. A table of fixed size per length, in which a
// newer n-gram takes the place of any older one with the same hash: nothing is searched, rehashed or freed while the sequence grows. An
// n-gram that was overwritten is not found; one that is found was compared token by token.
class ngram_index {
 public:
  // Takes in what `history` has grown by since the last call, at most `most` tokens of it; `total` is what it may grow to in the end.
  void extend(const token_view& history, std::int32_t most, std::int32_t total);
  // The end of `history` stood somewhere before (as of the last extend, which must have reached the end).
  bool matches() const { return match_.has_value(); }
  bool matches_long() const { return match_ && match_->length == kLengths.front(); }
  // Appends the `count` tokens that followed there; where that runs into the end of `history`, it goes on with itself. Nothing without a
  // match.
  void propose(const token_view& history, std::int32_t count, std::vector<token_id>& drafts) const;

 private:
  static constexpr std::array<std::int32_t, 2> kLengths{4, 2}; // the longer match is the better one
  static constexpr std::size_t kMostEntries = std::size_t{1} << 16;

  std::size_t place(const token_view& history, std::int32_t end, std::int32_t length) const;
  struct match {
    std::int32_t length = 0;
    std::int32_t follower = 0; // the position behind the earlier occurrence
  };

  std::optional<match> find(const token_view& history, std::int32_t length, const std::vector<std::int32_t>& followers) const;

  std::array<std::vector<std::int32_t>, kLengths.size()> followers_; // by hash: the position behind the n-gram; 0: none
  std::int32_t read_ = 0;                                            // tokens taken in
  std::optional<match> match_;
};

} // namespace troupe
