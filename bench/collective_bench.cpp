// All-reduces of F32 among threads of one process, by both kinds of host communicators: the median and the 99th percentile of a call's time
// on rank 0, and how fast the numbers of one rank went through it.
//   collective_bench [SECONDS a row]
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <memory>
#include <thread>
#include <vector>

#include "tests/transport/collective/tcp_threads.hpp"
#include "transport/collective/local_group.hpp"

namespace {

using namespace troupe;
using clock_type = std::chrono::steady_clock;
using ends = std::vector<std::unique_ptr<communicator>>;
constexpr std::chrono::milliseconds kDeadline{20'000};
constexpr int kWarmUp = 20;

double microseconds_since(clock_type::time_point begin) {
  return std::chrono::duration<double, std::micro>(clock_type::now() - begin).count();
}

// Microseconds of each call on rank 0. The other ranks go on until rank 0 says in a broadcast that it was the last.
std::vector<double> measure(ends& group, std::size_t bytes, double seconds) {
  std::vector<double> times;
  const auto rank_does = [&](communicator& me) {
    std::vector<float> data(bytes / sizeof(float), 1.0F / static_cast<float>(me.size())); // sums keep their size
    const auto begin = clock_type::now();
    for (std::uint8_t more = 1; more != 0;) {
      for (int i = 0; i < kWarmUp; ++i) {
        const auto call = clock_type::now();
        me.all_reduce({data.data(), data.size(), dtype::f32});
        if (me.rank() == 0) times.push_back(microseconds_since(call));
        for (float& value : data) value *= 1.0F / static_cast<float>(me.size());
      }
      more = microseconds_since(begin) < seconds * 1e6 ? 1 : 0;
      me.broadcast({&more, 1, dtype::u8}, 0);
    }
  };
  std::vector<std::thread> threads;
  for (std::size_t rank = 1; rank < group.size(); ++rank) threads.emplace_back([&, rank] { rank_does(*group[rank]); });
  rank_does(*group[0]);
  for (auto& thread : threads) thread.join();
  times.erase(times.begin(), times.begin() + kWarmUp);
  std::sort(times.begin(), times.end());
  return times;
}

} // namespace

int main(int argc, char** argv) {
  const double seconds = argc > 1 ? std::atof(argv[1]) : 1;
  std::printf("| kind | ranks | bytes | median us | p99 us | GB/s |\n|---|---|---|---|---|---|\n");
  for (const bool tcp : {false, true}) {
    for (const int size : {2, 4}) {
      ends group = tcp ? make_tcp_group(size, kDeadline) : make_local_group(size, kDeadline);
      for (std::size_t bytes = 1 << 10; bytes <= 4 << 20; bytes *= 4) {
        const auto times = measure(group, bytes, seconds);
        if (times.empty()) continue;
        const double median = times[times.size() / 2];
        std::printf("| %s | %d | %zu | %.1f | %.1f | %.2f |\n", tcp ? "tcp" : "local", size, bytes, median, times[times.size() * 99 / 100],
                    static_cast<double>(bytes) / median / 1e3);
        std::fflush(stdout);
      }
    }
  }
}
