// What /proc says about other processes.
#pragma once

#include <dirent.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <fstream>
#include <string>
#include <vector>

namespace troupe::test {

// The state letter of /proc, or 0 when there is no such process.
inline char process_state(int pid) {
  std::ifstream stat("/proc/" + std::to_string(pid) + "/stat");
  std::string line;
  if (!std::getline(stat, line)) return 0;
  const auto name_end = line.rfind(')');
  return name_end == std::string::npos || name_end + 2 >= line.size() ? '\0' : line[name_end + 2];
}

inline bool gone(int pid) {
  const char state = process_state(pid);
  return state == 0 || state == 'X';
}
inline bool gone_or_zombie(int pid) { return gone(pid) || process_state(pid) == 'Z'; }

// This process's children, zombies included.
inline std::vector<int> children() {
  std::vector<int> found;
  DIR* proc = opendir("/proc");
  while (const dirent* entry = readdir(proc)) {
    if (std::isdigit(static_cast<unsigned char>(entry->d_name[0])) == 0) continue;
    std::ifstream stat(std::string("/proc/") + entry->d_name + "/stat");
    std::string line;
    if (!std::getline(stat, line)) continue;
    const std::size_t at = line.rfind(')');
    if (at != std::string::npos && std::stoi(line.substr(at + 4)) == getpid()) found.push_back(std::stoi(entry->d_name));
  }
  closedir(proc);
  return found;
}
inline int children_of_this_process() { return static_cast<int>(children().size()); }

// Of these, those whose command line holds both words.
inline std::vector<int> pids_with(const std::string& word, const std::string& other) {
  const auto unlike = [&](int pid) {
    std::ifstream words("/proc/" + std::to_string(pid) + "/cmdline");
    bool first = false, second = false;
    for (std::string text; std::getline(words, text, '\0');) {
      first = first || text == word;
      second = second || text == other;
    }
    return !first || !second;
  };
  auto found = children();
  found.erase(std::remove_if(found.begin(), found.end(), unlike), found.end());
  return found;
}
inline int children_with(const std::string& word, const std::string& other) { return static_cast<int>(pids_with(word, other).size()); }

} // namespace troupe::test
