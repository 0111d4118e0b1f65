// What a fleet is asked for: when, how much to read, how much to write.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/error.hpp"
#include "simulation/random.hpp"

namespace troupe::simulation {

struct traffic {
  double arrival_ns = 0;
  std::int32_t prompt_tokens = 0;
  std::int32_t output_tokens = 0; // at least 1
  std::uint32_t prefix = 0;       // requests of one number begin with the same tokens; 0: with nobody's
};

// Log-normal: exp(N(ln median, sigma)); or evenly from low to high when sigma is 0.
struct length_law {
  double median = 0;
  double sigma = 0;
  std::int32_t low = 1;
  std::int32_t high = 1;

  std::int32_t draw(random_source& random) const;
  double mean() const; // of the log-normal, not clipped to low and high
};

struct workload {
  length_law prompt;
  length_law output;
  double burstiness = 1;          // shape of the gamma gaps: 1 Poisson, below 1 burstier
  std::uint32_t prefixes = 0;     // how many shared prefixes there are, evenly used
  std::int32_t prefix_tokens = 0; // tokens of a shared prefix, on top of the prompt
};

// "sharegpt", "azure-conv" or "azure-code"; docs/simulation.md gives the sources of the parameters.
std::optional<workload> find_workload(std::string_view name);
// Two lengths, each "N" or "LOW:HIGH" as text.
std::optional<length_law> parse_length(std::string_view text);

// An endless stream of requests at `rate` per second.
class traffic_source {
 public:
  traffic_source(const workload& what, double rate, std::uint64_t seed) : what_(what), gap_ns_(1e9 / rate), random_(seed) {}
  traffic next();

 private:
  workload what_;
  double gap_ns_;
  random_source random_;
  double now_ns_ = 0;
};

// A trace: CSV with a header that names the columns, or JSON lines. Columns: arrival_s (or timestamp), prompt_tokens (or
// ContextTokens), output_tokens (or GeneratedTokens). Rows are sorted by arrival; the first comes at 0.
result<std::vector<traffic>> parse_trace(std::string_view text, bool json_lines);

} // namespace troupe::simulation
