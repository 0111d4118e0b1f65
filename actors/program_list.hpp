// The programs that a machine's ranks may run, by number: the first words of their command lines. Thread-safe.
#pragma once

#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "actors/program_messages.hpp"

namespace troupe::actors {

class program_list {
 public:
  explicit program_list(std::string first) : commands_{std::move(first)} {}

  program_number add(std::string command) {
    const std::lock_guard lock(mutex_);
    commands_.push_back(std::move(command));
    return static_cast<program_number>(commands_.size() - 1);
  }
  // Throws std::out_of_range.
  std::string at(program_number number) const {
    const std::lock_guard lock(mutex_);
    return commands_.at(number);
  }

 private:
  mutable std::mutex mutex_;
  std::vector<std::string> commands_;
};

} // namespace troupe::actors
