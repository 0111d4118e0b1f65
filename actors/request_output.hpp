// From a request's sequence updates to the calls of its sink: text, stop strings, echo, usage, times. Knows no actors.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "actors/protocol.hpp"
#include "core/service.hpp"
#include "telemetry/metrics.hpp"
#include "telemetry/timeline.hpp"
#include "tokenizer/detokenizer.hpp"

namespace troupe::actors {

// One choice: tokens in, text out, until it ends.
class choice_output {
 public:
  choice_output(std::shared_ptr<const tokenizer> tokens, const prompt_info& prompt, const stop_conditions& stop);

  // What `update` adds. A stop string ends the choice: tokens behind it in the same update are dropped.
  output_chunk absorb(const sequence_update& update, const tokenizer& tokens, bool logprobs);
  bool ended() const { return ended_; }
  std::int32_t token_count() const { return count_; } // generated, a stop token included

  std::uint64_t first_token_ns = 0; // 0: none yet
  std::uint64_t last_token_ns = 0;

 private:
  void absorb_token(token_id token, output_chunk& chunk);
  void flush(const sequence_update& update, output_chunk& chunk);
  void scan(const std::string& text, output_chunk& chunk);

  incremental_detokenizer detokenizer_;
  stop_scanner scanner_;
  std::int32_t min_tokens_;
  std::int32_t count_ = 0;
  bool ended_ = false;
};

// One request. Its sink is called from here alone while it lives.
class request_output {
 public:
  request_output(open_request open, std::shared_ptr<const tokenizer> tokens, std::shared_ptr<token_sink> sink,
                 std::shared_ptr<telemetry::metrics> metrics);

  // True when a stop string ended the choice, so that the scheduler must be told.
  bool absorb(sequence_update& update, std::uint64_t now_ns);

  bool ended() const { return open_choices_ == 0; }
  std::optional<error> failure(const sequence_update& update) const;
  // Of the choices that the scheduler may still work on.
  std::vector<sequence_id> open_sequences() const;
  usage_report usage() const;
  telemetry::request_times times(std::uint64_t now_ns) const;
  telemetry::request_moments moments() const { return {open_.arrival_ns, scheduled_ns_, first_token_ns_}; }
  telemetry::outcome outcome() const;

 private:
  // Prompt reports that wait for no scores.
  void start();
  // A prompt whose report is not out holds its choices' chunks back.
  struct prompt_state {
    prompt_info info;
    std::vector<std::optional<position_logprobs>> scores;
    bool reported = false;
    bool counted = false;
    std::int32_t cached_tokens = 0;
    std::vector<output_chunk> held;
  };

  void absorb_scores(prompt_state& p, std::vector<token_scores>& scores);
  void report(prompt_state& p, std::int32_t index);
  // `outputs`: how many came with the update.
  void measure(const sequence_update& update, std::int32_t outputs, choice_output& c, prompt_state& p, std::uint64_t now_ns);
  void emit(prompt_state& p, output_chunk chunk);

  open_request open_;
  std::shared_ptr<const tokenizer> tokens_;
  std::shared_ptr<token_sink> sink_;
  std::shared_ptr<telemetry::metrics> metrics_;
  std::vector<prompt_state> prompts_;
  std::vector<choice_output> choices_;
  std::size_t open_choices_ = 0;
  std::uint64_t scheduled_ns_ = 0; // the earliest of all choices; 0: none
  std::uint64_t first_token_ns_ = 0;
  bool started_ = false;
  bool any_length_ = false;
};

} // namespace troupe::actors
