#include "kernels/embedding.hpp"
#include "kernels/linear.hpp"
#include "kernels/parallel.hpp"

namespace troupe::cpu {

void embedding(thread_pool& pool, const embedding_args& args) {
  for_rows(pool, args.count, args.table.columns, [&args](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i) dequantise_row(args.table, args.tokens[i], args.y + i * args.y_stride);
  });
}

} // namespace troupe::cpu
