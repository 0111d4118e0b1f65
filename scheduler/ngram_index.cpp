#include "scheduler/ngram_index.hpp"

#include <algorithm>
#include <bit>

namespace troupe {

// Of the `length` tokens before position `end`.
std::size_t ngram_index::place(const token_view& history, std::int32_t end, std::int32_t length) const {
  std::uint64_t hash = static_cast<std::uint64_t>(length);
  for (std::int32_t p = end - length; p < end; ++p) hash = (hash ^ static_cast<std::uint32_t>(history[p])) * 0x9E3779B97F4A7C15ULL;
  return static_cast<std::size_t>(hash >> 32) & (followers_[0].size() - 1);
}

std::optional<ngram_index::match> ngram_index::find(const token_view& history, std::int32_t length,
                                                    const std::vector<std::int32_t>& followers) const {
  const std::int32_t end = history.size();
  if (end < length) return std::nullopt;
  const std::int32_t follower = followers[place(history, end, length)];
  if (follower == 0) return std::nullopt;
  for (std::int32_t i = 1; i <= length; ++i) {
    if (history[follower - i] != history[end - i]) return std::nullopt;
  }
  return match{length, follower};
}

void ngram_index::extend(const token_view& history, std::int32_t most, std::int32_t total) {
  if (followers_[0].empty()) {
    const std::size_t entries = std::min(std::bit_ceil(2 * static_cast<std::size_t>(std::max(total, 1))), kMostEntries);
    for (auto& table : followers_) table.resize(entries);
  }
  const std::int32_t end = std::min(history.size(), read_ + most);
  for (; read_ < end; ++read_) { // the token at read_ follows the n-grams that end before it
    for (std::size_t i = 0; i < kLengths.size(); ++i) {
      if (read_ >= kLengths[i]) followers_[i][place(history, read_, kLengths[i])] = read_;
    }
  }
  match_.reset();
  if (read_ < history.size()) return;
  for (std::size_t i = 0; i < kLengths.size() && !match_; ++i) match_ = find(history, kLengths[i], followers_[i]);
}

void ngram_index::propose(const token_view& history, std::int32_t count, std::vector<token_id>& drafts) const {
  if (!match_) return;
  const std::size_t before = drafts.size();
  for (std::int32_t i = 0; i < count; ++i) {
    const std::int32_t p = match_->follower + i;
    drafts.push_back(p < history.size() ? history[p] : drafts[before + static_cast<std::size_t>(p - history.size())]);
  }
}

} // namespace troupe
