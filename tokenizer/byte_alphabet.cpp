#include "tokenizer/byte_alphabet.hpp"

#include <array>

#include "tokenizer/utf8.hpp"

namespace troupe::byte_alphabet {
namespace {

constexpr std::size_t alphabet_end = 0x100 + 68;

struct tables {
  std::array<std::string, 256> characters;
  std::array<int, alphabet_end> bytes;

  tables() {
    bytes.fill(-1);
    char32_t next = 0x100;
    for (unsigned b = 0; b < 256; ++b) {
      const bool prints = (b >= '!' && b <= '~') || (b >= 0xA1 && b <= 0xAC) || b >= 0xAE;
      const char32_t code = prints ? b : next++;
      utf8::append(characters[b], code);
      bytes[code] = static_cast<int>(b);
    }
  }
};

const tables& shared_tables() {
  static const tables instance;
  return instance;
}

} // namespace

std::string encode(std::string_view bytes) {
  const tables& t = shared_tables();
  std::string out;
  out.reserve(bytes.size() * 2);
  for (const char b : bytes) out += t.characters[static_cast<unsigned char>(b)];
  return out;
}

std::optional<std::string> decode(std::string_view text) {
  const tables& t = shared_tables();
  std::string out;
  out.reserve(text.size());
  for (std::size_t at = 0; at < text.size();) {
    const utf8::character next = utf8::read(text, at);
    if (next.state != utf8::status::whole || next.code >= alphabet_end || t.bytes[next.code] < 0) return std::nullopt;
    out += static_cast<char>(t.bytes[next.code]);
    at += next.size;
  }
  return out;
}

} // namespace troupe::byte_alphabet
