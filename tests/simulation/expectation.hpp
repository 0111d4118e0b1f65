// What a client must be told, worked out from the request alone: the hash device's tokens, and the stops applied to them.
#pragma once

#include <cstdint>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

#include "core/request.hpp"
#include "core/service.hpp"
#include "core/step.hpp"

namespace troupe::test {

// A broken promise. The run stops there.
struct violation : std::logic_error {
  using std::logic_error::logic_error;
};

inline void promise(bool holds, const char* what) {
  if (!holds) throw violation(what);
}

// The hash device's next `count` tokens.
std::vector<token_id> reference_tokens(std::vector<token_id> prompt, std::int32_t count, std::uint64_t seed, std::int32_t vocab);

struct expected_choice {
  std::vector<token_id> tokens;
  std::string text;
  finish_reason finish = finish_reason::length;
  std::int32_t output_tokens = 0; // a stop token counts
};

// Choice `choice` of the prompt, whose seed is the request's plus that.
expected_choice expect(const generation_request& request, const token_prompt& prompt, const executor_info& device, std::int32_t choice);

// A client that compares each call with what it must be, and counts its ends.
class checking_sink final : public token_sink {
 public:
  checking_sink(const generation_request& request, const executor_info& device);

  void on_prompt(const prompt_report& report) override;
  void on_output(const output_chunk& chunk) override;
  void on_finished(const usage_report& usage) override;
  void on_error(const error& failure) override;

  bool ended() const { return ended_; }
  const std::optional<error>& failure() const { return failure_; }
  bool stopped_by_string() const { return stopped_by_string_; }

 private:
  struct choice {
    expected_choice expected;
    std::vector<token_id> tokens;
    std::string text;
    bool ended = false;
  };

  const generation_request request_;
  std::vector<choice> choices_;
  std::vector<bool> reported_; // prompts
  bool ended_ = false;
  bool stopped_by_string_ = false;
  std::optional<error> failure_;
};

} // namespace troupe::test
