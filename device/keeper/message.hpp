// What the keeper and its clients say to each other: one struct of fixed size per packet of a Unix socket (SOCK_SEQPACKET), with files
// beside it where the kind says so. Both ends run on one machine, so numbers are the machine's own.
//
//   claim  -> complete + files                      the region is there
//          -> fill, then seal + files -> sealed     the region is the client's to make
//          -> wait .. wait, then one of the above   another client makes it, or has it on lease; said again every second
//
// A constant region is filled, sealed and never written again; any number of clients have it at a time. A leased one is written by one
// client at a time, which seals it before it writes (its size alone cannot change any more) and has it as long as its socket is open.
//
//   query  -> counts
//   anything that does not fit -> refused with a reason, and the end of the connection
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace troupe::keeper {

inline constexpr std::uint32_t protocol_magic = 0x6b725054;
inline constexpr std::uint16_t protocol_version = 2; // beside the magic for ever, so that each side can tell the other's

enum class message_kind : std::uint16_t { claim, seal, query, complete, fill, wait, sealed, counts, refused };
enum class region_use : std::uint16_t { constant, leased };
enum class memory_kind : std::uint16_t { host, cuda }; // a memfd; a POSIX handle of cuMemExportToShareableHandle

struct message {
  std::uint32_t magic = protocol_magic;
  std::uint16_t version = protocol_version;
  message_kind kind = message_kind::query;
  memory_kind memory = memory_kind::host;
  region_use use = region_use::constant; // a claim's
  std::uint16_t unused[2] = {};
  std::uint64_t slot = 0;       // what a newer region takes the place of
  std::uint64_t name = 0;       // which region
  std::uint64_t bytes = 0;      // of the region; in counts, what the slot's complete region takes of memory
  std::uint64_t kept_bytes = 0; // counts: of all complete constant regions ..
  std::uint64_t regions = 0;    // .. their number ..
  std::uint64_t handed_out = 0; // .. how often one was given to a client ..
  std::uint64_t sealed = 0;     // .. and how often one was made, since the keeper began
  char token[40] = {};          // a client's
  char reason[208] = {};        // refused: one line
};
inline constexpr std::size_t files_per_region = 2; // the memory, and its manifest: a sealed memfd of text

inline constexpr std::uint64_t most_region_bytes = std::uint64_t{1} << 46;
inline constexpr std::uint64_t most_manifest_bytes = std::uint64_t{16} << 20;

// FNV-1a, 64 bits: for names that only find candidates.
constexpr std::uint64_t digest(std::string_view text) {
  std::uint64_t hash = 0xcbf29ce484222325U;
  for (const char c : text) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3U;
  return hash;
}

} // namespace troupe::keeper
