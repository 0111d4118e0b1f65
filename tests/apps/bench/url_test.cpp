#include "apps/bench/url.hpp"

#include <gtest/gtest.h>

namespace troupe::bench {
namespace {

TEST(Url, PartsAreTakenApart) {
  const auto plain = parse_url("http://localhost:8000").value;
  EXPECT_EQ(plain.host, "localhost");
  EXPECT_EQ(plain.port, "8000");
  EXPECT_EQ(plain.prefix, "");
  EXPECT_EQ(plain.host_header, "localhost:8000");
  EXPECT_EQ(parse_url("http://a.b").value.port, "80");
  EXPECT_EQ(parse_url("http://a/x/y//").value.prefix, "/x/y");
  const auto six = parse_url("http://[::1]:9/").value;
  EXPECT_EQ(six.host, "::1");
  EXPECT_EQ(six.port, "9");
  EXPECT_EQ(six.host_header, "[::1]:9");
}

TEST(Url, AClientsBaseUrlDoesNotDoubleTheVersion) {
  EXPECT_EQ(parse_url("http://a:1/v1").value.prefix, "");
  EXPECT_EQ(parse_url("http://a:1/v1/").value.prefix, "");
  EXPECT_EQ(parse_url("http://a:1/gate/v1").value.prefix, "/gate");
}

TEST(Url, BadOnesSayWhy) {
  for (const char* bad :
       {"", "a:1", "ftp://a", "https://a", "http://", "http://:80", "http://a:", "http://a:0", "http://a:65536", "http://a:8x",
        "http://a b", "http://a\r\nX: y", "http://u@a", "http://a?q", "http://[::1", "http://[]", "http://[::1]8"}) {
    EXPECT_FALSE(parse_url(bad).failure.empty()) << bad;
  }
}

} // namespace
} // namespace troupe::bench
