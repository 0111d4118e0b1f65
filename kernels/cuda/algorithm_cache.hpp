// Which algorithm each product uses, and the file that keeps what was measured. Plain text: a line that names the device and the libraries,
// a line a product, and a checksum of what stands before it.
#pragma once

#include <array>
#include <compare>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <optional>
#include <string>

namespace troupe::gpu {

struct product_key {
  std::int32_t type = 0, y_type = 0; // dtype
  std::int64_t out_rows = 0, columns = 0;
  bool bias = false, residual = false;
  std::int32_t rows = 0; // last, so that neighbours in order differ in rows alone

  friend auto operator<=>(const product_key&, const product_key&) = default;
};

using algorithm_words = std::array<std::uint64_t, 8>;

class algorithm_cache {
 public:
  using log_line = std::function<void(const std::string&)>;

  // Reads `file` when there is one and it is of `device`; `file` empty: nothing is kept.
  algorithm_cache(std::filesystem::path file, std::string device, const log_line& log);

  // What the file held for this product, or null.
  const algorithm_words* kept(const product_key& key) const;
  // Uses `words` for this product from now on.
  void use(const product_key& key, const algorithm_words& words) { used_[key] = words; }
  // The same for what was measured: it belongs into the file.
  void choose(const product_key& key, const algorithm_words& words);
  // What is used for this product with this many rows, or the next higher number, or the highest; null for none.
  const algorithm_words* at_least(const product_key& key) const;
  // Writes the file anew when choose() was called: to a file beside it first, which then takes its place.
  void save(const log_line& log);

 private:
  using table = std::map<product_key, algorithm_words>;
  std::optional<table> parse(const std::string& text) const;
  std::string text() const;

  std::filesystem::path file_;
  std::string device_;
  table kept_, used_;
  bool changed_ = false;
};

} // namespace troupe::gpu
