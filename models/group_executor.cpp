#include "models/group_executor.hpp"

#include <algorithm>
#include <exception>
#include <future>
#include <utility>

#include "device/cpu/host_limits.hpp"
#include "models/drafting_executor.hpp"
#include "models/executor_plan.hpp"
#include "models/ordered_worker.hpp"
#include "models/shard.hpp"
#include "transport/collective/local_group.hpp"

namespace troupe {
namespace {

class group_executor final : public step_executor {
 public:
  using rank_maker = std::function<std::unique_ptr<step_executor>(const rank_context&)>;

  group_executor(const std::vector<rank_context>& ranks, const rank_maker& make_rank) : members_(ranks.size()) {
    std::vector<std::future<void>> made;
    for (std::size_t i = 0; i < ranks.size(); ++i) {
      auto job = std::make_shared<std::packaged_task<void()>>([this, i, rank = ranks[i], &make_rank] { make_member(i, rank, make_rank); });
      made.push_back(job->get_future());
      members_[i].thread->push([job] { (*job)(); });
      if (ranks[i].leader()) leader_ = i;
    }
    check(made);
    info_ = members_[leader_].executor->info();
  }

  executor_info info() const override { return info_; }

  void submit(const step_plan& plan, deliver_fn deliver) override {
    const auto shared = std::make_shared<const step_plan>(plan);
    for (std::size_t i = 0; i < members_.size(); ++i) {
      deliver_fn mine = i == leader_ ? std::move(deliver) : [](const step_outcome&) {}; // a failure reaches the leader, too
      members_[i].thread->push(
          [executor = members_[i].executor.get(), shared, mine = std::move(mine)] { executor->submit(*shared, mine); });
    }
  }

 private:
  struct member {
    std::unique_ptr<step_executor> executor;
    std::unique_ptr<ordered_worker> thread = std::make_unique<ordered_worker>([] {}); // ends before its executor
  };

  void make_member(std::size_t index, const rank_context& rank, const rank_maker& make_rank) {
    try {
      members_[index].executor = make_rank(rank);
    } catch (const std::exception& e) {
      abort_group(rank, name_of(rank) + ": " + e.what());
      throw;
    }
  }

  // What the others say of a rank that failed comes after what that rank says itself.
  static void check(std::vector<std::future<void>>& made) {
    std::exception_ptr first, of_a_peer;
    for (std::future<void>& rank : made) {
      try {
        rank.get();
      } catch (const collective_error&) {
        of_a_peer = std::current_exception();
      } catch (...) {
        if (!first) first = std::current_exception();
      }
    }
    if (first || of_a_peer) std::rethrow_exception(first ? first : of_a_peer);
  }

  executor_info info_;
  std::size_t leader_ = 0;
  std::vector<member> members_;
};

std::vector<std::shared_ptr<communicator>> local_group(int size, std::chrono::milliseconds deadline) {
  if (size == 1) return {nullptr};
  std::vector<std::shared_ptr<communicator>> ends;
  for (auto& end : make_local_group(size, deadline)) ends.push_back(std::move(end));
  return ends;
}

} // namespace

std::vector<rank_context> make_local_ranks(int tp_size, int stages, std::chrono::milliseconds deadline) {
  std::vector<rank_context> ranks(static_cast<std::size_t>(tp_size) * static_cast<std::size_t>(stages));
  const auto at = [&](int stage, int tp_rank) -> rank_context& { return ranks[static_cast<std::size_t>(stage * tp_size + tp_rank)]; };
  for (int stage = 0; stage < stages; ++stage) {
    const auto peers = local_group(tp_size, deadline);
    for (int tp_rank = 0; tp_rank < tp_size; ++tp_rank) {
      at(stage, tp_rank) = {tp_rank, tp_size, stage, stages, peers[static_cast<std::size_t>(tp_rank)], nullptr};
    }
  }
  for (int tp_rank = 0; tp_rank < tp_size; ++tp_rank) {
    const auto column = local_group(stages, deadline);
    for (int stage = 0; stage < stages; ++stage) at(stage, tp_rank).pipeline = column[static_cast<std::size_t>(stage)];
  }
  return ranks;
}

std::unique_ptr<step_executor> make_group_executor(const std::vector<rank_context>& ranks,
                                                   const std::function<std::unique_ptr<step_executor>(const rank_context&)>& make_rank) {
  return std::make_unique<group_executor>(ranks, make_rank);
}

std::unique_ptr<step_executor> make_cpu_group_executor(const std::shared_ptr<const model_weights>& whole, cpu_executor_options options,
                                                       int tp_size, int stages, std::chrono::milliseconds deadline,
                                                       const std::shared_ptr<const model_weights>& draft) {
  check_model(whole->config);
  check_shards(whole->config, tp_size, stages);
  const auto make_rank = [&](const rank_context& rank) {
    return draft ? make_drafting_cpu_executor(whole, draft, options, rank) : make_cpu_executor(whole, options, rank);
  };
  if (tp_size * stages == 1) return make_rank({});
  if (options.threads == 0) options.threads = std::max(1, cpu::usable_cores() / (tp_size * stages));
  return make_group_executor(make_local_ranks(tp_size, stages, deadline), make_rank);
}

} // namespace troupe
