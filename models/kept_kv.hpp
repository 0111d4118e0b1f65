// A KV pool in a keeper's memory: whose it is, and what tells one pool from another.
#pragma once

#include <cstddef>
#include <optional>
#include <string>

#include "device/keeper/client.hpp"
#include "device/kv_layout.hpp"
#include "models/model.hpp"

namespace troupe {

// Where a rank's KV pool is to be kept, and whether it may be what it was.
struct kv_keeping {
  keeper::access keeper;
  std::string owner;   // which rank of which replica, of which of its models
  bool usable = false; // what an earlier process of the owner left is as that process had it; false: it may be anything
};

struct kv_pool {
  kv_layout layout;
  std::int32_t layers = 0;
  std::int32_t blocks = 0;
  std::size_t bytes = 0; // as the device holds it
};

// The pool of `source`'s model, as `device` ("cpu", or a GPU's name for good) holds it. A pool of another shape, or of other weights, is
// another region in the same slot.
keeper::region_request kept_kv_region(const weight_source& source, const std::string& device, const kv_keeping& keeping,
                                      const kv_pool& pool, keeper::memory_kind memory);

// Nobody is asked without `keeping`, and for weights of unknown origin.
keeper::claim claim_kv(const std::optional<kv_keeping>& keeping, const weight_source& source, const std::string& device,
                       const kv_pool& pool, keeper::memory_kind memory);

// Bytes that a keeper holds for this owner, which are taken from it, or given back, by its next process.
std::uint64_t kept_kv_bytes(const std::optional<kv_keeping>& keeping, const weight_source& source, const std::string& device);

// A line for the log. `found`: an earlier process's pool was there.
void tell_kv(const std::optional<kv_keeping>& keeping, std::size_t bytes, bool found, const keeper::claim& claim);

} // namespace troupe
