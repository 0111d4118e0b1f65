// A line as a stranger might send it -> the parsers of the cluster's handshake, on the head's side and on the node's. Whatever was said, what
// is answered or logged is a line of printable ASCII; and nobody gets in by a line that was not made with the token.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>

#include "transport/cluster/handshake.hpp"

namespace {

using namespace troupe::cluster;

const std::string token = "a token of sixteen letters and more";
const std::string head_nonce(32, '0');
const identity own{"1-0123456789abcdef", "0.1.0", std::string(40, 'b')};

void require(bool holds) {
  if (!holds) std::abort();
}

bool printable(std::string_view text) {
  for (const char c : text) {
    if (c < ' ' || c > '~') return false;
  }
  return !text.empty();
}

void check_reason(const std::string& reason) { require(printable(reason) && refusal_line(reason).size() <= max_line); }

// What was parsed is made a line of, and is parsed again to the same.
void check_peer(peer_statement said) {
  const std::string line = peer_line(said);
  const auto again = parse_peer_line(std::string_view(line).substr(0, line.size() - 1));
  require(std::holds_alternative<peer_statement>(again));
  require(peer_line(std::get<peer_statement>(again)) == line);
  const std::string stranger = judge(said, token, head_nonce, own, false);
  check_reason(stranger); // the token is nowhere in the input
  said.proof = prove_peer(token, head_nonce, said);
  for (const bool any_build : {false, true}) {
    const std::string reason = judge(said, token, head_nonce, own, any_build);
    const bool same_build = said.program.version == own.version && said.program.build == own.build;
    const bool fits = said.program.protocol == own.protocol && (any_build || same_build);
    require(reason.empty() == fits);
    if (!fits) check_reason(reason);
  }
}

void head_hears(std::string_view line) {
  const auto parsed = parse_peer_line(line);
  if (const auto* wrong = std::get_if<parse_error>(&parsed)) return check_reason(wrong->reason);
  check_peer(std::get<peer_statement>(parsed));
}

void node_hears(std::string_view line) {
  const auto greeting = parse_head_line(line);
  if (const auto* wrong = std::get_if<parse_error>(&greeting)) {
    check_reason(wrong->reason);
  } else {
    const std::string said = head_line(std::get<std::string>(greeting));
    const auto again = parse_head_line(std::string_view(said).substr(0, said.size() - 1));
    require(std::holds_alternative<std::string>(again) && head_line(std::get<std::string>(again)) == said);
  }
  const auto answer = parse_answer(line);
  if (const auto* no = std::get_if<parse_error>(&answer)) return check_reason(no->reason);
  require(!same_proof(std::get<std::string>(answer), prove_head(token, head_nonce, {own, std::string(join_purpose), head_nonce, {}})));
}

} // namespace

// A line ends at the first \n, and is max_line bytes at most: the connection sees to both.
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view all(reinterpret_cast<const char*>(data), size);
  const std::string_view line = all.substr(0, all.find('\n')).substr(0, max_line - 1);
  head_hears(line);
  node_hears(line);
  return 0;
}
