// Who waits for what: token sinks by request id, reply functions by call number. The messages between actors carry only the keys.
// Thread-safe; nothing is ever called with the lock held.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <unordered_map>
#include <vector>

#include "core/error.hpp"
#include "core/request.hpp"
#include "core/service.hpp"

namespace troupe::actors {

// A request ends exactly once because its sink can be taken out exactly once: whoever takes it makes the last call.
class request_registry {
 public:
  // At most this much may wait for a tokenizer; the scheduler bounds what comes after.
  struct limits {
    std::int64_t choices = 1024;
    std::size_t prompt_bytes = std::size_t{256} << 20;
  };

  using tokenize_reply_fn = std::function<void(result<tokenize_reply>)>;
  using detokenize_reply_fn = std::function<void(result<std::string>)>;
  // A reply function of either kind, waiting for its call to be worked on.
  struct pending_call {
    tokenize_reply_fn tokenized;
    detokenize_reply_fn detokenized;
    std::size_t bytes = 0;
    void fail(const error& reason) const;
  };

  explicit request_registry(limits bounds, std::int32_t replicas = 1) : bounds_(bounds), loads_(static_cast<std::size_t>(replicas)) {}

  // The refusal when the request cannot be taken: registry closed, id in use, or too much waiting.
  std::optional<error> add(request_id id, std::shared_ptr<token_sink> sink, std::int64_t choices, std::size_t prompt_bytes);
  // The request left the tokenizer for the scheduler of `replica`.
  void enter_engine(request_id id, std::int32_t replica, std::uint64_t now_ns);
  // It goes on at another replica; false when it ended before.
  bool move(request_id id, std::int32_t replica);
  std::shared_ptr<token_sink> find(request_id id) const; // null: ended
  std::shared_ptr<token_sink> take(request_id id);       // null: ended before
  // The ids of requests on this side of the tokenizer.
  std::vector<request_id> ids(bool in_engine) const;

  std::optional<error> add_call(pending_call call, std::uint64_t& number);
  std::optional<pending_call> take_call(std::uint64_t number);
  std::vector<std::uint64_t> calls() const;

  // Refuses all that comes from now on.
  void close();
  std::size_t active_requests() const;
  std::int64_t load(std::int32_t replica) const; // choices at its scheduler, of requests that have not ended
  // When the engine last went from empty to not empty; none while it is empty.
  std::optional<std::uint64_t> busy_since() const;

 private:
  struct entry {
    std::shared_ptr<token_sink> sink;
    std::int64_t choices = 0;
    std::size_t prompt_bytes = 0;
    bool in_engine = false;
    std::size_t replica = 0; // once in the engine
  };

  std::optional<error> refusal(std::int64_t choices, std::size_t prompt_bytes) const;
  void leave_queue(const entry& e);

  const limits bounds_;
  mutable std::mutex mutex_;
  std::unordered_map<request_id, entry> requests_;
  std::unordered_map<std::uint64_t, pending_call> calls_;
  std::uint64_t last_call_ = 0;
  std::int64_t queued_choices_ = 0;
  std::size_t queued_bytes_ = 0;
  std::size_t in_engine_ = 0;
  std::vector<std::int64_t> loads_; // by replica
  std::uint64_t busy_since_ns_ = 0;
  bool closed_ = false;
};

} // namespace troupe::actors
