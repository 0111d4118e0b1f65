// What a collective that failed was found to be.
#pragma once

#include <cstdint>

namespace troupe {

enum class collective_fault : std::uint8_t {
  deadline,  // a peer did not come in time: frozen, cut off, or slow
  peer_lost, // a connection broke
  aborted,   // abort() was called here or by a peer
  mismatch,  // the peers called different things, or sizes: a fault in the program
  failed,    // the library below said so
};

constexpr int collective_faults = 5; // kinds

} // namespace troupe
