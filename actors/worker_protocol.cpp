#include "actors/worker_protocol.hpp"

#include <fcntl.h>
#include <poll.h>
#include <sys/stat.h>
#include <unistd.h>

#include <caf/meta/annotation.hpp>
#include <cerrno>
#include <cstring>
#include <optional>
#include <sstream>
#include <type_traits>
#include <utility>
#include <vector>

#include "actors/child_process.hpp"
#include "actors/protocol.hpp"

namespace troupe::actors {

namespace {

constexpr int kRevision = 1; // of what messages mean; their layout speaks for itself

// An inspector that writes down what it is shown: names, order and kinds of all fields.
class layout_writer {
 public:
  using result_type = void;

  template <class... Fields>
  void operator()(const Fields&... fields) {
    text_ += '(';
    (add(fields), ...);
    text_ += ')';
  }
  template <class T>
  layout_writer& message() {
    T example{};
    inspect(*this, example);
    return *this;
  }
  std::uint64_t digest() const {
    std::uint64_t hash = 0xcbf29ce484222325U; // FNV-1a
    for (const char c : text_) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3U;
    return hash;
  }

 private:
  void add(const caf::meta::type_name_t& name) { text_ += name.value; }
  void add(const std::string&) { text_ += 's'; }
  template <class T>
  void add(const std::vector<T>&) {
    text_ += '*';
    add(T{});
  }
  template <class A, class B>
  void add(const std::pair<A, B>&) {
    text_ += '&';
    add(A{});
    add(B{});
  }
  template <class T>
  void add(const T&) {
    if constexpr (std::is_enum_v<T>) {
      add(std::underlying_type_t<T>{});
    } else if constexpr (std::is_integral_v<T>) {
      text_ += std::is_signed_v<T> ? 'i' : 'u';
      text_ += static_cast<char>('0' + sizeof(T));
    } else if constexpr (!std::is_base_of_v<caf::meta::annotation, T>) {
      message<T>();
    }
  }

  std::string text_;
};

constexpr const char* kName = "troupe-worker";

// A file of this process as another one can open it.
std::string path_of(int file) { return "/proc/" + std::to_string(getpid()) + "/fd/" + std::to_string(file); }

// Both ends of a pipe, closed with it.
struct pipe_ends {
  int from = -1, to = -1;
  pipe_ends() {
    int ends[2] = {-1, -1};
    if (pipe2(ends, O_CLOEXEC) != 0) throw std::runtime_error(std::string("no pipe: ") + std::strerror(errno));
    from = ends[0];
    to = ends[1];
  }
  ~pipe_ends() {
    close(from);
    close_writer();
  }
  void close_writer() {
    if (to >= 0) close(std::exchange(to, -1));
  }
  pipe_ends(const pipe_ends&) = delete;
  pipe_ends& operator=(const pipe_ends&) = delete;
};

// What comes up to the end of a line or of the pipe; none when the deadline passes.
std::optional<std::string> read_line(int from, std::chrono::milliseconds deadline) {
  constexpr std::size_t most = 256;
  const auto limit = std::chrono::steady_clock::now() + deadline;
  std::string line;
  while (line.size() < most) {
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(limit - std::chrono::steady_clock::now()).count();
    pollfd ready{from, POLLIN, 0};
    const int count = left > 0 ? ::poll(&ready, 1, static_cast<int>(left)) : 0;
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) return std::nullopt;
    char c = 0;
    if (::read(from, &c, 1) != 1 || c == '\n') break;
    line += c;
  }
  return line;
}

std::string unlike(const std::string& protocol, const std::string& version) {
  return "its version " + version + " speaks protocol " + protocol + " with its server, and this server " + worker_protocol() +
         "; start the server anew";
}

std::variant<worker_program, std::string> ask(std::string command, std::chrono::milliseconds deadline) {
  pipe_ends answer;
  const child_process asked(
      {command, "worker-protocol"}, "", [](int) {}, answer.to);
  answer.close_writer();
  const auto line = read_line(answer.from, deadline);
  if (!line) return "it did not say within " + std::to_string(deadline.count()) + " ms which protocol it speaks";
  std::istringstream words(*line);
  std::string name, protocol, version;
  if (!(words >> name >> protocol >> version) || name != kName) return "it is no troupe program: it does not say which protocol it speaks";
  if (protocol != worker_protocol()) return unlike(protocol, version);
  return worker_program{std::move(command), std::move(version), -1};
}

} // namespace

namespace {

layout_writer worker_layout() {
  layout_writer layout;
  layout.message<device_hello>().message<rank_start>().message<group_rendezvous>().message<device_ready>().message<device_start_failed>();
  layout.message<step_plan>().message<step_done>().message<step_failed>();
  return layout;
}

std::string name_of(const layout_writer& layout) {
  char text[32];
  std::snprintf(text, sizeof text, "%d-%016llx", kRevision, static_cast<unsigned long long>(layout.digest()));
  return text;
}

} // namespace

std::string worker_protocol() { return name_of(worker_layout()); }

std::string cluster_protocol() {
  layout_writer layout = worker_layout();
  layout.message<node_hello>().message<node_welcome>().message<node_ready>().message<node_refusal>();
  layout.message<start_worker>().message<stop_worker>().message<worker_changed>();
  layout.message<machine_upgrade>().message<upgrade_note>().message<upgrade_end>();
  return name_of(layout);
}

std::string worker_protocol_line(const std::string& version) { return std::string(kName) + " " + worker_protocol() + " " + version; }

std::variant<worker_program, std::string> find_worker_program(const std::string& path, std::chrono::milliseconds deadline) {
  const auto refuse = [&](const std::string& why) { return path + ": " + why; };
  const int file = open(path.c_str(), O_PATH | O_CLOEXEC);
  if (file < 0) return refuse(std::strerror(errno));
  std::string failure;
  try {
    struct stat about {};
    if (fstat(file, &about) == 0 && !S_ISREG(about.st_mode)) throw std::runtime_error("it is no file");
    auto found = ask(path_of(file), deadline);
    if (auto* program = std::get_if<worker_program>(&found)) {
      program->file = file;
      return found;
    }
    failure = std::get<std::string>(found);
  } catch (const std::exception& e) {
    failure = e.what();
  }
  close(file);
  return refuse(failure);
}

void close_program(const worker_program& program) { close(program.file); }

} // namespace troupe::actors
