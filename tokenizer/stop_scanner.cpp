#include <algorithm>
#include <utility>

#include "tokenizer/detokenizer.hpp"

namespace troupe {

stop_scanner::stop_scanner(std::vector<std::string> stops, bool include_in_output) : include_(include_in_output) {
  for (std::string& text : stops) {
    if (!text.empty()) stops_.emplace_back(std::move(text));
  }
}

// Knuth-Morris-Pratt: where a mismatch behind i matched bytes goes on.
stop_scanner::watched::watched(std::string stop) : text(std::move(stop)), fallback(text.size() + 1, 0) {
  std::size_t length = 0;
  for (std::size_t i = 1; i < text.size(); ++i) {
    while (length > 0 && text[i] != text[length]) length = fallback[length];
    if (text[i] == text[length]) ++length;
    fallback[i + 1] = length;
  }
}

void stop_scanner::watched::step(char next) {
  while (matched > 0 && (matched == text.size() || text[matched] != next)) matched = fallback[matched];
  if (text[matched] == next) ++matched;
}

stop_match stop_scanner::push(std::string_view text, bool armed) {
  stop_match result;
  if (!armed || stops_.empty()) {
    for (watched& stop : stops_) stop.matched = 0;
    result.text = std::exchange(held_, {}).append(text);
    return result;
  }
  held_ += text;
  for (std::size_t i = held_.size() - text.size(); i < held_.size(); ++i) {
    const watched* done = nullptr;
    for (watched& stop : stops_) {
      stop.step(held_[i]);
      if (stop.matched == stop.text.size() && (done == nullptr || stop.text.size() > done->text.size())) done = &stop;
    }
    if (done == nullptr) continue;
    const std::size_t end = i + 1;
    // With the stop string included, its beginning may have gone out already.
    result.text = held_.substr(0, include_ ? end : end - std::min(end, done->text.size()));
    result.stopped = true;
    result.matched = done->text;
    held_.clear();
    for (watched& stop : stops_) stop.matched = 0;
    return result;
  }
  std::size_t keep = 0;
  if (!include_) {
    for (const watched& stop : stops_) keep = std::max(keep, stop.matched);
  }
  result.text = held_.substr(0, held_.size() - keep);
  held_.erase(0, held_.size() - keep);
  return result;
}

std::string stop_scanner::finish() {
  for (watched& stop : stops_) stop.matched = 0;
  return std::exchange(held_, {});
}

} // namespace troupe
