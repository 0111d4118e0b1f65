#include "models/kept_kv.hpp"

#include "models/kept_weights.hpp"

namespace troupe {
namespace {

// Of the manifest's head: what a line means, and how a block's bytes lie.
constexpr int manifest_version = 1;

std::uint64_t slot_of(const weight_source& source, const std::string& device, const kv_keeping& keeping) {
  return keeper::digest("KV\n" + source.origin + "\n" + source.part + "\n" + device + "\n" + keeping.owner);
}

std::string shape_text(const kv_pool& pool) {
  return std::to_string(pool.layers) + " layers of " + std::to_string(pool.blocks) + " blocks of " + std::to_string(pool.layout.block_size) +
         " tokens, " + std::to_string(pool.layout.kv_heads) + " heads of " + std::to_string(pool.layout.head_dim) + " " +
         std::string(traits(pool.layout.type).name);
}

} // namespace

keeper::region_request kept_kv_region(const weight_source& source, const std::string& device, const kv_keeping& keeping,
                                      const kv_pool& pool, keeper::memory_kind memory) {
  const std::string manifest = "troupe KV, manifest " + std::to_string(manifest_version) + "\nof " + keeping.owner + "\nof " +
                               source.origin + "\n" + source.identity + "part " + source.part + "\non " + device + "\n" +
                               shape_text(pool) + "\n";
  return {slot_of(source, device, keeping), manifest, pool.bytes, memory, keeper::region_use::leased};
}

keeper::claim claim_kv(const std::optional<kv_keeping>& keeping, const weight_source& source, const std::string& device,
                       const kv_pool& pool, keeper::memory_kind memory) {
  if (!keeping || source.origin.empty()) return {};
  return keeper::ask(keeping->keeper.at, kept_kv_region(source, device, *keeping, pool, memory));
}

std::uint64_t kept_kv_bytes(const std::optional<kv_keeping>& keeping, const weight_source& source, const std::string& device) {
  if (!keeping || source.origin.empty()) return 0;
  const auto counts = keeper::query(keeping->keeper.at, slot_of(source, device, *keeping));
  return counts ? counts->slot_bytes : 0;
}

void tell_kv(const std::optional<kv_keeping>& keeping, std::size_t bytes, bool found, const keeper::claim& claim) {
  if (!keeping) return;
  const std::string kv = "KV cache: " + size_text(bytes);
  if (found) return keeping->keeper.log(kv + (keeping->usable ? " kept" : " kept, but not its content: the device failed"));
  const bool kept = claim.now() == keeper::claim::state::to_fill;
  keeping->keeper.log(kv + (kept ? ", kept from here on" : ", not kept: " + claim.reason()));
}

} // namespace troupe
