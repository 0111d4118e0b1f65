// Groups of GPUs joined by NCCL. One GPU shows what one rank can show; what needs two is skipped where there are fewer.
#include <cuda_runtime_api.h>

#include <algorithm>
#include <atomic>
#include <stdexcept>

#include "device/cuda/check.hpp"
#include "device/cuda/graph.hpp"
#include "device/cuda/memory.hpp"
#include "device/cuda/stream.hpp"
#include "tests/transport/collective/group_testing.hpp"
#include "transport/collective/cuda/nccl_communicator.hpp"

namespace troupe::cuda {
namespace {

using namespace std::chrono_literals;

// A device's copy of elements.
class on_device {
 public:
  on_device(const bytes& values, dtype type)
      : block_(*memory_, ledger_, std::max<std::size_t>(values.size(), 1), "test"), size_(values.size()), type_(type) {
    check(cudaMemcpy(block_.data(), values.data(), size_, cudaMemcpyHostToDevice), "cudaMemcpy");
  }
  collective_buffer buffer() const { return {block_.data(), size_ / row_bytes(type_, 1), type_}; }
  bytes back() const {
    bytes out(size_);
    check(cudaMemcpy(out.data(), block_.data(), size_, cudaMemcpyDeviceToHost), "cudaMemcpy");
    return out;
  }

