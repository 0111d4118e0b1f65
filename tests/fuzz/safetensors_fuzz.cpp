// A whole safetensors file, bound to a fixed tiny model.
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

#include "tests/fuzz/weights_touch.hpp"

namespace {

constexpr std::string_view kConfig =
    R"({"architectures":["LlamaForCausalLM"],"hidden_size":2,"intermediate_size":2,"num_hidden_layers":1,"num_attention_heads":1,)"
    R"("vocab_size":3,"max_position_embeddings":8,"tie_word_embeddings":true})";

} // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  troupe::fuzz::exercise([&] { return troupe::open_safetensors_bytes(kConfig, std::as_bytes(std::span(data, size)), "fuzz"); });
  return 0;
}
