// Sums over ranks: several ranks on one GPU, each with a stream, a window and a state of its own, whose kernels run side by side.
#include "kernels/rank_sum_gpu.hpp"

#include <chrono>
#include <thread>

#include "device/cuda/graph.hpp"
#include "kernels/rms_norm.hpp"
#include "tests/kernels/gpu/gpu_testing.hpp"

namespace troupe {
namespace {

using namespace std::chrono_literals;

class gpu_rank_sum_test : public test::gpu_op_test {
 protected:
  struct rank {
    cuda::stream stream;
    buffer window, state;
    cuda::pinned_ring pinned{1, sizeof(std::uint32_t)};
    std::uint32_t* given_up = nullptr;
    gpu::rank_windows windows;
  };
  // What each rank brings into a call, and where it finds the sum.
  struct call {
    dtype type = dtype::bf16;
    std::int32_t rows = 1;
    std::int64_t columns = 8;
    bool with_residual = true, with_norm = false, in_place = false;
    std::vector<std::vector<float>> parts; // by rank
    std::vector<float> residual, weight;
    buffer device_residual, device_weight;
    std::vector<buffer> device_parts, sums, normed; // by rank
  };

  void make_ranks(int size, std::size_t capacity) {
    ranks_ = std::vector<rank>(static_cast<std::size_t>(size));
    for (rank& r : ranks_) {
      r.window = allocator_->allocate(gpu::rank_window_bytes(size, capacity), "test");
      r.state = upload(std::vector<gpu::rank_sum_state>{{77, 77, 77}});
      r.given_up = reinterpret_cast<std::uint32_t*>(r.pinned.next());
      *r.given_up = 0;
    }
    for (std::size_t i = 0; i < ranks_.size(); ++i) {
      gpu::rank_windows& w = ranks_[i].windows;
      w.rank = static_cast<int>(i);
      w.size = size;
      w.capacity = capacity;
      for (std::size_t j = 0; j < ranks_.size(); ++j) w.of_rank[j] = ranks_[j].window.data();
      w.state = ranks_[i].state.as<gpu::rank_sum_state>();
      w.given_up = ranks_[i].given_up;
      gpu::clear_rank_window(ranks_[i].stream.handle(), w);
    }
    settle();
  }
  void settle() {
    for (rank& r : ranks_) r.stream.synchronize();
  }

  call make_call(dtype type, std::int32_t rows, std::int64_t columns, bool with_residual, bool with_norm, bool in_place = false) {
    call c;
    c.type = type, c.rows = rows, c.columns = columns;
    c.with_residual = with_residual, c.with_norm = with_norm, c.in_place = in_place;
    const auto count = static_cast<std::size_t>(rows * columns);
    c.residual = exact(type, count, 4.0F);
    c.weight = exact(type, static_cast<std::size_t>(columns));
    c.device_residual = upload(narrow(type, c.residual));
    c.device_weight = upload(narrow(type, c.weight));
    for (std::size_t i = 0; i < ranks_.size(); ++i) {
      c.parts.push_back(exact(type, count));
      for (std::size_t k = 0; k < count; k += 3) c.parts.back()[k] = -0.0F; // what a window's empty places look like
      for (std::size_t k = 0; k + 1 < count && k < 64; ++k) c.parts.back()[k] = -0.0F;
      c.device_parts.push_back(upload(narrow(type, c.parts.back())));
      c.sums.push_back(poisoned_halves(count));
      c.normed.push_back(poisoned_halves(count));
    }
    return c;
  }
  void run(const call& c, std::size_t i, bool overlaps = false) {
    gpu::rank_sum_args args;
    args.type = c.type;
    args.part = c.device_parts[i].data();
    args.residual = c.with_residual ? c.device_residual.data() : nullptr;
    args.sum = c.in_place ? c.device_parts[i].data() : c.sums[i].data();
    args.rows = c.rows;
    args.columns = c.columns;
    args.norm_weight = c.with_norm ? c.device_weight.data() : nullptr;
    args.epsilon = 1e-5F;
    args.normed = c.normed[i].data();
    args.windows = ranks_[i].windows;
    args.overlaps = overlaps;
    gpu::sum_over_ranks(ranks_[i].stream.handle(), args);
  }
  void run_all(const call& c) {
    for (std::size_t i = 0; i < ranks_.size(); ++i) run(c, i);
  }

  std::vector<float> right_sum(const call& c) const {
    std::vector<float> sum(c.residual.size());
    for (std::size_t k = 0; k < sum.size(); ++k) {
      float x = 0;
      for (const auto& part : c.parts) x += part[k];
      sum[k] = test::from_bits(c.type, test::to_bits(c.type, c.with_residual ? x + c.residual[k] : x));
    }
    return sum;
  }
  void expect_right(const call& c, const char* what) {
    const std::vector<float> sum = right_sum(c);
    std::vector<float> normed(sum.size());
    if (c.with_norm) cpu::rms_norm(pool_, {sum.data(), c.columns, normed.data(), c.columns, c.rows, 1, c.columns, c.weight.data(), 1e-5F});
    for (std::size_t i = 0; i < ranks_.size(); ++i) {
      SCOPED_TRACE(std::string(what) + ", " + std::to_string(ranks_.size()) + " ranks, rank " + std::to_string(i) + ", " +
                   std::to_string(c.rows) + " x " + std::to_string(c.columns));
      ASSERT_EQ(widen(c.type, download<std::uint16_t>(c.in_place ? c.device_parts[i] : c.sums[i])), sum);
      const std::vector<float> got = widen(c.type, download<std::uint16_t>(c.normed[i]));
      for (std::size_t k = 0; k < got.size(); ++k) {
        ASSERT_EQ(std::isnan(got[k]), !c.with_norm) << k;
        if (!c.with_norm) continue;
        ASSERT_NEAR(got[k], normed[k], test::unit(c.type) * std::abs(normed[k]) + 1e-6) << k;
      }
      ASSERT_EQ(download<std::uint16_t>(c.normed[i]), download<std::uint16_t>(c.normed[0])) << "the same bits everywhere";
    }
  }
  bool is_idle_within(std::size_t i, std::chrono::milliseconds time) {
    cuda::event done;
    done.record(ranks_[i].stream);
    for (const auto end = std::chrono::steady_clock::now() + time; std::chrono::steady_clock::now() < end;) {
      if (done.reached()) return true;
      std::this_thread::sleep_for(100us);
    }
    return done.reached();
  }

