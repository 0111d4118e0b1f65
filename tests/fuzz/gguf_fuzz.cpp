// A whole GGUF file: header, metadata, tensors, config, binding.
#include <cstddef>
#include <cstdint>
#include <span>

#include "tests/fuzz/weights_touch.hpp"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  troupe::fuzz::exercise([&] { return troupe::open_gguf_bytes(std::as_bytes(std::span(data, size)), "fuzz"); });
  return 0;
}
