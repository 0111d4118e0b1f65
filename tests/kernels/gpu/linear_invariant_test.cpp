// Batch-invariant products: any number of rows, and a row's bits are those of the path of 33 to 128 rows, which linear_test compares with
// the reference.
#include <functional>
#include <string>

#include "device/cpu/kv_storage.hpp"
#include "kernels/linear_gpu.hpp"
#include "kernels/rope.hpp"
#include "tests/kernels/gpu/gpu_testing.hpp"

namespace troupe {
namespace {

class gpu_invariant_linear_test : public test::gpu_op_test {
 protected:
  // y of `rows` rows of x from `first` on, by an op; y is poisoned before.
  using op_fn = std::function<void(gpu::linear_args args, std::int32_t first)>;

  struct inputs {
    std::int32_t rows;
    std::int64_t outputs, columns, width; // width: of y
    buffer x, weight, bias, residual;
  };

  inputs make(std::int32_t rows, std::int64_t outputs, std::int64_t columns, std::int64_t width) {
    const auto halves_of = [&](std::int64_t count) { return upload(narrow(dtype::bf16, normal(static_cast<std::size_t>(count)))); };
    return {rows,
            outputs,
            columns,
            width,
            halves_of(rows * columns),
            halves_of(outputs * columns),
            halves_of(outputs),
            halves_of(rows * width)};
  }

  test::halves run(const inputs& in, std::int32_t first, std::int32_t rows, bool invariant, bool bias, std::size_t element,
                   const op_fn& op) {
    const buffer y = poisoned_halves(static_cast<std::size_t>(rows * in.width) * element / 2);
    gpu::linear_args args;
    args.type = dtype::bf16;
    args.weight = in.weight.data();
    args.out_rows = in.outputs;
    args.columns = args.x_stride = in.columns;
    args.x = in.x.data() + first * in.columns * 2;
    args.rows = rows;
    args.bias = bias ? in.bias.data() : nullptr;
    args.y = y.data();
    args.y_stride = in.width;
    args.batch_invariant = invariant;
    op(args, first);
    return download<std::uint16_t>(y);
  }

