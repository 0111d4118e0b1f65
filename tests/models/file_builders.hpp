// Small weight files made in memory, byte by byte, valid or not; and a folder that goes away.
#pragma once

#include <stdlib.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "core/error.hpp"

namespace troupe::test_files {

inline std::span<const std::byte> as_bytes(const std::string& text) {
  return {reinterpret_cast<const std::byte*>(text.data()), text.size()};
}

template <class T>
void append_number(std::string& out, T number) {
  static_assert(std::is_arithmetic_v<T>);
  out.append(reinterpret_cast<const char*>(&number), sizeof number);
}

// A safetensors file from its header's text and its data.
inline std::string safetensors(std::string_view header, std::string_view data = "") {
  std::string out;
  append_number(out, std::uint64_t{header.size()});
  out += header;
  out += data;
  return out;
}

// Appends GGUF pieces; the counts of the header are given beforehand so that they can lie.
class gguf_builder {
 public:
  gguf_builder(std::uint64_t tensors, std::uint64_t pairs, std::uint32_t version = 3) {
    text = "GGUF";
    number(version).number(tensors).number(pairs);
  }

  template <class T>
  gguf_builder& number(T value) {
    append_number(text, value);
    return *this;
  }
  gguf_builder& string(std::string_view value) {
    number(std::uint64_t{value.size()});
    text += value;
    return *this;
  }
  gguf_builder& u32(std::string_view key, std::uint32_t value) { return string(key).number(std::uint32_t{4}).number(value); }
  gguf_builder& i32(std::string_view key, std::int32_t value) { return string(key).number(std::uint32_t{5}).number(value); }
  gguf_builder& f32(std::string_view key, float value) { return string(key).number(std::uint32_t{6}).number(value); }
  gguf_builder& text_pair(std::string_view key, std::string_view value) { return string(key).number(std::uint32_t{8}).string(value); }
  // Innermost dimension first, as in the file.
  gguf_builder& tensor(std::string_view name, const std::vector<std::uint64_t>& dims, std::uint32_t type, std::uint64_t offset) {
    string(name).number(static_cast<std::uint32_t>(dims.size()));
    for (std::uint64_t dim : dims) number(dim);
    return number(type).number(offset);
  }
  gguf_builder& pad(std::size_t alignment = 32) {
    while (text.size() % alignment != 0) text += '\0';
    return *this;
  }
  gguf_builder& zeros(std::size_t count) {
    text.append(count, '\0');
    return *this;
  }
  std::span<const std::byte> bytes() const { return as_bytes(text); }

  std::string text;
};

class temporary_folder {
 public:
  temporary_folder() {
    std::string pattern = (std::filesystem::temp_directory_path() / "troupe-models-XXXXXX").string();
    path_ = ::mkdtemp(pattern.data());
  }
  temporary_folder(const temporary_folder&) = delete;
  temporary_folder& operator=(const temporary_folder&) = delete;
  ~temporary_folder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  const std::filesystem::path& path() const { return path_; }
  void write(const std::string& name, std::string_view text) const {
    std::ofstream(path_ / name, std::ios::binary).write(text.data(), static_cast<std::streamsize>(text.size()));
  }

 private:
  std::filesystem::path path_;
};

// what() of the load_error that `action` throws; empty when it throws none.
template <class Action>
std::string load_failure(Action&& action) {
  try {
    std::forward<Action>(action)();
  } catch (const load_error& failure) {
    return failure.what();
  }
  return {};
}

} // namespace troupe::test_files
