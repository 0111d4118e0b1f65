// The `self` of our actors. Under ThreadSanitizer it also says what that cannot see, because CAF comes compiled without it: an
// actor runs after the thread that launched it, and works on a message after the thread that sent it.
#pragma once

#include <caf/stateful_actor.hpp>
#include <caf/typed_event_based_actor.hpp>
#include <cstddef>
#include <utility>

#if defined(__SANITIZE_THREAD__)
extern "C" void __tsan_acquire(void*);
extern "C" void __tsan_release(void*);
#endif

namespace troupe::actors {

#if defined(__SANITIZE_THREAD__)
// The order that CAF's mailbox and scheduler establish: launch and enqueue before resume and consume, one resume before the next.
template <class Base>
class ordered_actor : public Base {
 public:
  explicit ordered_actor(caf::actor_config& config) : Base(config) {}
  ~ordered_actor() override { __tsan_acquire(this); }

  using Base::consume;
  using Base::enqueue;
  void launch(caf::execution_unit* where, bool lazy, bool hide) override {
    __tsan_release(this);
    Base::launch(where, lazy, hide);
  }
  void enqueue(caf::mailbox_element_ptr message, caf::execution_unit* where) override {
    __tsan_release(this);
    Base::enqueue(std::move(message), where);
  }
  caf::resumable::resume_result resume(caf::execution_unit* where, std::size_t messages) override {
    __tsan_acquire(this);
    const auto result = Base::resume(where, messages);
    __tsan_release(this);
    return result;
  }
  caf::invoke_message_result consume(caf::mailbox_element& message) override {
    __tsan_acquire(this);
    return Base::consume(message);
  }
};
#else
template <class Base>
using ordered_actor = Base;
#endif

template <class Handle, class State>
using actor_pointer = caf::stateful_actor<State, ordered_actor<typename Handle::base>>*;

} // namespace troupe::actors
