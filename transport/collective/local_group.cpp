#include "transport/collective/local_group.hpp"

#include <string>
#include <utility>

#include "transport/collective/call.hpp"
#include "transport/collective/call_times.hpp"
#include "transport/collective/local_meeting.hpp"

namespace troupe {
namespace {

class local_communicator final : public communicator {
 public:
  local_communicator(std::shared_ptr<local_meeting> group, int rank) : group_(std::move(group)), rank_(rank) {}
  ~local_communicator() override { group_->leave(rank_); }

  int rank() const override { return rank_; }
  int size() const override { return group_->size(); }

  void all_reduce(collective_buffer data, collective_stream) override {
    collective({{collective_op::all_reduce, data.type, data.count, 0}, bytes(data)}, objection_to_sum(data));
  }
  void all_gather(collective_buffer mine, collective_buffer all, collective_stream) override {
    collective({{collective_op::all_gather, mine.type, mine.count, 0}, bytes(mine), bytes(all)}, objection_to_gather(mine, all, size()));
  }
  void broadcast(collective_buffer data, int root, collective_stream) override {
    collective({{collective_op::broadcast, data.type, data.count, root}, bytes(data)}, objection_to_root(root, size()));
  }
  void send(collective_buffer data, int peer, collective_stream) override {
    check_peer(peer);
    group_->send(rank_, peer, data, times_);
  }
  void receive(collective_buffer data, int peer, collective_stream) override {
    check_peer(peer);
    group_->receive(rank_, peer, data, times_);
  }

  void abort(std::string_view reason) noexcept override { group_->end(abort_of(rank_, reason)); }
  collective_times take_times() override { return times_.take(); }

 private:
  static std::byte* bytes(const collective_buffer& buffer) { return static_cast<std::byte*>(buffer.data); }
  void collective(const local_part& mine, const std::string& objection) { group_->collective(rank_, mine, objection, times_); }
  void check_peer(int peer) const {
    const std::string objection = objection_to_peer(peer, rank_, size());
    if (objection.empty()) return;
    group_->end({collective_fault::mismatch, rank_, objection});
    throw collective_error(collective_fault::mismatch, rank_, objection);
  }

  const std::shared_ptr<local_meeting> group_;
  const int rank_;
  call_times times_;
};

} // namespace

std::vector<std::unique_ptr<communicator>> make_local_group(int size, std::chrono::milliseconds deadline) {
  const auto group = std::make_shared<local_meeting>(size, deadline);
  std::vector<std::unique_ptr<communicator>> ends;
  for (int rank = 0; rank < size; ++rank) ends.push_back(std::make_unique<local_communicator>(group, rank));
  return ends;
}

} // namespace troupe
