// Random weights at the speed of memory: a pool of random elements per matrix width is laid end to end over each matrix. The pool's
// length is prime, so rows do not repeat in step with any matrix.
#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <thread>
#include <vector>

#include "core/half.hpp"
#include "models/checkpoint.hpp"
#include "models/config_fields.hpp"
#include "models/load_check.hpp"
#include "models/parameters.hpp"

namespace troupe {

namespace {

constexpr std::size_t kPoolBlocks = 1'048'573;       // prime; elements of plain types
constexpr std::size_t kPoolQuantBlocks = 65'521;     // prime; blocks of quantised types
constexpr std::size_t kChunk = std::size_t{4} << 20; // bytes that a thread fills at a time
constexpr std::size_t kAlignment = 64;

// SplitMix64 (Steele, Lea, Flood: Fast splittable pseudorandom number generators, 2014).
class random_bits {
 public:
  explicit random_bits(std::uint64_t seed) : state_(seed) {}
  std::uint64_t next() {
    std::uint64_t z = (state_ += 0x9e3779b97f4a7c15U);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9U;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebU;
    return z ^ (z >> 31);
  }
  // Uniform in [-1, 1).
  float symmetric() { return static_cast<float>(static_cast<std::int64_t>(next()) >> 40) * 0x1p-23F; }

 private:
  std::uint64_t state_;
};

void put_f16(std::span<std::byte> block, std::size_t at, float number) {
  const std::uint16_t bits = float_to_half(number);
  std::memcpy(block.data() + at, &bits, sizeof bits);
}

// A block of random bits becomes a valid one once its scales are numbers: set so that weights have the standard deviation
// `spread` and a mean of 0. Quants are uniform: the divisors below are their standard deviations, for K types together with the
// 6-bit (or 8-bit) scales inside the block. Quants without an offset have a mean of -1/2, so there the sign of d is random.
// Layouts: ggml-common.h.
void set_scales(dtype type, std::span<std::byte> block, float spread) {
  const auto scale_and_offset = [&](std::size_t at, float divisor, float offset) {
    put_f16(block, at, spread / divisor);
    put_f16(block, at + 2, spread / divisor * offset);
  };
  const auto signed_scale = [&](std::size_t at, float divisor) {
    const bool negative = (std::to_integer<unsigned>(block[at]) & 1U) != 0; // still random here
    put_f16(block, at, (negative ? -spread : spread) / divisor);
  };
  switch (type) {
    case dtype::q4_0:
      signed_scale(0, 4.61F);
      break; // d (q - 8)
    case dtype::q5_0:
      signed_scale(0, 9.23F);
      break; // d (q - 16)
    case dtype::q8_0:
      signed_scale(0, 73.9F);
      break; // d q
    case dtype::q4_1:
      scale_and_offset(0, 4.61F, -7.5F);
      break; // d q + m
    case dtype::q5_1:
      scale_and_offset(0, 9.23F, -15.5F);
      break; // d q + m
    case dtype::q4_k:
      scale_and_offset(0, 256.7F, 7.5F);
      break; // d s q - dmin m
    case dtype::q5_k:
      scale_and_offset(0, 523.6F, 15.5F);
      break; // d s q - dmin m
    case dtype::q6_k:
      signed_scale(208, 1367.0F);
      break; // d s (q - 32)
    default:
      break;
  }
}

// Elements (or blocks) with standard deviation `spread`.
std::vector<std::byte> make_pool(dtype type, float spread, std::uint64_t seed) {
  const std::size_t unit = traits(type).block_bytes;
  std::vector<std::byte> pool((is_quantised(type) ? kPoolQuantBlocks : kPoolBlocks) * unit);
  random_bits random(seed);
  const float reach = spread * std::sqrt(3.0F); // of a uniform distribution
  for (std::size_t at = 0; at < pool.size(); at += unit) {
    const std::span<std::byte> block(pool.data() + at, unit);
    if (is_quantised(type)) {
      for (std::size_t i = 0; i < unit; i += 8) {
        const std::uint64_t bits = random.next();
        std::memcpy(block.data() + i, &bits, std::min<std::size_t>(8, unit - i));
      }
      set_scales(type, block, spread);
      continue;
    }
    const float number = reach * random.symmetric();
    const std::uint16_t half = type == dtype::f16 ? float_to_half(number) : float_to_bfloat16(number);
    std::memcpy(block.data(), type == dtype::f32 ? static_cast<const void*>(&number) : &half, unit);
  }
  return pool;
}

// Fills `target` with the pool, over and over, from its byte `start` on.
void lay(std::span<std::byte> target, const std::vector<std::byte>& pool, std::size_t start) {
  std::size_t from = start;
  for (std::size_t done = 0; done < target.size();) {
    const std::size_t count = std::min(target.size() - done, pool.size() - from);
    std::memcpy(target.data() + done, pool.data() + from, count);
    done += count;
    from = 0;
  }
}

class anonymous_memory {
 public:
  explicit anonymous_memory(std::size_t size) : size_(size) {
    void* data = ::mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (data == MAP_FAILED) fail_load("dummy weights", "", "no memory for " + std::to_string(size) + " bytes");
    data_ = static_cast<std::byte*>(data);
  }
  anonymous_memory(const anonymous_memory&) = delete;
  anonymous_memory& operator=(const anonymous_memory&) = delete;
  ~anonymous_memory() { ::munmap(data_, size_); }
  std::byte* data() const { return data_; }

