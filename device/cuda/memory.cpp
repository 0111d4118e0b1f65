#include "device/cuda/memory.hpp"

#include <algorithm>
#include <bit>

#include "core/error.hpp"
#include "device/cuda/check.hpp"
#include "device/cuda/resources.hpp"

namespace troupe::cuda {
namespace {

class process_memory : public memory_source {
 public:
  std::byte* take(std::size_t bytes) override {
    void* data = nullptr;
    const cudaError_t status = cudaMalloc(&data, bytes);
    if (status == cudaErrorMemoryAllocation) {
      cudaGetLastError();
      const memory_state now = device_memory();
      throw device_error("no room for " + std::to_string(bytes) + " bytes on the device: " + std::to_string(now.unused) + " of " +
                         std::to_string(now.whole) + " are unused");
    }
    check(status, "cudaMalloc");
    detail::count(detail::resource::device_allocation);
    return static_cast<std::byte*>(data);
  }
  void give_back(std::byte* data) noexcept override { check_quietly(cudaFree(data), "cudaFree"); }
};

} // namespace

std::unique_ptr<memory_source> own_memory() { return std::make_unique<process_memory>(); }

memory_state device_memory() {
  memory_state now;
  check(cudaMemGetInfo(&now.unused, &now.whole), "cudaMemGetInfo");
  return now;
}

void memory_ledger::add(const std::string& purpose, std::size_t bytes) {
  const std::lock_guard lock(mutex_);
  held_[purpose] += bytes;
}

void memory_ledger::remove(const std::string& purpose, std::size_t bytes) {
  const std::lock_guard lock(mutex_);
  const auto entry = held_.find(purpose);
  if (entry != held_.end()) entry->second -= std::min(bytes, entry->second);
}

std::size_t memory_ledger::held(const std::string& purpose) const {
  const std::lock_guard lock(mutex_);
  const auto entry = held_.find(purpose);
  return entry == held_.end() ? 0 : entry->second;
}

std::size_t memory_ledger::total() const {
  const std::lock_guard lock(mutex_);
  std::size_t sum = 0;
  for (const auto& [purpose, bytes] : held_) sum += bytes;
  return sum;
}

std::string memory_ledger::text() const {
  std::vector<std::pair<std::size_t, std::string>> lines;
  std::size_t sum = 0;
  {
    const std::lock_guard lock(mutex_);
    for (const auto& [purpose, bytes] : held_) lines.emplace_back(bytes, purpose), sum += bytes;
  }
  std::sort(lines.begin(), lines.end(),
            [](const auto& a, const auto& b) { return a.first != b.first ? a.first > b.first : a.second < b.second; });
  std::string text;
  for (const auto& [bytes, purpose] : lines) text += purpose + ": " + std::to_string(bytes) + " bytes\n";
  return text + "in all: " + std::to_string(sum) + " bytes\n";
}

namespace {

std::byte* take_or_explain(memory_source& source, std::size_t bytes, const std::string& purpose, const memory_ledger& ledger) {
  try {
    return source.take(bytes);
  } catch (const device_error& error) {
    throw device_error(std::string(error.what()) + ", wanted for " + purpose + "\n" + ledger.text());
  }
}

} // namespace

device_block::device_block(memory_source& source, memory_ledger& ledger, std::size_t bytes, std::string purpose)
    : source_(&source), ledger_(&ledger), data_(take_or_explain(source, bytes, purpose, ledger)), size_(bytes), purpose_(std::move(purpose)) {
  ledger.add(purpose_, bytes);
}

device_block::~device_block() {
  if (data_ == nullptr) return;
  source_->give_back(data_);
  ledger_->remove(purpose_, size_);
}

device_block& device_block::operator=(device_block&& other) noexcept {
  swap(other);
  return *this;
}

void device_block::swap(device_block& other) noexcept {
  std::swap(source_, other.source_);
  std::swap(ledger_, other.ledger_);
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  purpose_.swap(other.purpose_);
}

caching_allocator::buffer& caching_allocator::buffer::operator=(buffer&& other) noexcept {
  swap(other);
  return *this;
}

void caching_allocator::buffer::swap(buffer& other) noexcept {
  std::swap(owner_, other.owner_);
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  purpose_.swap(other.purpose_);
}

void caching_allocator::buffer::release() noexcept {
  if (owner_ != nullptr) owner_->take_back(data_, size_, purpose_);
  owner_ = nullptr;
}

std::size_t caching_allocator::rounded(std::size_t bytes) {
  constexpr std::size_t fine = 512, fine_until = std::size_t{64} << 10;
  const std::size_t step = bytes <= fine_until ? fine : std::bit_floor(bytes - 1) / 4;
  return std::max(fine, (bytes + step - 1) / step * step);
}

caching_allocator::~caching_allocator() {
  for (const auto& [bytes, blocks] : free_) {
    for (std::byte* block : blocks) {
      source_.give_back(block);
      ledger_.remove("cached", bytes);
    }
  }
}

caching_allocator::buffer caching_allocator::allocate(std::size_t bytes, std::string purpose) {
  const std::size_t size = rounded(bytes);
  buffer out;
  {
    const std::lock_guard lock(mutex_);
    std::vector<std::byte*>& blocks = free_[size];
    if (!blocks.empty()) {
      out.data_ = blocks.back();
      blocks.pop_back();
      ledger_.remove("cached", size);
    }
  }
  if (out.data_ == nullptr) out.data_ = take_or_explain(source_, size, purpose, ledger_);
  out.owner_ = this;
  out.size_ = bytes;
  out.purpose_ = std::move(purpose);
  ledger_.add(out.purpose_, size);
  return out;
}

void caching_allocator::take_back(std::byte* data, std::size_t bytes, const std::string& purpose) noexcept {
  const std::size_t size = rounded(bytes);
  ledger_.remove(purpose, size);
  try {
    const std::lock_guard lock(mutex_);
    free_[size].push_back(data);
    ledger_.add("cached", size);
  } catch (...) { // no host memory to remember it by
    source_.give_back(data);
  }
}

} // namespace troupe::cuda
