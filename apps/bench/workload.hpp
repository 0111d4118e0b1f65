// What a load run sends: JSON bodies of streamed requests. Pure: the same seed gives the same bodies.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/error.hpp"
#include "core/value.hpp"

namespace troupe::bench {

enum class endpoint : std::uint8_t { completions, chat };

struct length_range { // both ends included, at least 1
  std::int64_t low = 1;
  std::int64_t high = 1;
};

// "128" or "64:256"; none when it is neither.
std::optional<length_range> parse_range(std::string_view text);

struct workload_options {
  endpoint target = endpoint::completions;
  std::string model;
  length_range input{128, 128};   // tokens; for chat: words, as a chat takes no token ids
  length_range output{128, 128};  // max_tokens
  std::int64_t prefix_length = 0; // tokens or words that all prompts begin with, on top of `input`
  std::int64_t vocab_size = 0;    // ids are drawn from 0 .. vocab_size-1
  double temperature = 0;
  bool ignore_eos = true;
  std::uint64_t seed = 0;
};

struct planned_request {
  std::string path;
  std::string body;
  std::int64_t prompt_tokens = 0; // as far as known before it is sent, else 0
};

std::vector<planned_request> random_workload(const workload_options& options, std::size_t count);

// Prompts of a file, in its order and again from the start when it has fewer than `count`. A text file holds one prompt a line
// (empty lines are skipped). A JSONL file holds objects with "prompt" (a string) or "messages" (an array) and optionally
// "max_tokens"; a prompt becomes a user message for chat, while messages need the chat endpoint.
result<std::vector<planned_request>> file_workload(std::string_view text, bool json_lines, const workload_options& options,
                                                   std::size_t count);

} // namespace troupe::bench
