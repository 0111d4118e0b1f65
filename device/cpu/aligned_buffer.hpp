// Move-only memory on cache-line borders, left as the system gives it: pages that are never touched are never taken.
#pragma once

#include <cstddef>
#include <memory>
#include <new>
#include <span>
#include <type_traits>

namespace troupe::cpu {

template <class Element>
class aligned_buffer {
  static_assert(std::is_trivially_copyable_v<Element>);

 public:
  static constexpr std::size_t alignment = 64;

  aligned_buffer() = default;
  // Throws std::bad_alloc, also when the size does not fit size_t.
  explicit aligned_buffer(std::size_t count) : size_(count) {
    if (count > static_cast<std::size_t>(-1) / sizeof(Element)) throw std::bad_array_new_length();
    if (count > 0) data_.reset(static_cast<Element*>(::operator new (count * sizeof(Element), std::align_val_t{alignment})));
  }

  Element* data() noexcept { return data_.get(); }
  const Element* data() const noexcept { return data_.get(); }
  std::size_t size() const noexcept { return size_; }
  std::span<Element> span() noexcept { return {data(), size_}; }

 private:
  struct give_back {
    void operator()(Element* memory) const noexcept { ::operator delete (memory, std::align_val_t{alignment}); }
  };
  std::unique_ptr<Element, give_back> data_;
  std::size_t size_ = 0;
};

} // namespace troupe::cpu
