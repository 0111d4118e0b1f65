// Turns the matches of a stage into pieces, by one of five behaviours.
#pragma once

#include <string_view>
#include <vector>

#include "tokenizer/pre_tokenizer.hpp"

namespace troupe {

// Takes matches in order; text between them counts as non-matches (the other way round when inverted). Empty pieces are dropped.
class splitter {
 public:
  splitter(const piece& in, std::vector<piece>& out, split_behavior behavior, bool invert)
      : in_(in), out_(out), behavior_(behavior), invert_(invert) {}

  void match(std::size_t begin, std::size_t end) {
    if (begin > done_) span(done_, begin, invert_);
    span(begin, end, !invert_);
    done_ = end;
  }

  void finish() {
    if (done_ < in_.text.size()) span(done_, in_.text.size(), invert_);
    if (behavior_ == split_behavior::merged_with_next) flush_waiting();
  }

 private:
  void span(std::size_t begin, std::size_t end, bool matched) {
    switch (behavior_) {
      case split_behavior::isolated:
        emit(begin, end);
        break;
      case split_behavior::removed:
        if (!matched) emit(begin, end);
        break;
      case split_behavior::contiguous:
        if (any_ && matched == last_matched_) {
          extend(end);
        } else {
          emit(begin, end);
        }
        break;
      case split_behavior::merged_with_previous: // a match joins what is before it, unless that is a match too
        if (matched && any_ && !last_matched_) {
          extend(end);
        } else {
          emit(begin, end);
        }
        break;
      case split_behavior::merged_with_next: // the last of a run of matches joins what is behind it
        if (matched || !waiting_) {
          flush_waiting();
          waiting_ = matched;
          wait_begin_ = begin;
          wait_end_ = end;
          if (!matched) emit(begin, end);
        } else {
          emit(wait_begin_, end);
          waiting_ = false;
        }
        break;
    }
    any_ = true;
    last_matched_ = matched;
  }

  void flush_waiting() {
    if (waiting_) emit(wait_begin_, wait_end_);
    waiting_ = false;
  }

  void emit(std::size_t begin, std::size_t end) {
    begin_ = begin;
    if (begin < end) {
      out_.push_back({in_.text.substr(begin, end - begin), in_.first && begin == 0});
      open_ = true;
    } else {
      open_ = false;
    }
  }

  // The last span grows to `end`.
  void extend(std::size_t end) {
    if (open_) {
      out_.back().text = in_.text.substr(begin_, end - begin_);
    } else {
      emit(begin_, end);
    }
  }

  const piece& in_;
  std::vector<piece>& out_;
  split_behavior behavior_;
  bool invert_;
  std::size_t done_ = 0; // matches and gaps up to here were seen
  bool any_ = false, last_matched_ = false;
  std::size_t begin_ = 0; // of the last span
  bool open_ = false;     // the last span is out_.back()
  bool waiting_ = false;  // merged_with_next: a match not yet emitted
  std::size_t wait_begin_ = 0, wait_end_ = 0;
};

} // namespace troupe
