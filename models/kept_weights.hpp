// Weights in a keeper's memory: what tells one region from another, who asks for it, and what the log says of a start.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>

#include "device/keeper/client.hpp"
#include "models/model.hpp"

namespace troupe {

// The weights of `source` as `device` holds them ("cpu", or a GPU's name for good), laid out as the lines of `layout` say. What an earlier
// version of the same checkpoint left on the same device is in the same slot.
keeper::region_request kept_region(const weight_source& source, const std::string& device, const std::string& layout, std::uint64_t bytes,
                                   keeper::memory_kind memory);

// Nobody is asked without `keep`, and for weights of unknown origin.
keeper::claim claim_weights(const std::optional<keeper::access>& keep, const weight_source& source, const keeper::region_request& region);

// Bytes that a keeper holds for these weights, and that are not taken anew by who maps them.
std::uint64_t kept_bytes(const std::optional<keeper::access>& keep, const weight_source& source, const std::string& device);

// "1.25 GiB".
std::string size_text(std::uint64_t bytes);

// Measures a start from the claim on; tell() once the weights can be read.
class weight_start {
 public:
  explicit weight_start(const std::optional<keeper::access>& keep) : keep_(keep) {}
  // `mapped`: they were there already. `claim`: as it is after sealing.
  void tell(std::uint64_t bytes, bool mapped, const keeper::claim& claim) const;

 private:
  const std::optional<keeper::access>& keep_;
  std::chrono::steady_clock::time_point begun_ = std::chrono::steady_clock::now();
};

} // namespace troupe
