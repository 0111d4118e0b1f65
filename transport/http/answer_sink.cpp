#include "transport/http/answer_sink.hpp"

#include <utility>

namespace troupe::http {

namespace {

bool is_failure(const output_chunk& chunk) { return chunk.finish == finish_reason::failed || chunk.finish == finish_reason::cancelled; }

error failure_of(finish_reason reason) {
  if (reason == finish_reason::cancelled) return {error_kind::cancelled, "the request was cancelled", "", std::nullopt};
  return {error_kind::internal, "generation failed", "", std::nullopt};
}

// Runs `work` and turns whatever it throws into the answer's end: a sink's calls must not throw.
template <class Work>
void guarded(reply_channel& channel, Work&& work) noexcept {
  try {
    try {
      if (channel.is_open()) work();
    } catch (const std::exception&) {
      channel.fail({error_kind::internal, "the answer could not be built", "", std::nullopt});
    }
  } catch (...) { // no memory even for that: the connection's end will tell
  }
}

class base_sink : public token_sink {
 public:
  explicit base_sink(std::shared_ptr<reply_channel> channel) : channel_(std::move(channel)) {}

  void on_output(const output_chunk& chunk) final {
    guarded(*channel_, [&] {
      if (is_failure(chunk)) {
        channel_->fail(failure_of(*chunk.finish));
      } else if (!output(chunk)) {
        channel_->fail({error_kind::internal, "output for a choice that was not asked for", "", std::nullopt});
      }
    });
  }
  void on_error(const error& failure) final {
    guarded(*channel_, [&] { channel_->fail(failure); });
  }

 protected:
  virtual bool output(const output_chunk& chunk) = 0;

  const std::shared_ptr<reply_channel> channel_;
};

class whole_sink final : public base_sink {
 public:
  whole_sink(answer_head head, std::shared_ptr<reply_channel> channel) : base_sink(std::move(channel)), answer_(std::move(head)) {}

  void on_prompt(const prompt_report& report) override {
    guarded(*channel_, [&] { answer_.prompt(report); });
  }
  void on_finished(const usage_report& usage) override {
    guarded(*channel_, [&] {
      reply out;
      out.body = answer_.finish(usage);
      channel_->answer(std::move(out));
    });
  }

 private:
  bool output(const output_chunk& chunk) override { return answer_.output(chunk); }

  whole_answer answer_;
};

class stream_sink final : public base_sink {
 public:
  stream_sink(answer_head head, std::shared_ptr<reply_channel> channel) : base_sink(std::move(channel)), writer_(std::move(head)) {}

  void on_prompt(const prompt_report& report) override {
    guarded(*channel_, [&] {
      events_.clear();
      writer_.prompt(report, events_);
      channel_->stream(events_);
    });
  }
  void on_finished(const usage_report& usage) override {
    guarded(*channel_, [&] {
      events_.clear();
      writer_.finish(usage, events_);
      channel_->end_stream(events_);
    });
  }

 private:
  bool output(const output_chunk& chunk) override {
    events_.clear();
    const bool known = writer_.output(chunk, events_);
    if (!events_.empty()) channel_->stream(events_);
    return known;
  }

  event_writer writer_;
  std::string events_; // reused: a token costs no allocation here
};

} // namespace

std::shared_ptr<token_sink> make_answer_sink(answer_head head, bool stream, std::shared_ptr<reply_channel> channel) {
  if (stream) return std::make_shared<stream_sink>(std::move(head), std::move(channel));
  return std::make_shared<whole_sink>(std::move(head), std::move(channel));
}

} // namespace troupe::http
