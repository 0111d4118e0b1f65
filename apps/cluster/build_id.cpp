#include "apps/cluster/build_id.hpp"

#include <elf.h>
#include <link.h>

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "core/hex.hpp"

namespace troupe::apps {

namespace {

constexpr std::size_t padded(std::size_t size) { return (size + 3) & ~std::size_t{3}; }

// The GNU build id among the notes of a segment; empty: none.
std::string find_in(const char* notes, std::size_t size) {
  while (size >= sizeof(ElfW(Nhdr))) {
    ElfW(Nhdr) head{};
    std::memcpy(&head, notes, sizeof head);
    const std::size_t whole = sizeof head + padded(head.n_namesz) + padded(head.n_descsz);
    if (whole > size) return {};
    const char* const name = notes + sizeof head;
    if (head.n_type == NT_GNU_BUILD_ID && head.n_namesz == 4 && std::memcmp(name, "GNU", 4) == 0) {
      const char* const id = name + padded(head.n_namesz);
      return hex_of({reinterpret_cast<const std::uint8_t*>(id), head.n_descsz});
    }
    notes += whole;
    size -= whole;
  }
  return {};
}

// The first object is the program itself.
int look(dl_phdr_info* info, std::size_t, void* found) {
  for (int i = 0; i < info->dlpi_phnum; ++i) {
    const auto& segment = info->dlpi_phdr[i];
    if (segment.p_type != PT_NOTE) continue;
    auto& text = *static_cast<std::string*>(found);
    text = find_in(reinterpret_cast<const char*>(info->dlpi_addr + segment.p_vaddr), segment.p_memsz);
    if (!text.empty()) break;
  }
  return 1;
}

} // namespace

std::string build_id() {
  std::string found;
  dl_iterate_phdr(look, &found);
  return found.empty() ? "unknown" : found;
}

} // namespace troupe::apps
