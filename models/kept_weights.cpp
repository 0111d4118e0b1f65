#include "models/kept_weights.hpp"

#include <cstdio>

namespace troupe {
namespace {

// Of the manifest's head: what a line means.
constexpr int manifest_version = 1;

std::uint64_t slot_of(const weight_source& source, const std::string& device) {
  return keeper::digest(source.origin + "\n" + source.part + "\n" + device);
}

std::string text(const char* format, double number, const char* unit) {
  char line[64];
  std::snprintf(line, sizeof line, format, number, unit);
  return line;
}

} // namespace

std::string size_text(std::uint64_t bytes) {
  if (bytes < 1 << 20) return std::to_string(bytes) + " bytes";
  const double mib = static_cast<double>(bytes) / (1 << 20);
  return mib < 1024 ? text("%.1f %s", mib, "MiB") : text("%.2f %s", mib / 1024, "GiB");
}

keeper::region_request kept_region(const weight_source& source, const std::string& device, const std::string& layout, std::uint64_t bytes,
                                   keeper::memory_kind memory) {
  const std::string manifest = "troupe weights, manifest " + std::to_string(manifest_version) + "\nof " + source.origin + "\n" +
                               source.identity + "part " + source.part + "\non " + device + "\n" + layout;
  return {slot_of(source, device), manifest, bytes, memory};
}

keeper::claim claim_weights(const std::optional<keeper::access>& keep, const weight_source& source, const keeper::region_request& region) {
  return keep && !source.origin.empty() ? keeper::ask(keep->at, region) : keeper::claim();
}

std::uint64_t kept_bytes(const std::optional<keeper::access>& keep, const weight_source& source, const std::string& device) {
  if (!keep || source.origin.empty()) return 0;
  const auto counts = keeper::query(keep->at, slot_of(source, device));
  return counts ? counts->slot_bytes : 0;
}

void weight_start::tell(std::uint64_t bytes, bool mapped, const keeper::claim& claim) const {
  if (!keep_) return;
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begun_;
  const std::string seconds = text("%.3f %s", took.count(), "s"), size = "weights: " + size_text(bytes);
  if (mapped) return keep_->log(size + " kept, mapped in " + seconds);
  const bool kept = claim.now() == keeper::claim::state::to_fill;
  keep_->log(size + " loaded in " + seconds + (kept ? ", kept for the next start" : ", not kept: " + claim.reason()));
}

} // namespace troupe
