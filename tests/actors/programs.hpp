// Programs for ranks: scripts in a folder of the test's own.
#pragma once

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string>

namespace troupe::test {

class programs {
 public:
  programs() { std::filesystem::create_directories(folder_); }
  ~programs() { std::filesystem::remove_all(folder_); }

  std::string path(const std::string& name) const { return folder_ + "/" + name; }
  // A program that does what `lines` of shell say; "$@" are its arguments.
  std::string write(const std::string& name, const std::string& lines) const {
    std::ofstream(path(name)) << "#!/bin/sh\n" << lines << "\n";
    chmod(path(name).c_str(), 0755);
    return path(name);
  }
  // The fake worker with more flags.
  std::string worker(const std::string& name, const std::string& flags) const {
    return write(name, std::string("exec ") + TROUPE_FAKE_WORKER + " " + flags + " \"$@\"");
  }
  // One that does what `lines` say as a rank, and says the fake worker's protocol when it is asked.
  std::string rank(const std::string& name, const std::string& lines) const {
    return write(name, "case $* in *worker-protocol) exec " TROUPE_FAKE_WORKER " \"$@\";; esac\n" + lines);
  }
  // One whose first rank is a good one with these flags, and every other does what `lines` say.
  std::string good_once(const std::string& name, const std::string& flags, const std::string& lines = "exit 5") const {
    return rank(name,
                "if mkdir " + path(name + ".mark") + " 2> /dev/null; then exec " TROUPE_FAKE_WORKER " " + flags + " \"$@\"; fi; " + lines);
  }

 private:
  std::string folder_ = testing::TempDir() + "programs_" + std::to_string(getpid());
};

} // namespace troupe::test
