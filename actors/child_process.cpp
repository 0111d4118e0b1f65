#include "actors/child_process.hpp"

#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <stdexcept>
#include <utility>

extern char** environ;

namespace troupe::actors {

namespace {

void check(int error_number, const std::string& what) {
  if (error_number != 0) throw std::runtime_error("device process: " + what + ": " + std::strerror(error_number));
}

// posix_spawn's two option objects; both must be destroyed after use.
struct spawn_setup {
  posix_spawn_file_actions_t files;
  posix_spawnattr_t attributes;

  spawn_setup(int standard_input, std::optional<int> standard_output) {
    posix_spawn_file_actions_init(&files);
    posix_spawnattr_init(&attributes);
    check(posix_spawn_file_actions_adddup2(&files, standard_input, STDIN_FILENO), "redirecting its standard input");
    if (standard_output) check(posix_spawn_file_actions_adddup2(&files, *standard_output, STDOUT_FILENO), "redirecting its output");
    check(posix_spawn_file_actions_addclosefrom_np(&files, STDERR_FILENO + 1), "closing inherited files");
    sigset_t none;
    sigset_t all;
    sigemptyset(&none);
    sigfillset(&all);
    posix_spawnattr_setsigmask(&attributes, &none);
    posix_spawnattr_setsigdefault(&attributes, &all);
    posix_spawnattr_setpgroup(&attributes, 0);
    posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF | POSIX_SPAWN_SETPGROUP);
  }
  ~spawn_setup() {
    posix_spawn_file_actions_destroy(&files);
    posix_spawnattr_destroy(&attributes);
  }
  spawn_setup(const spawn_setup&) = delete;
  spawn_setup& operator=(const spawn_setup&) = delete;
};

pid_t spawn(const std::vector<std::string>& command, int standard_input, std::optional<int> standard_output) {
  std::vector<char*> arguments;
  for (const std::string& a : command) arguments.push_back(const_cast<char*>(a.c_str())); // posix_spawn does not write to them
  arguments.push_back(nullptr);
  const spawn_setup setup(standard_input, standard_output);
  pid_t pid = -1;
  check(posix_spawnp(&pid, arguments.front(), &setup.files, &setup.attributes, arguments.data(), environ),
        "starting '" + command.front() + "'");
  return pid;
}

} // namespace

child_process::child_process(const std::vector<std::string>& command, const std::string& first_line, std::function<void(int)> on_change,
                             std::optional<int> standard_output) {
  if (command.empty()) throw std::runtime_error("device process: no command");
  int ends[2] = {-1, -1};
  check(pipe2(ends, O_CLOEXEC) == 0 ? 0 : errno, "making a pipe");
  keep_alive_ = ends[1];
  try {
    const std::string line = first_line + "\n"; // both ends are open and the pipe is empty: this neither blocks nor breaks
    if (write(keep_alive_, line.data(), line.size()) != static_cast<ssize_t>(line.size())) check(errno, "writing to a pipe");
    pid_ = spawn(command, ends[0], standard_output);
  } catch (...) {
    close(ends[0]);
    close(ends[1]);
    throw;
  }
  close(ends[0]);
  watcher_ = std::thread([this, report = std::move(on_change)] { watch(report); });
}

child_process::~child_process() {
  kill();
  watcher_.join(); // it has seen the end
  int status = 0;
  while (waitpid(pid_, &status, 0) < 0 && errno == EINTR) {
  }
  close(keep_alive_);
}

void child_process::kill() const { ::kill(pid_, SIGKILL); }

// The pipe of a child that has ended is broken; SIGPIPE is ignored by servers, but this is no server's code to rely on.
void child_process::tell(const std::string& line) const {
  sigset_t pipe_signal, before;
  sigemptyset(&pipe_signal);
  sigaddset(&pipe_signal, SIGPIPE);
  pthread_sigmask(SIG_BLOCK, &pipe_signal, &before);
  const std::string whole = line + "\n";
  if (write(keep_alive_, whole.data(), whole.size()) < 0 && errno == EPIPE && sigismember(&before, SIGPIPE) == 0) {
    const timespec at_once{};
    sigtimedwait(&pipe_signal, nullptr, &at_once);
  }
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

void child_process::watch(const std::function<void(int)>& on_change) const {
  const auto wait = [this](int options) {
    siginfo_t info{};
    while (waitid(P_PID, static_cast<id_t>(pid_), &info, options) < 0 && errno == EINTR) {
    }
    return info;
  };
  siginfo_t info = wait(WEXITED | WSTOPPED | WNOWAIT);
  for (; info.si_code == CLD_STOPPED; info = wait(WEXITED | WSTOPPED | WNOWAIT)) {
    wait(WSTOPPED | WNOHANG); // takes the news, or it would be told again at once
    on_change((info.si_status & 0xff) << 8 | 0x7f);
  }
  // siginfo splits what waitpid's status packs.
  on_change(info.si_code == CLD_EXITED ? (info.si_status & 0xff) << 8 : info.si_status & 0x7f);
}

std::string describe_status(int status) {
  if (WIFEXITED(status)) return "exit code " + std::to_string(WEXITSTATUS(status));
  return "signal " + std::to_string(WTERMSIG(status)) + " (" + strsignal(WTERMSIG(status)) + ")";
}

} // namespace troupe::actors