  std::vector<rank> ranks_;
};

TEST_F(gpu_rank_sum_test, all_ranks_get_the_sum_in_the_order_of_ranks_and_its_norm) {
  for (const int size : {2, 3, 4, 7, 8}) {
    make_ranks(size, std::size_t{2} * 40 * 4096);
    for (const dtype type : {dtype::bf16, dtype::f16}) {
      for (const auto& [rows, columns] : {std::pair{1, 8}, {1, 4096}, {3, 264}, {9, 4096}, {40, 1024}, {5, 8192}, {2, 16384}, {8, 4096}}) {
        for (const bool with_norm : {false, true}) {
          const call both = make_call(type, rows, columns, true, with_norm), alone = make_call(type, rows, columns, false, with_norm, true);
          run_all(both);
          run_all(alone);
          settle();
          expect_right(both, "with residual");
          expect_right(alone, "in place");
        }
      }
    }
  }
}

TEST_F(gpu_rank_sum_test, graphs_of_calls_of_changing_sizes_are_replayed) {
  make_ranks(4, std::size_t{2} * 16 * 1024);
  std::vector<call> calls;
  for (const std::int32_t rows : {16, 1, 9, 2, 3}) calls.push_back(make_call(dtype::bf16, rows, 1024, true, rows > 2));
  std::vector<cuda::graph> graphs;
  for (std::size_t i = 0; i < ranks_.size(); ++i) { // once outside: what a first launch loads must not wait for a peer
    for (const call& c : calls) run(c, i);
  }
  settle();
  for (std::size_t i = 0; i < ranks_.size(); ++i) {
    graphs.push_back(cuda::graph::capture(ranks_[i].stream, [&] {
      for (const call& c : calls) run(c, i, true);
    }));
  }
  for (int round = 0; round < 7; ++round) { // an odd number of calls: the buffers change places
    for (std::size_t i = 0; i < ranks_.size(); ++i)
      graphs[(i + static_cast<std::size_t>(round)) % 4].launch(ranks_[(i + static_cast<std::size_t>(round)) % 4].stream);
    settle();
    for (const call& c : calls) expect_right(c, "replayed");
  }
}

TEST_F(gpu_rank_sum_test, a_call_without_its_peer_gives_up_when_told_and_sends_no_more) {
  make_ranks(2, std::size_t{2} * 4 * 4096);
  const call warm = make_call(dtype::bf16, 4, 4096, true, false);
  run_all(warm);
  settle();
  const call first = make_call(dtype::bf16, 4, 4096, true, false), second = make_call(dtype::bf16, 4, 4096, true, false);
  const cuda::graph both = cuda::graph::capture(ranks_[0].stream, [&] {
    run(first, 0);
    run(second, 0);
  });
  both.launch(ranks_[0].stream);
  EXPECT_FALSE(is_idle_within(0, 100ms)) << "its peer has not come";
  *static_cast<volatile std::uint32_t*>(ranks_[0].given_up) = 1;
  EXPECT_TRUE(is_idle_within(0, 2s));
  run(first, 1); // rank 0 had sent its rows before it gave up
  EXPECT_TRUE(is_idle_within(1, 2s));
  EXPECT_EQ(widen(dtype::bf16, download<std::uint16_t>(first.sums[1])), right_sum(first));
  run(second, 1);
  EXPECT_FALSE(is_idle_within(1, 100ms)) << "what rank 0 computed of a sum that it did not wait for must not arrive";
  *static_cast<volatile std::uint32_t*>(ranks_[1].given_up) = 1;
  EXPECT_TRUE(is_idle_within(1, 2s));
  both.launch(ranks_[0].stream); // at once
  EXPECT_TRUE(is_idle_within(0, 2s));
}

TEST_F(gpu_rank_sum_test, what_does_not_fit_is_refused) {
  make_ranks(2, std::size_t{2} * 4 * 64);
  call good = make_call(dtype::bf16, 4, 64, true, true);
  const auto refused = [&](auto change) {
    call bad = make_call(dtype::bf16, 4, 64, true, true);
    change(bad);
    EXPECT_THROW(run(bad, 0), std::invalid_argument);
  };
  refused([](call& c) { c.rows = 5; });
  refused([](call& c) { c.rows = 0; });
  refused([](call& c) { c.columns = 60; });
  refused([](call& c) { c.type = dtype::f32; });
  run_all(good);
  settle();
  expect_right(good, "after refusals");
}

} // namespace
} // namespace troupe
