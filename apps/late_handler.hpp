// A request_handler that may come later: the server answers probes while the model is still loading.
#pragma once

#include <atomic>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "core/service.hpp"

namespace troupe::apps {

class late_handler : public request_handler {
 public:
  explicit late_handler(std::vector<std::string> names) { placeholder_.names = std::move(names); }

  // From here on every call goes to `handler`, which must outlive this object.
  void set(request_handler& handler) { handler_.store(&handler); }
  // Until then, what the model does: "waits for slots"; empty: it is loading.
  void say(const std::string& what) {
    const std::lock_guard lock(guard_);
    what_ = what.empty() ? "is loading" : what;
  }

  void submit(generation_request request, std::shared_ptr<token_sink> sink) override {
    if (auto* h = handler_.load()) return h->submit(std::move(request), std::move(sink));
    sink->on_error(loading());
  }
  void cancel(request_id id) override {
    if (auto* h = handler_.load()) h->cancel(id);
  }
  void tokenize(tokenize_request request, std::function<void(result<tokenize_reply>)> reply) override {
    if (auto* h = handler_.load()) return h->tokenize(std::move(request), std::move(reply));
    reply(loading());
  }
  void detokenize(std::vector<token_id> tokens, std::function<void(result<std::string>)> reply) override {
    if (auto* h = handler_.load()) return h->detokenize(std::move(tokens), std::move(reply));
    reply(loading());
  }
  service_status status() const override {
    if (auto* h = handler_.load()) return h->status();
    return {true, false, false, not_yet()};
  }
  const served_model& model() const override {
    if (auto* h = handler_.load()) return h->model();
    return placeholder_;
  }

 private:
  std::string not_yet() const {
    const std::lock_guard lock(guard_);
    return "the model " + what_;
  }
  error loading() const { return {error_kind::unavailable, not_yet(), "", 2}; }

  std::atomic<request_handler*> handler_{nullptr};
  served_model placeholder_;
  mutable std::mutex guard_;
  std::string what_ = "is loading";
};

} // namespace troupe::apps
