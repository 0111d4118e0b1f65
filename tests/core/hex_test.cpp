#include "core/hex.hpp"

#include <gtest/gtest.h>

#include <array>
#include <set>

namespace troupe {
namespace {

TEST(Hex, HasTwoDigitsAByte) {
  const std::array<std::uint8_t, 4> bytes = {0x00, 0x0f, 0xa5, 0xff};
  EXPECT_EQ(hex_of(bytes), "000fa5ff");
  EXPECT_EQ(hex_of({}), "");
}

TEST(Hex, RandomTextsDiffer) {
  std::set<std::string> texts;
  for (int i = 0; i < 100; ++i) {
    texts.insert(random_hex(16));
    EXPECT_EQ(texts.begin()->size(), 32U);
  }
  EXPECT_EQ(texts.size(), 100U);
}

} // namespace
} // namespace troupe
