// A request_handler whose every step the test takes by hand.
#pragma once

#include <chrono>
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "core/service.hpp"

namespace troupe::testing {

class scripted_handler : public request_handler {
 public:
  struct taken {
    generation_request request;
    std::shared_ptr<token_sink> sink;
  };

  scripted_handler() {
    served.names = {"tiny", "tiny-alias"};
    served.max_model_len = 128;
    served.vocab_size = 100;
    served.created = 1700000000;
    served.has_chat_template = true;
    state.ready = true;
  }

  void submit(generation_request request, std::shared_ptr<token_sink> sink) override {
    if (on_submit) return on_submit(request, *sink);
    const std::lock_guard guard(lock_);
    taken_.push_back({std::move(request), std::move(sink)});
    changed_.notify_all();
  }
  void cancel(request_id id) override {
    const std::lock_guard guard(lock_);
    cancelled_.push_back(id);
    changed_.notify_all();
  }
  void tokenize(tokenize_request, std::function<void(result<tokenize_reply>)> reply) override {
    reply(tokenize_reply{{1, 2}, {"a", "\xff"}, served.max_model_len});
  }
  void detokenize(std::vector<token_id> tokens, std::function<void(result<std::string>)> reply) override {
    if (on_detokenize) return on_detokenize(std::move(reply));
    reply(std::string(tokens.size(), 'x'));
  }
  service_status status() const override {
    const std::lock_guard guard(lock_);
    return state;
  }
  const served_model& model() const override { return served; }

  void set_status(service_status now) {
    const std::lock_guard guard(lock_);
    state = std::move(now);
  }
  // The i-th request that was submitted, once it is there.
  taken wait_for(std::size_t i = 0) {
    std::unique_lock guard(lock_);
    if (!changed_.wait_for(guard, std::chrono::seconds(10), [&] { return taken_.size() > i; })) return {};
    return taken_[i];
  }
  std::size_t submitted() const {
    const std::lock_guard guard(lock_);
    return taken_.size();
  }
  bool wait_cancelled(request_id id) {
    std::unique_lock guard(lock_);
    return changed_.wait_for(guard, std::chrono::seconds(10),
                             [&] { return std::find(cancelled_.begin(), cancelled_.end(), id) != cancelled_.end(); });
  }
  std::size_t cancels() const {
    const std::lock_guard guard(lock_);
    return cancelled_.size();
  }

  served_model served;
  std::function<void(const generation_request&, token_sink&)> on_submit; // set before the first request
  std::function<void(std::function<void(result<std::string>)>)> on_detokenize;

 private:
  mutable std::mutex lock_;
  std::condition_variable changed_;
  service_status state;
  std::vector<taken> taken_;
  std::vector<request_id> cancelled_;
};

inline output_chunk chunk(std::string text, std::optional<finish_reason> finish = std::nullopt, std::int32_t index = 0) {
  output_chunk out;
  out.index = index;
  out.text = std::move(text);
  out.tokens = {1};
  out.finish = finish;
  return out;
}

} // namespace troupe::testing
