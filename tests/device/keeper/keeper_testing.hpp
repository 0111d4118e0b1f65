// A keeper on a thread, and what its clients bring.
#pragma once

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "device/keeper/client.hpp"
#include "device/keeper/keeper.hpp"

namespace troupe::keeper::testing {

class running_keeper {
 public:
  explicit running_keeper(keeper_limits limits = {}, address where = random_address())
      : at(std::move(where)),
        server_(
            at, [this](const std::string& line) { note(line); }, limits) {
    int ends[2];
    EXPECT_EQ(pipe2(ends, O_CLOEXEC), 0);
    owner_ = file_descriptor(ends[1]);
    thread_ = std::jthread([this, read_end = ends[0]] {
      server_.run(read_end);
      ::close(read_end);
    });
  }
  ~running_keeper() { owner_.reset(); }

  std::vector<std::string> lines() {
    const std::lock_guard lock(guard_);
    return lines_;
  }

  const address at;

 private:
  void note(const std::string& line) {
    const std::lock_guard lock(guard_);
    lines_.push_back(line);
  }

  std::mutex guard_;
  std::vector<std::string> lines_;
  server server_;
  file_descriptor owner_;
  std::jthread thread_; // ends first, once its owner has gone
};

inline region_request region(const std::string& manifest, std::uint64_t bytes = 4096, std::uint64_t slot = 1) {
  return {slot, manifest, bytes, memory_kind::host};
}

// A memfd that holds `text` at its beginning, sealed or not.
inline file_descriptor memory_of(const std::string& text, std::uint64_t bytes = 4096, bool sealed = true) {
  file_descriptor file(memfd_create("test", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  EXPECT_EQ(ftruncate(file.get(), static_cast<off_t>(bytes)), 0);
  EXPECT_EQ(pwrite(file.get(), text.data(), text.size(), 0), static_cast<ssize_t>(text.size()));
  const int seals = sealed ? F_SEAL_SEAL | F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_WRITE : 0;
  EXPECT_EQ(fcntl(file.get(), F_ADD_SEALS, seals), 0);
  return file;
}

inline std::string text_in(const file_descriptor& file, std::size_t size) {
  std::string text(size, '\0');
  EXPECT_EQ(pread(file.get(), text.data(), size, 0), static_cast<ssize_t>(size));
  return text;
}

inline void fill(const address& at, const region_request& wanted, const std::string& text) {
  claim mine = ask(at, wanted);
  ASSERT_EQ(mine.now(), claim::state::to_fill) << mine.reason();
  ASSERT_TRUE(mine.seal(memory_of(text, wanted.bytes).get())) << mine.reason();
}

} // namespace troupe::keeper::testing
