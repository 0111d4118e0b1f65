#include "transport/cluster/credentials.hpp"

#include <boost/asio/ip/address.hpp>
#include <fstream>
#include <stdexcept>

namespace troupe::cluster {

namespace {

constexpr std::size_t shortest_token = 16;

} // namespace

void check_credentials(const credentials& who) {
  const bool any = !who.certificate.empty() || !who.key.empty() || !who.authority.empty();
  const bool all = !who.certificate.empty() && !who.key.empty() && !who.authority.empty();
  if (any && !all) {
    throw std::invalid_argument(
        "a cluster's TLS needs its certificate, its key and the authority that both sides are judged by, all three: without one of them "
        "anybody could be at the other end");
  }
  if (who.token.empty() && !all) throw std::invalid_argument("a cluster needs a token that its machines know, or certificates");
  if (!who.token.empty() && who.token.size() < shortest_token) {
    throw std::invalid_argument("a cluster's token needs at least " + std::to_string(shortest_token) + " characters; this one has " +
                                std::to_string(who.token.size()));
  }
}

bool is_loopback(const std::string& address) {
  boost::system::error_code bad;
  const auto parsed = boost::asio::ip::make_address(address, bad);
  if (bad) return false;
  if (parsed.is_v6() && parsed.to_v6().is_v4_mapped()) {
    return boost::asio::ip::make_address_v4(boost::asio::ip::v4_mapped, parsed.to_v6()).is_loopback();
  }
  return parsed.is_loopback();
}

void check_exposure(const std::string& address, const credentials& who, bool trusted_network) {
  if (who.tls() || trusted_network || is_loopback(address)) return;
  throw std::invalid_argument(address +
                              " is not loopback, and without certificates a cluster's traffic is open to whoever can listen in or "
                              "step between: give --cluster-cert, --cluster-key and --cluster-ca, or say --cluster-insecure-network");
}

std::string read_token(const std::filesystem::path& file) {
  std::ifstream in(file);
  std::string line;
  if (!in || !std::getline(in, line)) throw std::invalid_argument("cannot read a token from " + file.string());
  const auto first = line.find_first_not_of(" \t\r");
  if (first == std::string::npos) throw std::invalid_argument("the first line of " + file.string() + " is blank; a token was expected");
  return line.substr(first, line.find_last_not_of(" \t\r") - first + 1);
}

} // namespace troupe::cluster
