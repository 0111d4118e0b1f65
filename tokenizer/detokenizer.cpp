#include "tokenizer/detokenizer.hpp"

#include <algorithm>

#include "tokenizer/utf8.hpp"

namespace troupe {

incremental_detokenizer::incremental_detokenizer(std::shared_ptr<const tokenizer> tokens, std::span<const token_id> prompt_tail,
                                                 bool skip_special)
    : tokens_(std::move(tokens)), skip_special_(skip_special), at_start_(true) {
  for (const token_id token : prompt_tail) push(token);
  prompt_bytes_ = held_.size();
}

std::string incremental_detokenizer::push(token_id token) {
  if (skip_special_ && tokens_->is_special(token)) return {};
  std::string bytes = tokens_->token_bytes(token);
  if (bytes.empty()) return {};
  if (at_start_) bytes = tokens_->first_bytes(token);
  at_start_ = false;
  held_ += bytes;
  return take(false);
}

std::string incremental_detokenizer::finish() { return take(true); }

// Takes whole characters out of held_; the unfinished one at its end stays unless `last`.
std::string incremental_detokenizer::take(bool last) {
  std::string out;
  std::size_t at = 0;
  while (at < held_.size()) {
    const utf8::character next = utf8::read(held_, at);
    if (next.state == utf8::status::incomplete && !last) break;
    const std::size_t end = at + next.size;
    if (next.state == utf8::status::whole) {
      out.append(held_, at, next.size);
    } else if (end > prompt_bytes_) { // what is ill-formed in the prompt alone is the prompt's matter
      out += utf8::replacement;
    }
    at = end;
  }
  held_.erase(0, at);
  prompt_bytes_ -= std::min(prompt_bytes_, at);
  return out;
}

} // namespace troupe
