#include "apps/number_tokenizer.hpp"

#include <gtest/gtest.h>

namespace troupe::apps {
namespace {

TEST(number_tokenizer, a_token_says_its_number_and_a_text_is_its_bytes) {
  const number_tokenizer tokens(100);
  EXPECT_EQ(tokens.token_bytes(42), " 42");
  EXPECT_EQ(tokens.token_bytes(100), "");
  EXPECT_EQ(tokens.token_bytes(-1), "");
  EXPECT_EQ(tokens.decode(std::vector<token_id>{1, 2, 99}, true), " 1 2 99");
  EXPECT_EQ(tokens.encode("\x01!\xff", {}), (std::vector<token_id>{1, 33, 55})); // 255 has no token of its own among 100
  EXPECT_TRUE(tokens.eos().empty());
  EXPECT_EQ(tokens.vocab_size(), 100);
}

} // namespace
} // namespace troupe::apps
