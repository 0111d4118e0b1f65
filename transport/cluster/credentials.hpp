// Who belongs to a cluster: who knows its token, who has a certificate of its own authority, or both.
#pragma once

#include <filesystem>
#include <string>

namespace troupe::cluster {

struct credentials {
  std::string token;                                 // the same on all machines; empty: certificates alone decide
  std::filesystem::path certificate, key, authority; // PEM; all three (mutual TLS) or none (nothing is encrypted)

  bool tls() const { return !authority.empty(); }
};

// Throws std::invalid_argument where anybody could join: neither token nor certificates, a token of fewer than 16 characters, certificates
// without an authority that they are judged by.
void check_credentials(const credentials& who);

// May a port be opened, or a peer be talked to, at `address` (numeric)? Beyond loopback only under mutual TLS, unless `trusted_network`
// says that whoever can listen in may. Throws std::invalid_argument.
void check_exposure(const std::string& address, const credentials& who, bool trusted_network);

bool is_loopback(const std::string& address); // numeric

// The first line of a file, without blanks at its ends. Throws std::invalid_argument.
std::string read_token(const std::filesystem::path& file);

} // namespace troupe::cluster
