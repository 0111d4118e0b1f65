// A whole file mapped read-only, and small text files read whole.
#pragma once

#include <cstddef>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <utility>

namespace troupe {

// Owns the mapping. A file that shrinks while it is mapped kills the reader (SIGBUS): replace checkpoints by renaming, do not truncate
// them.
class mapped_file {
 public:
  // Throws load_error when the file cannot be opened or mapped, is no regular file or is empty.
  static std::shared_ptr<const mapped_file> open(const std::filesystem::path& path);

  mapped_file(const mapped_file&) = delete;
  mapped_file& operator=(const mapped_file&) = delete;
  ~mapped_file();

  std::span<const std::byte> bytes() const { return {data_, size_}; }
  // One line: path, size, time of the last change and inode. Another file, or one that was written anew, has another one.
  const std::string& identity() const { return identity_; }

 private:
  mapped_file(const std::byte* data, std::size_t size, std::string identity) : data_(data), size_(size), identity_(std::move(identity)) {}

  const std::byte* data_;
  std::size_t size_;
  std::string identity_;
};

// The whole file as text; throws load_error when it cannot be read or is longer than `limit` bytes.
std::string read_text_file(const std::filesystem::path& path, std::size_t limit);

} // namespace troupe
