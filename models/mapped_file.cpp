#include "models/mapped_file.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <fstream>
#include <system_error>

#include "models/load_check.hpp"

namespace troupe {

namespace {

class file_handle {
 public:
  explicit file_handle(int descriptor) : descriptor_(descriptor) {}
  file_handle(const file_handle&) = delete;
  file_handle& operator=(const file_handle&) = delete;
  ~file_handle() {
    if (descriptor_ >= 0) ::close(descriptor_);
  }
  int get() const { return descriptor_; }

 private:
  int descriptor_;
};

std::string system_reason(std::string_view what) {
  return std::string(what) + ": " + std::error_code(errno, std::generic_category()).message();
}

std::string identity_of(const std::filesystem::path& path, const struct stat& status) {
  return "file " + path.string() + " size " + std::to_string(status.st_size) + " modified " + std::to_string(status.st_mtim.tv_sec) + "." +
         std::to_string(status.st_mtim.tv_nsec) + " inode " + std::to_string(status.st_dev) + ":" + std::to_string(status.st_ino) + "\n";
}

} // namespace

std::shared_ptr<const mapped_file> mapped_file::open(const std::filesystem::path& path) {
  // O_NONBLOCK: a FIFO in place of the file must not hang the open.
  const file_handle file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (file.get() < 0) fail_load(path.string(), "", system_reason("cannot open"));
  struct stat status {};
  if (::fstat(file.get(), &status) != 0) fail_load(path.string(), "", system_reason("cannot stat"));
  if (!S_ISREG(status.st_mode)) fail_load(path.string(), "", "not a regular file");
  if (status.st_size <= 0) fail_load(path.string(), "", "the file is empty");
  const auto size = static_cast<std::size_t>(status.st_size);
  void* data = ::mmap(nullptr, size, PROT_READ, MAP_PRIVATE, file.get(), 0);
  if (data == MAP_FAILED) fail_load(path.string(), "", system_reason("cannot map"));
  return std::shared_ptr<const mapped_file>(new mapped_file(static_cast<const std::byte*>(data), size, identity_of(path, status)));
}

mapped_file::~mapped_file() { ::munmap(const_cast<std::byte*>(data_), size_); }

std::string read_text_file(const std::filesystem::path& path, std::size_t limit) {
  std::error_code failure;
  const std::uintmax_t size = std::filesystem::file_size(path, failure);
  if (failure) fail_load(path.string(), "", "cannot open: " + failure.message());
  if (size > limit) fail_load(path.string(), "", "longer than the " + std::to_string(limit) + " bytes such a file may have");
  std::ifstream file(path, std::ios::binary);
  std::string text(static_cast<std::size_t>(size), '\0');
  if (!file.read(text.data(), static_cast<std::streamsize>(size))) fail_load(path.string(), "", "cannot read");
  return text;
}

} // namespace troupe
