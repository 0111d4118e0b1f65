// The lines of the handshake: what was written is read, and what a stranger says comes back in no form that hurts.
#include "transport/cluster/handshake.hpp"

#include <gtest/gtest.h>

#include <string>
#include <string_view>

namespace troupe::cluster {
namespace {

constexpr const char* kToken = "sixteen letters and more";
const identity kProgram{"1-aa", "1.0", "build-a"};

std::string_view without_end(const std::string& line) { return std::string_view(line).substr(0, line.size() - 1); }

std::string fault(const auto& parsed) {
  const auto* wrong = std::get_if<parse_error>(&parsed);
  return wrong == nullptr ? "none" : wrong->reason;
}

TEST(handshake, each_line_is_read_as_it_was_written) {
  const std::string nonce = random_nonce();
  EXPECT_EQ(std::get<std::string>(parse_head_line(without_end(head_line(nonce)))), nonce);
  peer_statement said{kProgram, "join", random_nonce(), {}};
  said.proof = prove_peer(kToken, nonce, said);
  const auto heard = parse_peer_line(without_end(peer_line(said)));
  ASSERT_TRUE(std::holds_alternative<peer_statement>(heard)) << fault(heard);
  EXPECT_EQ(judge(std::get<peer_statement>(heard), kToken, nonce, kProgram, false), "");
  const std::string proof = prove_head(kToken, nonce, said);
  EXPECT_EQ(std::get<std::string>(parse_answer(without_end(welcome_line(proof)))), proof);
  EXPECT_EQ(fault(parse_answer(without_end(refusal_line("the hall is full")))), "the hall is full");
}

TEST(handshake, a_strangers_control_characters_reach_neither_log_nor_terminal) {
  const std::string clear_screen = "\x1b[2J\r";
  for (const std::string& line : {"troupe-cluster " + clear_screen + " a b c d e f", "troupe-cluster 1 " + clear_screen + " b c d e f",
                                  clear_screen, "troupe-cluster 1 " + clear_screen, "refused " + clear_screen, "welcome " + clear_screen}) {
    for (const std::string& reason : {fault(parse_peer_line(line)), fault(parse_head_line(line)), fault(parse_answer(line))}) {
      EXPECT_NE(reason, "none") << line;
      for (const char c : reason) EXPECT_TRUE(c >= ' ' && c <= '~') << reason;
    }
  }
}

TEST(handshake, an_answer_that_says_nothing_is_refused_with_a_reason) {
  for (const char* line : {"", "refused", "refused ", "welcome", "hello"})
    EXPECT_EQ(fault(parse_answer(line)), "this is no port of a Troupe cluster") << line;
  EXPECT_EQ(fault(parse_answer("welcome ")), "none") << "a proof that is none, as it turns out when it is compared";
}

TEST(handshake, a_refusal_is_always_a_line) {
  const std::string longest(max_word, '9'), longer(max_word + 1, '9');
  for (const std::string& version : {longest, longer}) {
    const std::string reason = fault(parse_peer_line("troupe-cluster " + version + " a b c d e f"));
    EXPECT_NE(reason, "none");
    EXPECT_LE(refusal_line(reason).size(), max_line);
  }
  peer_statement said{{longest, longest, longest}, "join", random_nonce(), {}};
  said.proof = prove_peer(kToken, "0", said);
  EXPECT_LE(refusal_line(judge(said, kToken, "0", kProgram, false)).size(), max_line);
  EXPECT_LE(refusal_line(judge(said, kToken, "0", kProgram, true)).size(), max_line);
}

} // namespace
} // namespace troupe::cluster
