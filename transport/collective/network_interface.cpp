#include "transport/collective/network_interface.hpp"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>

#include <algorithm>
#include <cerrno>
#include <memory>
#include <stdexcept>
#include <system_error>
#include <vector>

namespace troupe {
namespace {

bool is_v6(const network_interface& one) { return one.address.find(':') != std::string::npos; }

// Those that are up and have an address, v4 first.
std::vector<network_interface> interfaces() {
  ifaddrs* first = nullptr;
  if (getifaddrs(&first) != 0) throw std::system_error(errno, std::generic_category(), "getifaddrs");
  const std::unique_ptr<ifaddrs, void (*)(ifaddrs*)> owner(first, freeifaddrs);
  std::vector<network_interface> found;
  for (const ifaddrs* one = first; one != nullptr; one = one->ifa_next) {
    if (one->ifa_addr == nullptr || (one->ifa_flags & IFF_UP) == 0) continue;
    char text[INET6_ADDRSTRLEN] = {};
    if (one->ifa_addr->sa_family == AF_INET) {
      inet_ntop(AF_INET, &reinterpret_cast<const sockaddr_in*>(one->ifa_addr)->sin_addr, text, sizeof text);
    } else if (one->ifa_addr->sa_family == AF_INET6) {
      const auto& v6 = reinterpret_cast<const sockaddr_in6*>(one->ifa_addr)->sin6_addr;
      if (IN6_IS_ADDR_LINKLOCAL(&v6)) continue;
      inet_ntop(AF_INET6, &v6, text, sizeof text);
    } else {
      continue;
    }
    found.push_back({one->ifa_name, text, (one->ifa_flags & IFF_LOOPBACK) != 0});
  }
  std::stable_partition(found.begin(), found.end(), [](const auto& one) { return !is_v6(one); });
  return found;
}

std::string list(const std::vector<network_interface>& all) {
  std::string text;
  for (const auto& one : all) text += (text.empty() ? "" : ", ") + one.name + " " + one.address;
  return text;
}

bool is_wildcard(const std::string& chosen) {
  in6_addr v6{};
  return chosen == "0.0.0.0" || (inet_pton(AF_INET6, chosen.c_str(), &v6) == 1 && IN6_IS_ADDR_UNSPECIFIED(&v6));
}

} // namespace

network_interface choose_interface(const std::string& chosen, bool across_nodes) {
  const auto all = interfaces();
  if (chosen.empty() || is_wildcard(chosen)) {
    throw std::invalid_argument("a group needs one interface to talk through, not '" + chosen + "'; there are " + list(all));
  }
  const auto found = std::find_if(all.begin(), all.end(), [&](const auto& one) { return one.name == chosen || one.address == chosen; });
  if (found == all.end())
    throw std::invalid_argument("no interface that is up is called, or has the address, '" + chosen + "'; there are " + list(all));
  if (found->loopback && across_nodes) {
    throw std::invalid_argument("the group has ranks on several machines, and " + found->name + " (" + found->address +
                                ") is loopback, which the others cannot reach; there are " + list(all));
  }
  return *found;
}

} // namespace troupe
