#include "kvcache/block_hash.hpp"

#include <bit>

namespace troupe {
namespace {

// Takes whole 64-bit words; the last one must make the length unambiguous.
class sip_hash {
 public:
  explicit sip_hash(std::array<std::uint64_t, 2> key)
      : v_{key[0] ^ 0x736f6d6570736575ULL, key[1] ^ 0x646f72616e646f6dULL, key[0] ^ 0x6c7967656e657261ULL, key[1] ^ 0x7465646279746573ULL} {
  }

  void add(std::uint64_t word) {
    v_[3] ^= word;
    rounds(2);
    v_[0] ^= word;
  }

  std::uint64_t finish() {
    v_[2] ^= 0xff;
    rounds(4);
    return v_[0] ^ v_[1] ^ v_[2] ^ v_[3];
  }

 private:
  void rounds(int count) {
    for (; count > 0; --count) {
      mix(0, 1, 13);
      v_[0] = std::rotl(v_[0], 32);
      mix(2, 3, 16);
      mix(0, 3, 21);
      mix(2, 1, 17);
      v_[2] = std::rotl(v_[2], 32);
    }
  }
  void mix(std::size_t a, std::size_t b, int turn) {
    v_[a] += v_[b];
    v_[b] = std::rotl(v_[b], turn) ^ v_[a];
  }

  std::array<std::uint64_t, 4> v_;
};

} // namespace

block_hash keyed_block_hash(std::array<std::uint64_t, 2> key) {
  return [key](std::uint64_t before, std::span<const token_id> tokens, std::string_view salt) {
    sip_hash hash(key);
    hash.add(before);
    for (const token_id token : tokens) hash.add(static_cast<std::uint64_t>(token));
    for (const char c : salt) hash.add(static_cast<unsigned char>(c));
    hash.add(tokens.size());
    hash.add(salt.size());
    return hash.finish();
  };
}

} // namespace troupe
