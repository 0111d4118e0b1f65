// Device memory: where big blocks come from, who holds how much, and a cache for the small ones.
#pragma once

#include <cstddef>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

namespace troupe::cuda {

// Gives out big blocks (weights, KV cache, the arenas of small buffers). The interface leaves open whose memory it is: this process's
// own, or another's that is mapped here.
class memory_source {
 public:
  virtual ~memory_source() = default;
  // At least `bytes`, aligned to 256. Throws device_error naming the amount when there is not enough.
  virtual std::byte* take(std::size_t bytes) = 0;
  virtual void give_back(std::byte* data) noexcept = 0;
};

// This process's own allocations on the current device.
std::unique_ptr<memory_source> own_memory();

struct memory_state {
  std::size_t unused = 0; // by anybody
  std::size_t whole = 0;
};
// Of the current device, as the driver counts.
memory_state device_memory();

// Bytes held, by purpose. Shared by all users of one device; safe from any thread.
class memory_ledger {
 public:
  void add(const std::string& purpose, std::size_t bytes);
  void remove(const std::string& purpose, std::size_t bytes);
  std::size_t held(const std::string& purpose) const;
  std::size_t total() const;
  // A line per purpose, the largest first, and the sum: what a refusal shows.
  std::string text() const;

 private:
  mutable std::mutex mutex_;
  std::map<std::string, std::size_t> held_;
};

// One big block (weights, KV cache), exactly as large as asked for.
class device_block {
 public:
  device_block() = default;
  // Both outlive the block. Throws device_error with the ledger's text when the source has not enough.
  device_block(memory_source& source, memory_ledger& ledger, std::size_t bytes, std::string purpose);
  ~device_block();
  device_block(device_block&& other) noexcept { swap(other); }
  device_block& operator=(device_block&& other) noexcept;

  std::byte* data() const { return data_; }
  std::size_t size() const { return size_; }

 private:
  void swap(device_block& other) noexcept;

  memory_source* source_ = nullptr;
  memory_ledger* ledger_ = nullptr;
  std::byte* data_ = nullptr;
  std::size_t size_ = 0;
  std::string purpose_;
};

// Hands out buffers and keeps what comes back for the next one of a like size, so that a step never reaches CUDA's allocator.
// A buffer that comes back may be handed out again at once: give back only what no queued work uses. Safe from any thread.
class caching_allocator {
 public:
  class buffer {
   public:
    buffer() = default;
    ~buffer() { release(); }
    buffer(buffer&& other) noexcept { swap(other); }
    buffer& operator=(buffer&& other) noexcept;

    std::byte* data() const { return data_; }
    std::size_t size() const { return size_; } // as asked for
    template <class T>
    T* as() const {
      return reinterpret_cast<T*>(data_);
    }

   private:
    friend class caching_allocator;
    void release() noexcept;
    void swap(buffer& other) noexcept;

    caching_allocator* owner_ = nullptr;
    std::byte* data_ = nullptr;
    std::size_t size_ = 0;
    std::string purpose_;
  };

  // Both outlive the allocator, which outlives its buffers.
  caching_allocator(memory_source& source, memory_ledger& ledger) : source_(source), ledger_(ledger) {}
  ~caching_allocator();
  caching_allocator(const caching_allocator&) = delete;
  caching_allocator& operator=(const caching_allocator&) = delete;

  // Throws device_error with the ledger's text when the source has not enough.
  buffer allocate(std::size_t bytes, std::string purpose);

  // The size that is really taken: a multiple of 512 bytes below 64 KiB, one of four steps between powers of two above.
  static std::size_t rounded(std::size_t bytes);

 private:
  void take_back(std::byte* data, std::size_t bytes, const std::string& purpose) noexcept;

  memory_source& source_;
  memory_ledger& ledger_;
  std::mutex mutex_;
  std::map<std::size_t, std::vector<std::byte*>> free_; // by rounded size
};

} // namespace troupe::cuda
