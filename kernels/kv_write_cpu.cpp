#include "core/half.hpp"
#include "kernels/attention.hpp"
#include "kernels/parallel.hpp"

namespace troupe::cpu {
namespace {

template <dtype Type>
auto narrow(float x) {
  if constexpr (Type == dtype::f16)
    return float_to_half(x);
  else if constexpr (Type == dtype::bf16)
    return float_to_bfloat16(x);
  else
    return x;
}

template <dtype Type>
void write_row(const kv_write_args& args, const attention_span& span, std::int64_t row) {
  using element = decltype(narrow<Type>(0.0F));
  const kv_layout& layout = args.kv.layout;
  const std::int64_t position = span.first_position + row;
  const block_id block = span.blocks[position / layout.block_size];
  const std::int64_t at = position % layout.block_size;
  const std::int64_t from = (span.first_row + row) * args.stride;
  for (std::int32_t head = 0; head < layout.kv_heads; ++head) {
    element* keys = reinterpret_cast<element*>(args.kv.head(block, head));
    element* values = keys + layout.head_elements() + at * layout.head_dim;
    const float* key = args.key + from + std::int64_t{head} * layout.head_dim;
    const float* value = args.value + from + std::int64_t{head} * layout.head_dim;
    for (std::int64_t i = 0; i < layout.head_dim; ++i) keys[i * layout.block_size + at] = narrow<Type>(key[i]);
    for (std::int64_t i = 0; i < layout.head_dim; ++i) values[i] = narrow<Type>(value[i]);
  }
}

template <dtype Type>
void write_all(thread_pool& pool, const kv_write_args& args) {
  for (const attention_span& span : args.spans) {
    for_rows(pool, span.rows, 8 * args.kv.layout.kv_heads * args.kv.layout.head_dim, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t row = begin; row < end; ++row) write_row<Type>(args, span, row);
    });
  }
}

} // namespace

void kv_write(thread_pool& pool, const kv_write_args& args) {
  switch (args.kv.layout.type) {
    case dtype::f16:
      return write_all<dtype::f16>(pool, args);
    case dtype::bf16:
      return write_all<dtype::bf16>(pool, args);
    default:
      return write_all<dtype::f32>(pool, args);
  }
}

} // namespace troupe::cpu