 private:
  std::unique_ptr<memory_source> memory_ = own_memory();
  memory_ledger ledger_;
  device_block block_;
  std::size_t size_;
  dtype type_;
};

nccl_options options_with(std::chrono::milliseconds deadline) {
  nccl_options options;
  options.name = "tp0";
  options.deadline = deadline;
  return options;
}

class nccl : public ::testing::Test {
 protected:
  void SetUp() override {
    if (device_count() == 0) GTEST_SKIP() << "no CUDA device on this machine";
    use_device(0);
  }
  static std::unique_ptr<nccl_communicator> alone(std::chrono::milliseconds deadline = 10s) {
    return join_nccl_group(make_nccl_group_id(options_with(deadline)), 0, 1, options_with(deadline));
  }
  std::mt19937 random_{std::random_device{}()};
};

TEST_F(nccl, one_rank_alone_keeps_what_it_has) {
  const auto me = alone();
  EXPECT_EQ(me->size(), 1);
  const stream queue;
  for (const dtype type : {dtype::f32, dtype::f16, dtype::bf16}) {
    const bytes values = random_elements(random_, type, 1001);
    const on_device data(values, type), all(bytes(values.size()), type);
    me->all_reduce(data.buffer(), queue.handle());
    me->broadcast(data.buffer(), 0, queue.handle());
    me->all_gather(data.buffer(), all.buffer(), queue.handle());
    me->wait(queue.handle());
    EXPECT_EQ(data.back(), values);
    EXPECT_EQ(all.back(), values);
  }
  EXPECT_EQ(me->take_times().calls, 9U);
}

TEST_F(nccl, calls_are_captured_in_a_graph) {
  const auto me = alone();
  const stream queue;
  const bytes values = random_elements(random_, dtype::bf16, 4096);
  const on_device data(values, dtype::bf16), all(bytes(values.size()), dtype::bf16);
  const graph recorded = graph::capture(queue, [&] {
    me->all_reduce(data.buffer(), queue.handle());
    me->all_gather(data.buffer(), all.buffer(), queue.handle());
  });
  EXPECT_NE(all.back(), values) << "nothing has run yet";
  for (int i = 0; i < 50; ++i) recorded.launch(queue);
  me->wait(queue.handle());
  EXPECT_EQ(all.back(), values);
}

TEST_F(nccl, an_abort_ends_every_call_and_a_new_group_forms) {
  for (int round = 0; round < 3; ++round) {
    const auto me = alone();
    const stream queue;
    const on_device data(bytes(400), dtype::f32);
    std::thread aborting([&] { me->abort("the operator said so"); });
    aborting.join();
    for (const auto& call :
         {std::function<void()>([&] { me->all_reduce(data.buffer(), queue.handle()); }), {[&] { me->wait(queue.handle()); }}}) {
      const outcome got = attempt(call);
      EXPECT_EQ(got.fault, collective_fault::aborted) << got.text;
      EXPECT_NE(got.text.find("the operator said so"), std::string::npos) << got.text;
    }
    EXPECT_FALSE(me->is_stuck());
    queue.synchronize(); // the stream and the device go on
  }
}

TEST_F(nccl, wait_has_a_deadline) {
  auto options = options_with(200ms);
  const auto me = join_nccl_group(make_nccl_group_id(options), 0, 1, options);
  const stream queue;
  std::atomic<bool> release{false}; // which queued work waits for
  check(cudaLaunchHostFunc(
            queue.handle(),
            [](void* flag) {
              while (!*static_cast<std::atomic<bool>*>(flag)) std::this_thread::sleep_for(1ms);
            },
            &release),
        "cudaLaunchHostFunc");
  std::thread releasing([&] { // NCCL gives device memory back when it aborts, for which it needs the device to be idle
    std::this_thread::sleep_for(800ms);
    release = true;
  });
  const outcome got = attempt([&] { me->wait(queue.handle()); });
  releasing.join();
  queue.synchronize();
  EXPECT_EQ(got.fault, collective_fault::deadline) << got.text;
  EXPECT_NE(got.text.find("tp0, rank 0 of 1"), std::string::npos) << got.text;
  EXPECT_GE(got.took, 200ms);
  EXPECT_LT(got.took, 5s);
  EXPECT_FALSE(me->is_stuck());
}

TEST_F(nccl, a_group_that_is_not_complete_is_given_up) {
  auto options = options_with(1s);
  options.form_deadline = 1s;
  const outcome got = attempt([&] { join_nccl_group(make_nccl_group_id(options), 0, 2, options); });
  EXPECT_EQ(got.fault, collective_fault::deadline) << got.text;
  EXPECT_EQ(got.text.find("must be ended"), std::string::npos) << got.text;
  EXPECT_LT(got.took, 8s);
  EXPECT_EQ(alone()->size(), 1) << "NCCL can be used again";
}

TEST_F(nccl, a_group_joins_while_its_owner_works) {
  nccl_joining joining(make_nccl_group_id(options_with(10s)), 0, 1, options_with(10s));
  std::unique_ptr<nccl_communicator> me;
  std::thread finishing([&] { me = joining.finish(); });
  const stream queue;
  const bytes values = random_elements(random_, dtype::f32, 1001);
  const on_device data(values, dtype::f32);
  EXPECT_EQ(data.back(), values);
  finishing.join();
  me->all_reduce(data.buffer(), queue.handle());
  me->wait(queue.handle());
  EXPECT_EQ(data.back(), values);
  joining.abort("too late to join, not to end");
  EXPECT_EQ(attempt([&] { me->wait(queue.handle()); }).fault, collective_fault::aborted) << "and so is what was joined";
}

TEST_F(nccl, joining_ends_when_it_is_aborted_or_given_up) {
  const auto begin = std::chrono::steady_clock::now();
  {
    nccl_joining joining(make_nccl_group_id(options_with(20s)), 0, 2, options_with(20s));
    outcome got;
    std::thread finishing([&] { got = attempt([&] { joining.finish(); }); });
    std::this_thread::sleep_for(100ms);
    joining.abort("the other rank has gone");
    finishing.join();
    EXPECT_EQ(got.fault, collective_fault::aborted) << got.text;
    EXPECT_NE(got.text.find("the other rank has gone"), std::string::npos) << got.text;
  }
  { const nccl_joining given_up(make_nccl_group_id(options_with(20s)), 0, 2, options_with(20s)); }
  EXPECT_LT(std::chrono::steady_clock::now() - begin, 15s);
  EXPECT_EQ(alone()->size(), 1) << "NCCL can be used again";
}

TEST_F(nccl, calls_that_no_rank_could_make_end_the_group) {
  const auto me = alone();
  const on_device data(bytes(400), dtype::i32);
  const stream queue;
  EXPECT_EQ(attempt([&] { me->all_reduce(data.buffer(), queue.handle()); }).fault, collective_fault::mismatch);
  EXPECT_EQ(attempt([&] { me->wait(queue.handle()); }).fault, collective_fault::mismatch);
  EXPECT_THROW(join_nccl_group({}, 1, 1, options_with(1s)), std::invalid_argument);
}

// Two ranks in two threads, each with a GPU of its own.
class nccl_pair : public nccl {
 protected:
  void SetUp() override {
    if (device_count() < 2) GTEST_SKIP() << "fewer than two CUDA devices on this machine";
    group_.resize(2);
  }
  void form(std::chrono::milliseconds deadline) {
    const auto id = make_nccl_group_id(options_with(deadline));
    each_rank([&](int rank) { group_[static_cast<std::size_t>(rank)] = join_nccl_group(id, rank, 2, options_with(deadline)); });
  }
  static void each_rank(const std::function<void(int)>& rank_does) {
    std::vector<std::thread> threads;
    for (const int rank : {0, 1}) {
      threads.emplace_back([&, rank] {
        use_device(rank);
        rank_does(rank);
      });
    }
    for (auto& thread : threads) thread.join();
  }
  std::vector<std::unique_ptr<nccl_communicator>> group_;
};

TEST_F(nccl_pair, sums_are_right_and_the_same_on_both) {
  form(10s);
  for (const dtype type : {dtype::f32, dtype::f16, dtype::bf16}) {
    for (const std::size_t count : {1UL, 4097UL, 1'000'003UL}) {
      const std::vector<bytes> inputs = {random_elements(random_, type, count), random_elements(random_, type, count)};
      std::vector<bytes> sums(2);
      each_rank([&](int rank) {
        const stream queue;
        const on_device data(inputs[static_cast<std::size_t>(rank)], type);
        group_[static_cast<std::size_t>(rank)]->all_reduce(data.buffer(), queue.handle());
        group_[static_cast<std::size_t>(rank)]->wait(queue.handle());
        sums[static_cast<std::size_t>(rank)] = data.back();
      });
      EXPECT_EQ(sums[0], sums[1]);
      EXPECT_EQ(sums[0], plain_sum(inputs, type)) << "two ranks' sum is one rounding, in any order";
    }
  }
}

TEST_F(nccl_pair, messages_go_from_one_to_the_other) {
  form(10s);
  const bytes values = random_elements(random_, dtype::f32, 5000);
  each_rank([&](int rank) {
    const stream queue;
    const on_device data(rank == 0 ? values : bytes(values.size()), dtype::f32);
    auto& me = *group_[static_cast<std::size_t>(rank)];
    rank == 0 ? me.send(data.buffer(), 1, queue.handle()) : me.receive(data.buffer(), 0, queue.handle());
    me.wait(queue.handle());
    EXPECT_EQ(data.back(), values);
  });
}

TEST_F(nccl_pair, a_peer_that_does_not_come_is_a_fault_after_the_deadline) {
  form(500ms);
  use_device(0);
  {
    const stream queue;
    const on_device data(bytes(4 << 20), dtype::f32);
    const outcome got = attempt([&] {
      group_[0]->all_reduce(data.buffer(), queue.handle());
      group_[0]->wait(queue.handle());
    });
    EXPECT_EQ(got.fault, collective_fault::deadline) << got.text;
    EXPECT_LT(got.took, 5s);
    EXPECT_FALSE(group_[0]->is_stuck());
    queue.synchronize();
  }
  use_device(1);
  group_[1]->abort("rank 0 has gone");
  form(10s);
  each_rank([&](int rank) {
    const stream queue;
    const on_device data(bytes(400), dtype::f32);
    group_[static_cast<std::size_t>(rank)]->all_reduce(data.buffer(), queue.handle());
    group_[static_cast<std::size_t>(rank)]->wait(queue.handle());
  });
}

} // namespace
} // namespace troupe::cuda