 private:
  std::byte* data_ = nullptr;
  std::size_t size_;
};

// Random elements to be laid over the matrices of one width.
struct pool_plan {
  dtype type;
  float spread;
  std::uint64_t seed;

  std::size_t bytes() const { return (is_quantised(type) ? kPoolQuantBlocks : kPoolBlocks) * traits(type).block_bytes; }
};

struct fill_job {
  std::span<std::byte> target;
  std::int64_t columns; // which pool
  std::size_t start;    // byte in the pool
};

// All matrices of a model, filled at the first call of make().
class dummy_storage {
 public:
  explicit dummy_storage(std::size_t bytes) : memory_(bytes) {}

  std::byte* data() const { return memory_.data(); }
  void make() {
    std::call_once(made_, [this] { run_jobs(); });
  }

  std::map<std::int64_t, pool_plan> pools; // by columns, which set the spread
  std::vector<fill_job> jobs;

 private:
  void run_jobs() const {
    std::map<std::int64_t, std::vector<std::byte>> elements;
    for (const auto& [columns, pool] : pools) elements[columns] = make_pool(pool.type, pool.spread, pool.seed);
    std::atomic<std::size_t> next{0};
    const auto work = [&] {
      for (std::size_t i = next++; i < jobs.size(); i = next++) lay(jobs[i].target, elements.at(jobs[i].columns), jobs[i].start);
    };
    std::vector<std::jthread> helpers;
    const std::size_t wanted = std::min<std::size_t>(jobs.size() / 2, std::max(1U, std::thread::hardware_concurrency()));
    for (std::size_t i = 1; i < wanted; ++i) helpers.emplace_back(work);
    work();
  }

  anonymous_memory memory_;
  std::once_flag made_;
};

std::size_t matrix_bytes(const parameter& item, dtype type) {
  if (item.columns % static_cast<std::int64_t>(traits(type).block_elems) != 0) {
    fail_load("dummy weights", item.hugging_face,
              "rows of " + std::to_string(item.columns) + " elements are no whole number of " + std::string(traits(type).name) + " blocks");
  }
  const auto bytes = checked_multiply(static_cast<std::size_t>(item.rows), row_bytes(type, static_cast<std::size_t>(item.columns)));
  if (!bytes) fail_load("dummy weights", item.hugging_face, "its size overflows");
  return *bytes;
}

// Norms lie round 1 and biases round 0.
void fill_vector(const parameter& item, std::vector<float>& target, random_bits& random) {
  const bool norm = item.hugging_face.ends_with("norm.weight");
  target.resize(static_cast<std::size_t>(item.columns));
  for (float& number : target) number = (norm ? 1.0F : 0.0F) + (norm ? 0.1F : 0.02F) * random.symmetric();
}

} // namespace

model_weights plan_dummy_weights(const model_config& config, dtype type, std::uint64_t seed) {
  check_config(config, "dummy weights");
  if (!is_quantised(type) && type != dtype::f32 && type != dtype::f16 && type != dtype::bf16) {
    fail_load("dummy weights", "", std::string(traits(type).name) + " is no type of weights");
  }
  model_weights weights;
  weights.config = config;
  const std::vector<parameter> parameters = list_parameters(weights);
  std::size_t total = 0;
  for (const parameter& item : parameters) {
    if (!item.is_matrix()) continue;
    const auto sum = checked_add(total, matrix_bytes(item, type) + kAlignment);
    if (!sum) fail_load("dummy weights", item.hugging_face, "the total size overflows");
    total = *sum;
  }
  auto memory = std::make_shared<dummy_storage>(total);

  random_bits random(seed);
  std::size_t used = 0;
  for (const parameter& item : parameters) {
    if (!item.is_matrix()) {
      fill_vector(item, *std::get<std::vector<float>*>(item.target), random);
      weights.total_bytes += static_cast<std::size_t>(item.columns) * sizeof(float);
      continue;
    }
    auto [pool, fresh] = memory->pools.try_emplace(item.columns);
    if (fresh) pool->second = {type, 1.0F / std::sqrt(static_cast<float>(item.columns)), random.next()};
    const std::size_t bytes = matrix_bytes(item, type);
    const std::size_t unit = traits(type).block_bytes;
    const std::size_t pool_bytes = pool->second.bytes(), shift = random.next() % (pool_bytes / unit) * unit;
    for (std::size_t at = 0; at < bytes; at += kChunk) {
      memory->jobs.push_back({{memory->data() + used + at, std::min(kChunk, bytes - at)}, item.columns, (shift + at) % pool_bytes});
    }
    *std::get<weight_view*>(item.target) = {type, item.rows, item.columns, memory->data() + used};
    weights.total_bytes += bytes;
    used += (bytes + kAlignment - 1) / kAlignment * kAlignment;
  }
  if (config.tied_head) weights.head = weights.embedding;
  weights.source.origin = "dummy weights of " + std::to_string(total) + " bytes";
  weights.source.identity = "seed " + std::to_string(seed) + "\n";
  weights.source.make = [storage = memory.get()] { storage->make(); };
  weights.storage = std::move(memory);
  return weights;
}

model_weights make_dummy_weights(const model_config& config, dtype type, std::uint64_t seed) {
  model_weights weights = plan_dummy_weights(config, type, seed);
  weights.source.make();
  return weights;
}

} // namespace troupe
