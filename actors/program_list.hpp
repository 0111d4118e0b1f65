// The programs that a machine's ranks may run, by number: the first words of their command lines. Thread-safe.
#pragma once

#include <map>
#include <mutex>
#include <string>
#include <utility>

#include "actors/program_messages.hpp"

namespace troupe::actors {

class program_list {
 public:
  explicit program_list(std::string first) : commands_{{0, std::move(first)}} {}

  program_number add(std::string command) {
    const std::lock_guard lock(mutex_);
    commands_[++last_] = std::move(command);
    return last_;
  }
  // No rank runs it any more, nor will: its file may be closed.
  void forget(program_number number) {
    const std::lock_guard lock(mutex_);
    commands_.erase(number);
  }
  // Throws std::out_of_range.
  std::string at(program_number number) const {
    const std::lock_guard lock(mutex_);
    return commands_.at(number);
  }

 private:
  mutable std::mutex mutex_;
  std::map<program_number, std::string> commands_;
  program_number last_ = 0; // numbers are not used again
};

} // namespace troupe::actors
