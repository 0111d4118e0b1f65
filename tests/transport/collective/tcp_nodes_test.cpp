// Two nodes made of network namespaces, with a wire between them that can be cut. Skipped where this user may not make any.
#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <unistd.h>

#include <cstdlib>

#include "tests/transport/collective/child_rank.hpp"
#include "tests/transport/collective/group_testing.hpp"
#include "tests/transport/collective/tcp_threads.hpp"

namespace troupe {
namespace {

using namespace std::chrono_literals;

class two_nodes {
 public:
  two_nodes() : names_{"troupe_a" + std::to_string(::getpid()), "troupe_b" + std::to_string(::getpid())} {
    made_ = run("ip netns add " + names_[0]) && run("ip netns add " + names_[1]) &&
            run("ip link add veth0 netns " + names_[0] + " type veth peer name veth0 netns " + names_[1]);
    for (const int node : {0, 1}) {
      made_ =
          made_ && in(node, "addr add " + address(node) + "/24 dev veth0") && in(node, "link set veth0 up") && in(node, "link set lo up");
    }
  }
  ~two_nodes() {
    for (const auto& name : names_) run("ip netns del " + name);
  }

  bool made() const { return made_; }
  static std::string address(int node) { return "10.77.0." + std::to_string(node + 1); }
  void enter(int node) const {
    const int space = ::open(("/run/netns/" + names_[static_cast<std::size_t>(node)]).c_str(), O_RDONLY | O_CLOEXEC);
    if (::setns(space, CLONE_NEWNET) != 0) throw std::runtime_error("setns");
    ::close(space);
  }
  // Frames go to an address that nobody has: nothing comes through, and nobody is told.
  void cut() const {
    for (const int node : {0, 1})
      EXPECT_TRUE(in(node, "neigh replace " + address(1 - node) + " lladdr 02:00:00:00:00:99 dev veth0 nud permanent"));
  }
  void heal() const {
    for (const int node : {0, 1}) EXPECT_TRUE(in(node, "neigh del " + address(1 - node) + " dev veth0"));
  }

 private:
  static bool run(const std::string& command) { return std::system((command + " >/dev/null 2>&1").c_str()) == 0; }
  bool in(int node, const std::string& command) const { return run("ip -n " + names_[static_cast<std::size_t>(node)] + " " + command); }

  std::array<std::string, 2> names_;
  bool made_ = false;
};

tcp_options options_of(int node, std::chrono::milliseconds deadline) {
  tcp_options options;
  options.interface = "veth0";
  options.across_nodes = true;
  options.deadline = deadline;
  options.form_deadline = 3s;
  options.name = "node " + std::to_string(node);
  return options;
}

void sum(communicator& me) {
  std::vector<float> small(100, 1), large(50'000, 1);
  me.all_reduce(buffer_of(small, dtype::f32));
  me.all_reduce(buffer_of(large, dtype::f32));
  if (small[99] != 2 || large[49'999] != 2) throw std::runtime_error("a wrong sum");
}

// What a process writes for its parent: how its group ended.
struct report {
  bool summed = false;
  bool ended = false;
  collective_fault fault = collective_fault::failed;
  int peer = -1;
  std::int64_t milliseconds = 0; // of the last call
};

// One rank of a group of two: tells the address (rank 0) or is told (rank 1) through pipes, sums until the group ends, and reports.
struct pipes {
  int to_child[2], from_child[2];
  pipes() {
    if (::pipe(to_child) != 0 || ::pipe(from_child) != 0) throw std::runtime_error("pipe");
  }
  ~pipes() {
    for (const int end : {to_child[0], to_child[1], from_child[0], from_child[1]}) ::close(end);
  }
};

template <class T>
void put(int pipe, const T& value) {
  if (::write(pipe, &value, sizeof value) != sizeof value) throw std::runtime_error("write");
}

template <class T>
T get(int pipe) {
  T value;
  pollfd one{pipe, POLLIN, 0};
  if (::poll(&one, 1, 10'000) != 1) throw std::runtime_error("the other process says nothing");
  if (::read(pipe, &value, sizeof value) != sizeof value) throw std::runtime_error("read");
  return value;
}

struct told_address {
  char host[46] = {};
  std::uint16_t port = 0;
  std::array<std::uint8_t, 16> token{};
};

std::unique_ptr<communicator> meet(int node, const pipes& ends, const tcp_options& options) {
  if (node == 1) {
    const auto told = get<told_address>(ends.to_child[0]);
    return join_tcp_group({told.host, told.port, told.token}, 1, 2, options);
  }
  tcp_rendezvous rendezvous(options);
  told_address told{{}, rendezvous.address().port, rendezvous.address().token};
  rendezvous.address().host.copy(told.host, sizeof told.host - 1);
  put(ends.from_child[1], told);
  return rendezvous.form(2);
}

// Twice: forms a group, says that it has summed, sums until the group ends, and reports.
void live(int node, const two_nodes& nodes, const pipes& ends) {
  nodes.enter(node);
  for (int life = 0; life < 2; ++life) {
    const auto me = meet(node, ends, options_of(node, 400ms));
    for (int i = 0; i < 5; ++i) sum(*me);
    report said;
    said.summed = true;
    put(ends.from_child[1], said);
    if (life == 1) return;
    outcome got;
    while (!got.fault) got = attempt([&] { sum(*me); });
    said.ended = true;
    said.fault = *got.fault;
    said.peer = got.peer;
    said.milliseconds = got.took.count();
    put(ends.from_child[1], said);
  }
}

TEST(tcp_nodes, a_cut_wire_is_noticed_within_the_deadline_and_a_new_group_heals_it) {
  const two_nodes nodes;
  if (!nodes.made()) GTEST_SKIP() << "network namespaces cannot be made here";
  pipes ends[2];
  child_rank zero([&] { live(0, nodes, ends[0]); });
  child_rank one([&] { live(1, nodes, ends[1]); });

  const auto introduce = [&] { put(ends[1].to_child[1], get<told_address>(ends[0].from_child[0])); };
  introduce();
  for (const int node : {0, 1}) EXPECT_TRUE(get<report>(ends[node].from_child[0]).summed);
  const auto cut = std::chrono::steady_clock::now();
  nodes.cut();
  for (const int node : {0, 1}) {
    const auto said = get<report>(ends[node].from_child[0]);
    EXPECT_TRUE(said.ended);
    EXPECT_EQ(said.fault, collective_fault::deadline);
    EXPECT_EQ(said.peer, 1 - node);
    EXPECT_LT(said.milliseconds, 1000);
  }
  EXPECT_LT(std::chrono::steady_clock::now() - cut, 2s);
  nodes.heal();
  introduce();
  for (const int node : {0, 1}) EXPECT_TRUE(get<report>(ends[node].from_child[0]).summed) << "a new group after the wire is whole";
  EXPECT_EQ(zero.exit_code(), 0);
  EXPECT_EQ(one.exit_code(), 0);
}

TEST(tcp_nodes, a_node_that_cannot_be_reached_is_a_fault_while_forming) {
  const two_nodes nodes;
  if (!nodes.made()) GTEST_SKIP() << "network namespaces cannot be made here";
  nodes.cut();
  pipes ends;
  child_rank one([&] {
    nodes.enter(1);
    auto options = options_of(1, 400ms);
    options.form_deadline = 500ms;
    put(ends.from_child[1], attempt([&] { join_tcp_group({two_nodes::address(0), 4711, {}}, 1, 2, options); }).fault);
  });
  EXPECT_EQ(get<std::optional<collective_fault>>(ends.from_child[0]), collective_fault::deadline);
}

} // namespace
} // namespace troupe
