// Order statistics and figures of a finished load run. Pure.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace troupe::bench {

struct summary {
  std::size_t count = 0;
  double mean = 0;
  double median = 0;
  double p90 = 0;
  double p99 = 0;
  double max = 0;
};

// `q` within 0 to 1, linear between the closest ranks (position q * (n - 1)); 0 for no samples. `sorted` is ascending.
double percentile(const std::vector<double>& sorted, double q);
summary summarize(std::vector<double> samples);
// The mean of the middle half, its ends counted by the part that lies within: steadier than a median where samples have two humps, and
// no stray sample moves it. 0 for no samples.
double midmean(std::vector<double> samples);

// What one request came to. Times in seconds from the start of the run.
struct request_record {
  double due = 0;              // when the arrival process wanted it sent
  double sent = 0;             // when it was; later than due when the client was late or at its concurrency limit
  std::optional<double> first; // first event with output
  double last = 0;             // last event with output
  double ended = 0;
  std::vector<double> gaps;       // between events with output
  std::int64_t prompt_tokens = 0; // as the server counted them, else as asked for
  std::int64_t output_tokens = 0; // as the server counted them, else events with output
  std::string failure;            // a kind from a small set ("http 429", "timeout"), empty when it went well
  std::string detail;             // what the server or the system said
};

struct objectives { // milliseconds
  std::optional<double> ttft, tpot, e2el;
  bool any() const { return ttft || tpot || e2el; }
};

// Words "ttft:200", "tpot:50.5", "e2el:3000"; a message naming the bad word when one cannot be read.
struct objectives_or_error {
  objectives value;
  std::string failure;
};
objectives_or_error parse_objectives(const std::vector<std::string>& words);

double time_to_first_token(const request_record& record);                  // seconds from sent; of a record that went well
std::optional<double> time_per_output_token(const request_record& record); // none with fewer than two tokens
bool meets(const request_record& record, const objectives& wanted);

struct totals {
  double duration = 0; // first request sent to last one ended, seconds
  std::size_t completed = 0;
  std::size_t failed = 0;
  std::int64_t prompt_tokens = 0;
  std::int64_t output_tokens = 0;
  double requests_per_second = 0;
  double output_tokens_per_second = 0;
  double total_tokens_per_second = 0;
  std::optional<double> goodput; // requests per second that meet every objective
  std::size_t peak_concurrency = 0;
  std::vector<std::pair<std::string, std::size_t>> failures; // kind, count; most frequent first
  summary ttft, tpot, itl, e2el, send_delay;                 // seconds
};

totals total(const std::vector<request_record>& records, const objectives& wanted);

} // namespace troupe::bench
