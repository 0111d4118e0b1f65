// What is said on a connection before it carries anything else. Lines of printable ASCII, each at most max_line bytes, their words at most
// max_word:
//
//   head  troupe-cluster 1 NONCE
//   peer  troupe-cluster 1 PROTOCOL VERSION BUILD PURPOSE NONCE PROOF
//   head  welcome PROOF                                         or: refused SENTENCE
//
// A proof is the HMAC-SHA256, under the cluster's token, of who says it, both nonces and all that the peer said: neither side learns the
// token, no proof is of use on another connection, and each is sure of the other. PURPOSE is "probe" (nothing follows), "join" (to the
// actor of the cluster), or the port of a group that awaits its ranks.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <variant>

namespace troupe::cluster {

inline constexpr std::size_t max_line = 512;
inline constexpr std::size_t max_word = 100; // so that a sentence about what somebody said is a line
inline constexpr std::string_view probe_purpose = "probe";
inline constexpr std::string_view join_purpose = "join";

// Which program speaks, in words without blanks.
struct identity {
  std::string protocol; // of what is said later: programs of different ones do not understand each other
  std::string version;
  std::string build; // of the compiled program
};

struct peer_statement {
  identity program;
  std::string purpose, nonce, proof;
};

std::string random_nonce(); // 128 bits, hexadecimal

std::string head_line(const std::string& nonce);
// The nonce, or what is wrong with the line. A reason is fit for a log and for a line, whatever was said.
struct parse_error {
  std::string reason;
};
std::variant<std::string, parse_error> parse_head_line(std::string_view line);

std::string peer_line(const peer_statement& said);
std::variant<peer_statement, parse_error> parse_peer_line(std::string_view line);

std::string welcome_line(const std::string& proof);
std::string refusal_line(const std::string& reason);
// The head's proof; or why it refuses, or what is wrong with the line.
std::variant<std::string, parse_error> parse_answer(std::string_view line);

std::string prove_peer(const std::string& token, const std::string& head_nonce, const peer_statement& said);
std::string prove_head(const std::string& token, const std::string& head_nonce, const peer_statement& said);
bool same_proof(const std::string& a, const std::string& b); // in constant time

// Why a peer is not let in; empty when it is. `any_build`: another version or build will do, if it speaks the same protocol.
std::string judge(const peer_statement& said, const std::string& token, const std::string& head_nonce, const identity& own, bool any_build);

} // namespace troupe::cluster
