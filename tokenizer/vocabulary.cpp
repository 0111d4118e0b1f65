#include "tokenizer/vocabulary.hpp"

#include <bit>
#include <functional>

namespace troupe {

text_index::text_index(std::size_t expected) : slots_(std::bit_ceil(expected * 2 + 16)) {}

std::uint32_t text_index::hash_of(std::string_view text) {
  const std::uint64_t wide = std::hash<std::string_view>{}(text);
  const auto narrow = static_cast<std::uint32_t>(wide ^ wide >> 32);
  return narrow == 0 ? 1 : narrow;
}

void text_index::insert(std::string_view text, token_id id) {
  if ((used_ + 1) * 2 > slots_.size()) grow();
  const std::uint32_t hash = hash_of(text);
  const std::size_t mask = slots_.size() - 1;
  for (std::size_t at = hash & mask;; at = (at + 1) & mask) {
    if (slots_[at].hash == 0) {
      slots_[at] = {text, hash, id};
      ++used_;
      return;
    }
    if (slots_[at].hash == hash && slots_[at].text == text) return;
  }
}

std::optional<token_id> text_index::find(std::string_view text) const {
  const std::uint32_t hash = hash_of(text);
  const std::size_t mask = slots_.size() - 1;
  for (std::size_t at = hash & mask; slots_[at].hash != 0; at = (at + 1) & mask) {
    if (slots_[at].hash == hash && slots_[at].text == text) return slots_[at].id;
  }
  return std::nullopt;
}

void text_index::grow() {
  std::vector<slot> old(slots_.size() * 2);
  old.swap(slots_);
  const std::size_t mask = slots_.size() - 1;
  for (const slot& item : old) {
    if (item.hash == 0) continue;
    std::size_t at = item.hash & mask;
    while (slots_[at].hash != 0) at = (at + 1) & mask;
    slots_[at] = item;
  }
}

} // namespace troupe
