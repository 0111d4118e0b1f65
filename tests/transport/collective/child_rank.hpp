// A rank in a process of its own, which can be killed or frozen.
#pragma once

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <functional>

namespace troupe {

class child_rank {
 public:
  // Fork while this process has one thread.
  explicit child_rank(const std::function<void()>& life) : pid_(::fork()) {
    if (pid_ != 0) return;
    try {
      life();
      ::_exit(0);
    } catch (const std::exception&) {
      ::_exit(1);
    }
  }
  ~child_rank() {
    if (pid_ <= 0) return;
    ::kill(pid_, SIGKILL);
    ::waitpid(pid_, nullptr, 0);
  }
  child_rank(const child_rank&) = delete;
  child_rank& operator=(const child_rank&) = delete;

  void signal(int number) const { ::kill(pid_, number); }
  int exit_code() {
    int status = 0;
    ::waitpid(pid_, &status, 0);
    pid_ = 0;
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  }

 private:
  pid_t pid_;
};

} // namespace troupe