  // Cuts of `in`, alone, against all rows at once; and those that the other path takes against that path.
  void expect_invariant(const inputs& in, bool bias, std::size_t element, const op_fn& op) {
    const std::size_t width = static_cast<std::size_t>(in.width) * element / 2; // in halves
    const test::halves whole = run(in, 0, in.rows, true, bias, element, op);
    const auto part_of_whole = [&](std::int32_t first, std::int32_t rows) {
      const auto begin = whole.begin() + static_cast<std::ptrdiff_t>(static_cast<std::size_t>(first) * width);
      return test::halves(begin, begin + static_cast<std::ptrdiff_t>(static_cast<std::size_t>(rows) * width));
    };
    for (std::int32_t first = 0; first < in.rows; first += 100) {
      const std::int32_t rows = std::min(100, in.rows - first);
      if (rows <= 32) continue;
      ASSERT_EQ(run(in, first, rows, false, bias, element, op), part_of_whole(first, rows)) << "the path of 33 to 128 rows";
    }
    for (const std::int32_t rows : {1, 2, 8, 9, 40, 64, 65, 128, 129, 200, 256}) {
      if (rows > in.rows) continue;
      const auto first = static_cast<std::int32_t>(between(0, in.rows - rows));
      ASSERT_EQ(run(in, first, rows, true, bias, element, op), part_of_whole(first, rows)) << rows << " rows from " << first << " on";
    }
  }
};

// Tiles of 64, 128 and 224 rows of W; several rounds of units, and fewer units than multiprocessors; rows, outputs and columns that end
// inside a block.
struct product_shape {
  std::int32_t rows;
  std::int64_t outputs, columns;
};
constexpr product_shape shapes[] = {{300, 576, 576},   {700, 4096, 512}, {257, 12000, 1032}, {130, 29000, 264},
                                    {513, 1032, 2056}, {128, 333, 40},   {1000, 2304, 1024}, {384, 6144, 4096}};

TEST_F(gpu_invariant_linear_test, plain_residual_and_f32_results) {
  for (const product_shape& s : shapes) {
    SCOPED_TRACE(::testing::Message() << s.rows << " x " << s.outputs << " x " << s.columns);
    const inputs in = make(s.rows, s.outputs, s.columns, s.outputs + 8 - s.outputs % 8);
    expect_invariant(in, true, 2, [&](const gpu::linear_args& args, std::int32_t) { gpu::linear(stream(), args); });
    expect_invariant(in, false, 4, [&](const gpu::linear_args& args, std::int32_t) { gpu::linear_to_f32(stream(), args); });
    expect_invariant(in, false, 2, [&](const gpu::linear_args& args, std::int32_t first) {
      gpu::linear_residual(stream(), args, in.residual.data() + first * in.width * 2);
    });
  }
}

TEST_F(gpu_invariant_linear_test, swiglu) {
  for (const product_shape& s : {product_shape{300, 2 * 1200, 2048}, {700, 2 * 14000, 128}, {130, 2 * 40, 4104}, {257, 2 * 264, 264}}) {
    SCOPED_TRACE(::testing::Message() << s.rows << " x " << s.outputs << " x " << s.columns);
    const inputs in = make(s.rows, s.outputs, s.columns, s.outputs / 2);
    expect_invariant(in, false, 2, [&](const gpu::linear_args& args, std::int32_t) { gpu::linear_swiglu(stream(), args); });
  }
}

// Rows find their tables by number, or each has its own: both must write the same cache.
TEST_F(gpu_invariant_linear_test, qkv_with_tables_of_slots) {
  constexpr std::int32_t rows = 300, heads = 6, kv_heads = 2, head_dim = 64, block_size = 16, slots = 7, stride = 3;
  constexpr std::int64_t queries = heads * head_dim, outputs = queries + 2 * kv_heads * head_dim;
  rope_table table(std::vector<double>(head_dim / 2, 0.3), 1.0);
  table.reserve(stride * block_size);
  const auto angles = static_cast<std::size_t>(table.size() * table.view().pairs);
  const buffer cos = upload(std::vector<float>(table.view().cos, table.view().cos + angles)),
               sin = upload(std::vector<float>(table.view().sin, table.view().sin + angles));
  std::vector<std::int32_t> slot_tables, positions, slot_of, row_tables; // blocks of their own, so that no two rows meet in the cache
  for (std::int32_t i = 0; i < slots * stride; ++i) slot_tables.push_back(slots * stride - 1 - i);
  for (std::int32_t r = 0; r < rows; ++r) {
    slot_of.push_back(r % slots);
    positions.push_back(r / slots);
    row_tables.insert(row_tables.end(), slot_tables.begin() + r % slots * stride, slot_tables.begin() + (r % slots + 1) * stride);
  }
  const kv_layout layout{dtype::bf16, block_size, kv_heads, head_dim};
  const std::size_t cache_halves = slots * stride * layout.block_bytes() / 2;
  const inputs in = make(rows, outputs, 1024, queries);
  const buffer device_positions = upload(positions), device_slots = upload(slot_of), by_slot = upload(slot_tables),
               by_row = upload(row_tables);
  const auto ints = [](const buffer& b) { return reinterpret_cast<const std::int32_t*>(b.data()); };
  const auto op = [&](const buffer& cache, bool of_slots) {
    return [&, of_slots](const gpu::linear_args& args, std::int32_t first) {
      gpu::qkv_args qkv;
      qkv.heads = heads;
      qkv.places = {ints(device_positions) + first, of_slots ? ints(by_slot) : ints(by_row) + first * stride, stride};
      qkv.table = {reinterpret_cast<const float*>(cos.data()), reinterpret_cast<const float*>(sin.data())};
      qkv.kv = {layout, cache.data()};
      qkv.tables = of_slots ? ints(device_slots) + first : nullptr;
      gpu::linear_qkv(stream(), args, qkv);
    };
  };
  const buffer whole = poisoned_halves(cache_halves), cut = poisoned_halves(cache_halves), other = poisoned_halves(cache_halves);
  expect_invariant(in, true, 2, op(cut, true));
  const test::halves y = run(in, 0, rows, true, true, 2, op(whole, true));
  for (std::int32_t first = 0; first < rows; first += 100) {
    const test::halves some = run(in, first, 100, false, true, 2, op(other, false));
    ASSERT_EQ(some, test::halves(y.begin() + first * queries, y.begin() + (first + 100) * queries));
  }
  const test::halves right = download<std::uint16_t>(other);
  EXPECT_EQ(download<std::uint16_t>(whole), right);
  EXPECT_EQ(download<std::uint16_t>(cut), right);
}

TEST_F(gpu_invariant_linear_test, a_norm_is_refused) {
  gpu::linear_args args;
  args.rows = 1;
  args.out_rows = args.columns = args.x_stride = 16;
  args.norm_weight = &args;
  args.batch_invariant = true;
  EXPECT_THROW(gpu::linear(stream(), args), std::invalid_argument);
}

} // namespace
} // namespace troupe
