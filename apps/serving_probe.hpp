// The whole serving side in this process, HTTP and a client included, and what it adds to the device's own time.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "apps/bench/load.hpp"
#include "apps/bench/recording_executor.hpp"
#include "apps/engine.hpp"
#include "transport/http/server.hpp"

namespace troupe::apps {

// How a batch of sequences that only decode goes on.
struct decode_pace {
  double step_ns = 0; // from one step's result to the next one's, midmean
  double context = 0; // tokens before a row, mean
};

class serving_probe {
 public:
  // Starts the serving side on devices that `make_executor` makes, with as many threads as `troupe serve` has by itself.
  // Throws as start_engine.
  serving_probe(const engine_options& options, actors::executor_factory make_executor);
  ~serving_probe();

  // Nanoseconds from sending one request over HTTP, while nothing else runs, to its first token at the client, less the device's steps for
  // its prompt. It decodes on after that, as most requests do. Throws std::runtime_error when the request fails.
  double request_ns(std::int32_t prompt_tokens);
  // `rows` requests at once. None when they never decoded all together and alone.
  std::optional<decode_pace> pace(std::int32_t rows, std::int32_t prompt_tokens, std::int32_t output_tokens);

 private:
  std::vector<bench::request_record> load(std::size_t requests, std::int32_t prompt_tokens, std::int32_t output_tokens);

  std::shared_ptr<bench::step_log> log_;
  std::unique_ptr<actors::serving> engine_;
  std::unique_ptr<http::server> server_;
  bench::connection_options connection_;
  std::uint64_t seed_ = 0; // of prompts: none comes twice, for the prefix cache would know it
};

} // namespace troupe::apps
