#include "transport/cluster/handshake.hpp"

#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>

#include <algorithm>
#include <array>
#include <stdexcept>
#include <vector>

#include "core/hex.hpp"

namespace troupe::cluster {

namespace {

constexpr std::string_view protocol_name = "troupe-cluster";
constexpr std::string_view protocol_number = "1";
constexpr std::string_view yes = "welcome ";
constexpr std::string_view no = "refused ";
constexpr const char* no_port_of_ours = "this is no port of a Troupe cluster";

bool printable(std::string_view line) {
  return std::all_of(line.begin(), line.end(), [](char c) { return c >= ' ' && c <= '~'; });
}

std::vector<std::string> words_of(std::string_view line) {
  std::vector<std::string> words;
  while (!line.empty()) {
    const std::size_t end = std::min(line.find(' '), line.size());
    words.emplace_back(line.substr(0, end));
    line.remove_prefix(std::min(end + 1, line.size()));
  }
  return words;
}

// What is wrong with a line that should begin with our protocol and have so many words.
std::string fault_of(const std::vector<std::string>& words, std::size_t count) {
  if (words.empty() || words[0] != protocol_name) return no_port_of_ours;
  for (const std::string& word : words) {
    if (word.empty() || word.size() > max_word || !printable(word)) {
      return "a word of the handshake is empty, longer than " + std::to_string(max_word) + " bytes, or not printable";
    }
  }
  if (words.size() > 1 && words[1] != protocol_number) {
    return "one side speaks protocol " + std::string(protocol_number) + " of clusters, the other " + words[1];
  }
  return words.size() == count ? std::string() : "a line of the handshake has " + std::to_string(words.size()) + " words";
}

std::string prove(const std::string& token, std::string_view who, const std::string& head_nonce, const peer_statement& said) {
  std::string text(who);
  for (const std::string* part :
       {&head_nonce, &said.nonce, &said.program.protocol, &said.program.version, &said.program.build, &said.purpose}) {
    text += "\n" + *part;
  }
  std::array<unsigned char, EVP_MAX_MD_SIZE> digest{};
  unsigned size = 0;
  if (HMAC(EVP_sha256(), token.data(), static_cast<int>(token.size()), reinterpret_cast<const unsigned char*>(text.data()), text.size(),
           digest.data(), &size) == nullptr) {
    throw std::runtime_error("HMAC-SHA256 failed");
  }
  return hex_of({digest.data(), size});
}

} // namespace

std::string random_nonce() { return random_hex(16); }

std::string head_line(const std::string& nonce) {
  return std::string(protocol_name) + " " + std::string(protocol_number) + " " + nonce + "\n";
}

std::variant<std::string, parse_error> parse_head_line(std::string_view line) {
  const auto words = words_of(line);
  if (std::string fault = fault_of(words, 3); !fault.empty()) return parse_error{std::move(fault)};
  return words[2];
}

std::string peer_line(const peer_statement& said) {
  return std::string(protocol_name) + " " + std::string(protocol_number) + " " + said.program.protocol + " " + said.program.version + " " +
         said.program.build + " " + said.purpose + " " + said.nonce + " " + said.proof + "\n";
}

std::variant<peer_statement, parse_error> parse_peer_line(std::string_view line) {
  const auto words = words_of(line);
  if (std::string fault = fault_of(words, 8); !fault.empty()) return parse_error{std::move(fault)};
  return peer_statement{{words[2], words[3], words[4]}, words[5], words[6], words[7]};
}

std::string welcome_line(const std::string& proof) { return std::string(yes) + proof + "\n"; }

std::string refusal_line(const std::string& reason) { return std::string(no) + reason + "\n"; }

std::variant<std::string, parse_error> parse_answer(std::string_view line) {
  if (!printable(line)) return parse_error{no_port_of_ours};
  if (line.starts_with(no) && line.size() > no.size()) return parse_error{std::string(line.substr(no.size()))};
  if (line.starts_with(yes)) return std::string(line.substr(yes.size()));
  return parse_error{no_port_of_ours};
}

std::string prove_peer(const std::string& token, const std::string& head_nonce, const peer_statement& said) {
  return prove(token, "peer", head_nonce, said);
}

std::string prove_head(const std::string& token, const std::string& head_nonce, const peer_statement& said) {
  return prove(token, "head", head_nonce, said);
}

bool same_proof(const std::string& a, const std::string& b) {
  return a.size() == b.size() && CRYPTO_memcmp(a.data(), b.data(), a.size()) == 0;
}

std::string judge(const peer_statement& said, const std::string& token, const std::string& head_nonce, const identity& own,
                  bool any_build) {
  if (!same_proof(said.proof, prove_peer(token, head_nonce, said))) return "the token is not this cluster's";
  if (said.program.version != own.version && !any_build) {
    return "the node runs Troupe " + said.program.version + ", the cluster " + own.version;
  }
  if (said.program.build != own.build && !any_build) {
    return "the node runs another build of Troupe " + own.version + " (" + said.program.build + ") than the cluster (" + own.build + ")";
  }
  if (said.program.protocol != own.protocol) {
    return "the node speaks protocol " + said.program.protocol + " (Troupe " + said.program.version + "), the cluster " + own.protocol +
           " (Troupe " + own.version + ")";
  }
  return {};
}

} // namespace troupe::cluster
