#include "simulation/workload.hpp"

#include <gtest/gtest.h>

#include <algorithm>

namespace troupe::simulation {
namespace {

TEST(Workload, LengthsAndGapsHaveTheirMeansAndMedians) {
  for (const char* name : {"sharegpt", "azure-conv", "azure-code"}) {
    workload w = *find_workload(name);
    w.burstiness = 0.5;
    traffic_source source(w, 100, 7);
    std::vector<double> prompts, outputs;
    double last = 0;
    for (int i = 0; i < 40000; ++i) {
      const traffic t = source.next();
      prompts.push_back(t.prompt_tokens);
      outputs.push_back(t.output_tokens);
      EXPECT_GT(t.arrival_ns, last);
      last = t.arrival_ns;
    }
    std::sort(prompts.begin(), prompts.end());
    std::sort(outputs.begin(), outputs.end());
    EXPECT_NEAR(prompts[20000] / w.prompt.median, 1, 0.03) << name;
    EXPECT_NEAR(outputs[20000] / w.output.median, 1, 0.05) << name;
    EXPECT_NEAR(last / 1e9, 400, 12) << name; // 40,000 at 100 a second
  }
  EXPECT_FALSE(find_workload("nonsense"));
}

TEST(Workload, LengthsAreReadAsNumbersOrRanges) {
  EXPECT_EQ(parse_length("128")->low, 128);
  EXPECT_EQ(parse_length("64:256")->high, 256);
  for (const char* bad : {"", "0", "-1", "9:3", "1:2:3", "a", "1e3"}) EXPECT_FALSE(parse_length(bad)) << bad;
}

TEST(Trace, CsvAndJsonLinesGiveTheSameRequests) {
  const auto csv =
      parse_trace("TIMESTAMP,ContextTokens,GeneratedTokens\r\n2023-11-16 18:15:47.5,30,4\n2023-11-16 18:15:46.5,10,2\n", false);
  const auto lines = parse_trace(
      "{\"arrival_s\": 7, \"prompt_tokens\": 10, \"output_tokens\": 2}\n\n"
      "{\"arrival_s\": 8, \"prompt_tokens\": 30, \"output_tokens\": 4}",
      true);
  ASSERT_TRUE(csv && lines);
  for (const auto& trace : {*csv, *lines}) {
    ASSERT_EQ(trace.size(), 2U);
    EXPECT_EQ(trace[0].prompt_tokens, 10);
    EXPECT_EQ(trace[1].output_tokens, 4);
    EXPECT_EQ(trace[0].arrival_ns, 0);
    EXPECT_NEAR(trace[1].arrival_ns, 1e9, 1);
  }
}

TEST(Trace, ABadLineIsNamed) {
  for (const char* bad :
       {"", "arrival_s,prompt_tokens,output_tokens\n", "arrival_s,prompt_tokens\n1,2\n", "arrival_s,prompt_tokens,output_tokens\n1,0,4\n",
        "arrival_s,prompt_tokens,output_tokens\nx,1,4\n", "arrival_s,prompt_tokens,output_tokens\n1,1e30,4\n"}) {
    EXPECT_FALSE(parse_trace(bad, false)) << bad;
  }
  EXPECT_NE(parse_trace("{\"arrival_s\": 1, \"prompt_tokens\": 1, \"output_tokens\": 1}\n[]\n", true).failure().message.find("line 2"),
            std::string::npos);
}

} // namespace
} // namespace troupe::simulation
