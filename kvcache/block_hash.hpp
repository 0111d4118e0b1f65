// The hash of a block's content and of all that is before it.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <span>
#include <string_view>

#include "core/ids.hpp"

namespace troupe {

// (hash of the block before, 0 for the first; the block's tokens; the salt) -> hash.
using block_hash = std::function<std::uint64_t(std::uint64_t, std::span<const token_id>, std::string_view)>;

// SipHash-2-4 (Aumasson and Bernstein 2012) under a secret key, so that no client can choose prompts whose hashes collide.
block_hash keyed_block_hash(std::array<std::uint64_t, 2> key);

} // namespace troupe
