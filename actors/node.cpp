// One stay of a node in a cluster: an actor system of its own, so that nothing of an earlier connection is left in it.
#include <caf/actor_system.hpp>
#include <caf/exit_reason.hpp>
#include <caf/io/middleman.hpp>
#include <caf/scoped_actor.hpp>
#include <caf/send.hpp>
#include <stdexcept>
#include <utility>

#include "actors/cluster.hpp"
#include "actors/node_actor.hpp"
#include "actors/system.hpp"

namespace troupe::actors {

namespace {

class caf_membership final : public node_membership {
 public:
  caf_membership(std::uint16_t port, node_parts parts) : config_(true), system_(config_) {
    auto cluster = system_.middleman().remote_actor<cluster_actor>("127.0.0.1", port);
    if (!cluster) throw std::runtime_error("the head does not answer: " + system_.render(cluster.error()));
    node_ = system_.spawn(run_node, std::move(parts), *cluster, board_);
  }
  ~caf_membership() override {
    end_actor();
    node_ = nullptr;
  }

  void leave() override { caf::anon_send(node_, caf::leave_atom::value); }
  std::optional<membership_result> result() const override { return board_->result(); }
  std::int32_t ranks() const override { return board_->ranks; }
  std::optional<std::string> replace_program(const std::string& program, std::chrono::milliseconds start_deadline,
                                             const std::function<void(const std::string&)>& tell) override {
    return board_->await_change([&] { caf::anon_send(node_, program_offer{program, start_deadline.count()}); }, tell);
  }
  void end() override { end_actor(); }

 private:
  void end_actor() {
    caf::scoped_actor self{system_};
    self->send_exit(node_, caf::exit_reason::user_shutdown);
    self->wait_for(node_);
    board_->end({membership_end::left, {}}); // unless it had ended before
  }

  const std::shared_ptr<membership_board> board_ = std::make_shared<membership_board>();
  system_config config_;
  caf::actor_system system_;
  node_actor node_;
};

} // namespace

std::unique_ptr<node_membership> node_membership::join(std::uint16_t port, node_parts parts) {
  return std::make_unique<caf_membership>(port, std::move(parts));
}

} // namespace troupe::actors
