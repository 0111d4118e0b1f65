#include <algorithm>
#include <limits>
#include <stdexcept>
#include <string>

#include "kernels/linear/blocks.hpp"
#include "kernels/linear/packed.hpp"

namespace troupe::cpu::detail {

namespace {

bool is_supported(dtype type) { return is_quantised(type) || type == dtype::f32 || type == dtype::f16 || type == dtype::bf16; }

void check_view(const weight_view& view, std::int64_t columns) {
  const auto fail = [](const std::string& what) { throw std::invalid_argument("linear: " + what); };
  const dtype_traits kind = traits(view.type);
  if (!is_supported(view.type)) fail("weights of type " + std::string(kind.name) + " cannot be multiplied");
  if (view.data == nullptr) fail("a weight has no data");
  if (view.rows <= 0 || view.columns <= 0) fail("a weight of " + std::to_string(view.rows) + " x " + std::to_string(view.columns));
  if (view.columns != columns) {
    fail("stacked weights have " + std::to_string(columns) + " and " + std::to_string(view.columns) + " columns");
  }
  if (view.columns % static_cast<std::int64_t>(kind.block_elems) != 0) {
    fail(std::to_string(view.columns) + " columns are not a multiple of " + std::string(kind.name) + "'s block");
  }
  // The packed form takes at most 8 bytes an element, padding of rows aside.
  if (view.rows > std::numeric_limits<std::int64_t>::max() / 16 - plain_panel_rows ||
      view.columns > std::numeric_limits<std::int64_t>::max() / 8 / (view.rows + plain_panel_rows)) {
    fail("a weight of " + std::to_string(view.rows) + " x " + std::to_string(view.columns) + " is too large");
  }
}

// Rows are cut into tiles of kernels.tile_rows, the rest into smaller powers of two; so every tile's size is a power of two, and the
// quantised rows before row r (a multiple of tile_rows, or a tile boundary of the rest) take r rows' bytes.
std::int64_t tile_at(std::int64_t row, std::int64_t count, std::int64_t largest) {
  std::int64_t size = largest;
  while (size > count - row) size /= 2;
  return size;
}

int log2_of_tile(std::int64_t size) { return size >= 8 ? 3 : size >= 4 ? 2 : size >= 2 ? 1 : 0; }

// A thread's buffer for quantised activations; only grows, and lives as long as the thread.
unsigned char* scratch(std::size_t size) {
  thread_local aligned_bytes buffer;
  thread_local std::size_t capacity = 0;
  if (size > capacity) {
    buffer = nullptr;
    capacity = 0;
    buffer = allocate_aligned(size);
    capacity = size;
  }
  return buffer.get();
}

constexpr std::int64_t cache_budget = std::int64_t{1} << 20; // of activations, to stay in a core's second-level cache
constexpr std::int64_t least_work = 1 << 15;                 // multiplications that are worth a thread's attention

} // namespace

struct packed_linear::call {
  const float* x;
  std::int64_t x_stride;
  std::int64_t count;
  float* y;
  std::int64_t y_stride;
  bool accumulate;
  const unsigned char* activations[2]; // per 32, per 256; null when no part needs them
};

packed_linear::packed_linear(std::span<const weight_view> views, std::span<const std::vector<float>> biases, const kernel_set& kernels,
                             thread_pool* pool, weight_place place)
    : kernels_(&kernels) {
  if (views.empty()) throw std::invalid_argument("linear: no weights");
  if (!biases.empty() && biases.size() != views.size()) throw std::invalid_argument("linear: the numbers of biases and weights differ");
  columns_ = views.front().columns;
  for (std::size_t i = 0; i < views.size(); ++i) {
    check_view(views[i], columns_);
    if (!biases.empty() && !biases[i].empty() && static_cast<std::int64_t>(biases[i].size()) != views[i].rows) {
      throw std::invalid_argument("linear: a bias has " + std::to_string(biases[i].size()) + " entries for " +
                                  std::to_string(views[i].rows) + " rows");
    }
  }
  for (std::size_t i = 0; i < views.size(); ++i) {
    const std::span<const float> bias = biases.empty() ? std::span<const float>{} : std::span<const float>(biases[i]);
    parts_.push_back({packed_matrix(views[i], bias, pool, place), rows_, panels_});
    if (place.memory != nullptr) place.memory += parts_.back().matrix.bytes();
    rows_ += views[i].rows;
    panels_ += parts_.back().matrix.panels();
    if (is_quantised(views[i].type)) needs_[shape_of(views[i].type).super_blocks ? 1 : 0] = true;
  }
}

std::size_t packed_linear::bytes() const {
  std::size_t sum = 0;
  for (const part& p : parts_) sum += p.matrix.bytes();
  return sum;
}

std::size_t packed_linear::bytes_of(std::span<const weight_view> views) {
  std::size_t sum = 0;
  for (const weight_view& view : views) sum += packed_layout(view).size;
  return sum;
}

// Rows [first_row, end_row) times one panel; first_row is a tile boundary.
void packed_linear::run_panel(const call& args, std::int64_t panel, std::int64_t first_row, std::int64_t end_row) const {
  const auto after = std::upper_bound(parts_.begin(), parts_.end(), panel, [](std::int64_t p, const part& q) { return p < q.first_panel; });
  const part& owner = *(after - 1);
  const packed_matrix& matrix = owner.matrix;
  const std::int64_t index = panel - owner.first_panel;
  tile_job job{};
  matrix.describe_panel(index, job);
  job.x_stride = args.x_stride;
  job.columns = columns_;
  job.y_stride = args.y_stride;
  job.accumulate = args.accumulate;
  float* const y = args.y + owner.first_output + index * matrix.panel_rows();
  const unsigned char* const activations =
      is_quantised(matrix.type()) ? args.activations[shape_of(matrix.type()).super_blocks ? 1 : 0] : nullptr;
  const auto& tiles = kernels_->tiles[static_cast<int>(matrix.type())];
  for (std::int64_t row = first_row; row < end_row;) {
    const std::int64_t size = tile_at(row, args.count, kernels_->tile_rows);
    job.x = args.x + row * args.x_stride;
    if (activations != nullptr) job.activations = activations + row * (columns_ / 32) * activation_bytes_per_row;
    job.y = y + row * args.y_stride;
    tiles[log2_of_tile(size)](job);
    row += size;
  }
}

void packed_linear::apply(thread_pool& pool, const float* x, std::int64_t x_stride, std::int64_t count, float* y, std::int64_t y_stride,
                          bool accumulate) const {
  if (count <= 0) return;
  call args{x, x_stride, count, y, y_stride, accumulate, {nullptr, nullptr}};
  const std::int64_t largest = kernels_->tile_rows;
  const std::int64_t row_size = columns_ / 32 * activation_bytes_per_row;
  const std::int64_t kinds = (needs_[0] ? 1 : 0) + (needs_[1] ? 1 : 0);
  unsigned char* out = kinds == 0 ? nullptr : scratch(static_cast<std::size_t>(kinds * count * row_size));
  for (int kind = 0; kind < 2; ++kind) {
    if (!needs_[kind]) continue;
    args.activations[kind] = out;
    const auto quantise = [&](std::int64_t begin, std::int64_t end) { // both multiples of `largest`, but maybe the end
      for (std::int64_t row = begin; row < end;) {
        const std::int64_t size = tile_at(row, count, largest);
        kernels_->quantise({x + row * x_stride, x_stride, size, columns_, kind == 1, out + row * row_size});
        row += size;
      }
    };
    pool.run(count, std::max(largest, least_work / 2 / columns_ / largest * largest), quantise);
    out += count * row_size;
  }

  // Tasks are (block of rows, panel), panels innermost: the block's activations stay in cache while weights stream by.
  const std::int64_t bytes_per_row = kinds == 0 ? columns_ * 4 : row_size;
  const std::int64_t fit = std::max<std::int64_t>(1, cache_budget / bytes_per_row / largest) * largest;
  const std::int64_t blocks_wanted = std::max<std::int64_t>((count - 1) / fit + 1, 4 * pool.size() / panels_);
  const std::int64_t block_rows = ((count - 1) / blocks_wanted / largest + 1) * largest;
  const std::int64_t blocks = (count - 1) / block_rows + 1;
  const std::int64_t work = columns_ * quant_panel_rows * std::min(count, block_rows);
  pool.run(blocks * panels_, std::max<std::int64_t>(1, least_work / work), [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t task = begin; task < end; ++task) {
      const std::int64_t first = task / panels_ * block_rows;
      run_panel(args, task % panels_, first, std::min(count, first + block_rows));
    }
  });
}

} // namespace troupe::cpu::detail
