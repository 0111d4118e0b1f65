// tokenizer.ggml.pre: the name of a model family's way to split text (llama.cpp, src/llama-vocab.cpp), as stages.
#pragma once

#include <string>
#include <string_view>

#include "tokenizer/normalizer.hpp"
#include "tokenizer/pre_tokenizer.hpp"

namespace troupe {

struct gguf_split {
  normalizer_list normalizers;
  pre_tokenizer_list pre_tokenizers;
  bool ignore_merges = false;
  bool add_bos = false; // where the file does not say
};

// Throws load_error (`where` first) on a name that is not known.
gguf_split find_gguf_split(std::string_view name, const std::string& where);

} // namespace troupe
