// Sums over the GPUs of a tensor parallel group, of few rows: what the ranks' products give is added up, with the residual, and normalised
// for the next product, in one kernel that writes into the peers' memory itself.
//
// Each rank puts its rows into a window of every peer, and adds up what lies in its own: one trip. A window's pieces hold `vacant`
// words until the peer's data is there, and again when they were read, so that the data itself says that it has come: no flag, no barrier,
// nothing wider than a word has to arrive at once. Calls take two buffers in turn. A rank writes a buffer anew when it has the rows of the
// call between from all its peers, which these sent after they had emptied it.
#pragma once

#include <cstddef>
#include <cstdint>

#include "core/dtype.hpp"
#include "device/cuda/handles.hpp"

namespace troupe::gpu {

inline constexpr int most_summed_ranks = 8;
inline constexpr std::int64_t most_normed_columns = 16384;

// Of one rank, in its device's memory.
struct rank_sum_state {
  std::uint32_t calls = 0;   // made so far
  std::uint32_t ended = 0;   // not 0: a call was given up, so this rank has nothing to send any more
  std::uint32_t arrived = 0; // blocks of the running call
};

struct rank_windows {
  int rank = 0, size = 1;                           // 2 to most_summed_ranks
  std::byte* of_rank[most_summed_ranks] = {};       // rank_window_bytes() of each rank's memory, as this device reaches it; on 16 bytes
  std::size_t capacity = 0;                         // bytes of one rank's rows in a call at most; a multiple of 16
  rank_sum_state* state = nullptr;                  // this rank's
  const volatile std::uint32_t* given_up = nullptr; // pinned host memory: not 0 makes waiting kernels give up
};

// Bytes of one rank's window.
std::size_t rank_window_bytes(int size, std::size_t capacity);
// Makes this rank's window and state ready for a first call. No rank may call before all have done this, and waited for it.
void clear_rank_window(cuda::stream_handle on, const rank_windows& windows);

struct rank_sum_args {
  dtype type = dtype::bf16;
  const void* part = nullptr;     // [rows][columns]: what this rank brings in
  const void* residual = nullptr; // [rows][columns] or null
  void* sum = nullptr;            // [rows][columns]: residual + the parts of all ranks; may be part or residual
  std::int32_t rows = 0;
  std::int64_t columns = 0;          // a multiple of 8; with a norm at most most_normed_columns
  const void* norm_weight = nullptr; // [columns]; null: no norm
  float epsilon = 0;
  void* normed = nullptr; // [rows][columns]: rms_norm(sum) * norm_weight, of the rounded sum
  rank_windows windows;
  bool overlaps = false; // as in linear_args
};

// The parts are added up in the order of ranks in f32, then the residual, and rounded once: the same bits on every rank. All ranks make the
// same calls in the same order, on one stream each. A call waits on the device until all peers' rows have come, or until somebody sets
// `given_up`: then it ends with sums that mean nothing, and neither it nor any later call sends anything that another rank could take for
// a sum's part. All matrices lie on 16 bytes.
void sum_over_ranks(cuda::stream_handle on, const rank_sum_args& args);

} // namespace troupe::gpu
