#include "device/keeper/client.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstring>
#include <exception>
#include <limits>
#include <stdexcept>
#include <utility>

namespace troupe::keeper {
namespace {

constexpr std::chrono::milliseconds patience{2000}; // for a keeper that is being started
constexpr std::chrono::milliseconds silence{5000};  // of a keeper that is there
constexpr std::chrono::milliseconds quick{1000};    // the same for a question that need not be answered

message head_for(const address& at, message_kind kind) {
  message head;
  head.kind = kind;
  if (at.token.size() >= sizeof head.token) throw std::runtime_error("keeper: the token is too long");
  std::memcpy(head.token, at.token.data(), at.token.size());
  return head;
}

file_descriptor write_manifest(const std::string& text) {
  file_descriptor file(memfd_create("troupe-manifest", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!file) return file;
  for (std::size_t done = 0; done < text.size();) {
    const ssize_t count = ::write(file.get(), text.data() + done, text.size() - done);
    if (count <= 0) return {};
    done += static_cast<std::size_t>(count);
  }
  if (fcntl(file.get(), F_ADD_SEALS, F_SEAL_SEAL | F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_WRITE) != 0) return {};
  return file;
}

bool reads(int file, const std::string& expected) {
  std::string text(expected.size() + 1, '\0');
  std::size_t size = 0;
  while (size < text.size()) {
    const ssize_t count = ::pread(file, text.data() + size, text.size() - size, static_cast<off_t>(size));
    if (count <= 0) break;
    size += static_cast<std::size_t>(count);
  }
  text.resize(size);
  return text == expected;
}

constexpr int lease_notices = 3; // to wait, a second apart

// The next packet that is no notice to wait. Throws std::runtime_error when there is none, or at the last of `notices`.
packet next_answer(int socket, int notices = std::numeric_limits<int>::max()) {
  packet got;
  do {
    if (notices-- == 0) throw std::runtime_error("keeper: another process has the region on lease");
    if (receive_packet(socket, got) != reception::whole) throw std::runtime_error("keeper: it does not answer");
    if (got.head.version != protocol_version) {
      throw std::runtime_error("keeper: it speaks version " + std::to_string(got.head.version) + ", this client " +
                               std::to_string(protocol_version));
    }
  } while (got.head.kind == message_kind::wait);
  if (got.head.kind == message_kind::refused) throw std::runtime_error(std::string("keeper: refused: ") + got.head.reason);
  return got;
}

} // namespace

void claim::fail(std::string reason) {
  now_ = state::alone;
  reason_ = std::move(reason);
  socket_.reset();
}

void claim::take(packet& given, const region_request& wanted) {
  if (!given.files[0] || !given.files[1]) throw std::runtime_error("keeper: a region came without its files");
  if (given.head.bytes != wanted.bytes || !reads(given.files[1].get(), wanted.manifest)) {
    throw std::runtime_error("keeper: what it holds under this name is of another manifest");
  }
  now_ = state::complete;
  memory_ = std::move(given.files[0]);
  if (wanted.use == region_use::constant) socket_.reset();
}

void claim::begin(const address& at, const region_request& wanted) {
  head_ = head_for(at, message_kind::claim);
  head_.slot = wanted.slot;
  head_.name = digest(wanted.manifest);
  head_.bytes = wanted.bytes;
  head_.memory = wanted.memory;
  head_.use = wanted.use;
  socket_ = connect_to(at.name, patience, silence);
  if (!send_packet(socket_.get(), head_)) throw std::runtime_error("keeper: it takes no packet");
  packet got = wanted.use == region_use::leased ? next_answer(socket_.get(), lease_notices) : next_answer(socket_.get());
  if (got.head.kind == message_kind::complete) return take(got, wanted);
  if (got.head.kind != message_kind::fill) throw std::runtime_error("keeper: an answer out of turn");
  now_ = state::to_fill;
  manifest_ = wanted.manifest;
}

claim ask(const address& at, const region_request& wanted) {
  claim mine;
  try {
    mine.begin(at, wanted);
  } catch (const std::exception& e) {
    mine.fail(e.what());
  }
  return mine;
}

bool claim::seal(int memory) {
  try {
    if (now_ != state::to_fill) throw std::runtime_error("keeper: no region was to be filled");
    const file_descriptor manifest = write_manifest(manifest_);
    if (!manifest) throw std::runtime_error("keeper: no memory for the manifest");
    head_.kind = message_kind::seal;
    if (!send_packet(socket_.get(), head_, memory, manifest.get())) throw std::runtime_error("keeper: it is gone");
    if (next_answer(socket_.get()).head.kind != message_kind::sealed) throw std::runtime_error("keeper: an answer out of turn");
    if (head_.use == region_use::constant) socket_.reset();
    return true;
  } catch (const std::exception& e) {
    fail(e.what());
    return false;
  }
}

std::optional<keeper_counts> query(const address& at, std::uint64_t slot) {
  try {
    message head = head_for(at, message_kind::query);
    head.slot = slot;
    const file_descriptor socket = connect_to(at.name, std::chrono::milliseconds(0), quick);
    if (!send_packet(socket.get(), head)) return std::nullopt;
    const packet got = next_answer(socket.get());
    if (got.head.kind != message_kind::counts) return std::nullopt;
    return keeper_counts{got.head.bytes, got.head.kept_bytes, got.head.regions, got.head.handed_out, got.head.sealed};
  } catch (const std::exception&) {
    return std::nullopt;
  }
}

} // namespace troupe::keeper
