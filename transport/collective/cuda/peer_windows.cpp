#include "transport/collective/cuda/peer_windows.hpp"

#include <cuda_runtime_api.h>

#include <array>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <utility>

#include "device/cuda/check.hpp"
#include "transport/collective/host_exchange.hpp"
#include "transport/collective/nccl_settings.hpp"

namespace troupe::cuda {
namespace {

using bus_id = std::array<char, 32>; // of a GPU, as "0000:1b:00.0"

bus_id bus_of(int device) {
  bus_id id{};
  check(cudaDeviceGetPCIBusId(id.data(), static_cast<int>(id.size()), device), "cudaDeviceGetPCIBusId");
  return id;
}

// Why a kernel on `device` cannot write to a peer's memory; empty: it can.
std::string objection_to(int device, const bus_id& peers) {
  const std::string name = "the GPU at " + std::string(peers.data());
  int peer = 0;
  if (cudaDeviceGetByPCIBusId(&peer, peers.data()) != cudaSuccess) {
    cudaGetLastError(); // an answer, not a fault
    return name + " is not visible to this process";
  }
  if (peer == device) return name + " is another rank's too";
  int reaches = 0, over_nvlink = 0;
  check(cudaDeviceCanAccessPeer(&reaches, device, peer), "cudaDeviceCanAccessPeer");
  if (reaches == 0) return name + " cannot be reached";
  check(cudaDeviceGetP2PAttribute(&over_nvlink, cudaDevP2PAttrNativeAtomicSupported, device, peer), "cudaDeviceGetP2PAttribute");
  return over_nvlink != 0 ? std::string() : name + " is not reached over NVLink";
}

std::string objection_of(communicator& host, int device) {
  const std::string forbidden = forbids_peer_memory([](const char* name) { return std::getenv(name); });
  const bus_id mine = bus_of(device);
  std::vector<bus_id> all(static_cast<std::size_t>(host.size()));
  constexpr std::size_t words = sizeof(bus_id) / sizeof(std::int32_t);
  std::array<std::int32_t, words> said{};
  std::memcpy(said.data(), mine.data(), sizeof mine);
  host.all_gather({said.data(), words, dtype::i32}, {all.data(), all.size() * words, dtype::i32});
  if (!forbidden.empty()) return forbidden + " forbids it";
  for (std::size_t rank = 0; rank < all.size(); ++rank) {
    if (rank == static_cast<std::size_t>(host.rank())) continue;
    const std::string objection = objection_to(device, all[rank]);
    if (!objection.empty()) return objection;
  }
  return {};
}

std::vector<shared_block> make_and_map(communicator& host, std::size_t bytes, int device, std::chrono::milliseconds patience,
                                       std::string& objection) {
  std::vector<shared_block> blocks(static_cast<std::size_t>(host.size()));
  shared_block& mine = blocks[static_cast<std::size_t>(host.rank())];
  keeper::file_descriptor file;
  try {
    mine = shared_block::make(bytes, device);
    file = mine.share();
  } catch (const std::exception& e) {
    objection = e.what();
  }
  objection = first_objection(host, objection);
  if (!objection.empty()) return {};
  try {
    const auto files = exchange_files(host, file, patience);
    for (std::size_t rank = 0; rank < files.size(); ++rank) {
      if (files[rank]) blocks[rank] = shared_block::map(files[rank], bytes, device);
    }
  } catch (const collective_error&) {
    throw;
  } catch (const std::exception& e) {
    objection = e.what();
  }
  objection = first_objection(host, objection);
  return objection.empty() ? std::move(blocks) : std::vector<shared_block>();
}

} // namespace

std::unique_ptr<peer_windows> peer_windows::open(communicator& host, std::size_t bytes, std::chrono::milliseconds patience,
                                                 std::string& objection) {
  int device = 0;
  check(cudaGetDevice(&device), "cudaGetDevice");
  objection = first_objection(host, objection_of(host, device));
  if (!objection.empty()) return nullptr;
  std::vector<shared_block> blocks = make_and_map(host, bytes, device, patience, objection);
  if (!objection.empty()) return nullptr;
  return std::unique_ptr<peer_windows>(new peer_windows(host.rank(), std::move(blocks)));
}

peer_windows::peer_windows(int rank, std::vector<shared_block> blocks) : rank_(rank), blocks_(std::move(blocks)), word_(pinned_.next()) {
  std::memset(word_, 0, sizeof(std::uint32_t));
}

} // namespace troupe::cuda
