// A tokenizer.json (or GGUF metadata as JSON, or a SentencePiece file's protocol buffer), then a NUL and a text to encode.
#include <cstdint>
#include <cstdlib>
#include <string_view>
#include <vector>

#include "core/error.hpp"
#include "core/json.hpp"
#include "tokenizer/detokenizer.hpp"
#include "tokenizer/sentencepiece_file.hpp"
#include "tokenizer/tokenizer.hpp"
#include "tokenizer/utf8.hpp"

namespace {

using namespace troupe;

void require(bool holds) {
  if (!holds) std::abort();
}

void exercise(const std::shared_ptr<const tokenizer>& tokens, std::string_view text) {
  for (const encode_options options : {encode_options{}, encode_options{.add_special_tokens = false, .parse_special = false}}) {
    const std::vector<token_id> ids = tokens->encode(text, options);
    for (const token_id id : ids) require(id >= 0 && id < tokens->vocab_size());
    for (const bool skip : {true, false}) {
      const std::string whole = tokens->decode(ids, skip);
      require(utf8::is_valid(whole));
      incremental_detokenizer stream(tokens, {}, skip);
      std::string streamed;
      for (const token_id id : ids) {
        const std::string part = stream.push(id);
        require(utf8::is_valid(part));
        streamed += part;
      }
      require(streamed + stream.finish() == whole);
    }
  }
}

} // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view input(reinterpret_cast<const char*>(data), size);
  const std::string_view file = input.substr(0, input.find('\0'));
  const std::string_view text = file.size() == size ? std::string_view("Hello  w\xC3\xB6rld 123") : input.substr(file.size() + 1);
  if (input.starts_with('\n')) read_sentencepiece_file(input);
  const auto parsed = json::parse(file);
  if (!parsed) return 0;
  try {
    const bool gguf = parsed->find("tokenizer.ggml.model") != nullptr;
    exercise(gguf ? tokenizer_from_gguf(*parsed, "fuzz") : tokenizer_from_json(*parsed, value(value_object{}), "fuzz"),
             text.substr(0, 2000));
  } catch (const load_error&) {
  }
  return 0;
}
