#include "tokenizer/gguf_splits.hpp"

#include <algorithm>
#include <array>
#include <span>

#include "core/error.hpp"

namespace troupe {
namespace {

// The patterns are facts of the models: as in their tokenizer.json files, or in llama.cpp's table where a stage has no name of its own.
constexpr std::string_view gpt2_pattern = R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";
constexpr std::string_view llama3_pattern =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr std::string_view qwen2_pattern =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr std::string_view qwen35_pattern =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr std::string_view gpt4o_pattern =
    R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|)"
    R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|)"
    R"(\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr std::string_view tekken_pattern = R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|)"
                                            R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|)"
                                            R"(\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr std::string_view deepseek_v3_words =
    R"([!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
enum class family : std::uint8_t { gpt2, digits_gpt2, llama3, llama3_merges, qwen2, qwen35, gpt4o, tekken, falcon, plain, coder, v3 };

struct named_family {
  std::string_view name;
  family kind;
};

constexpr std::array names = std::to_array<named_family>({
    {"default", family::plain},
    {"gpt-2", family::gpt2},
    {"phi-2", family::gpt2},
    {"mpt", family::gpt2},
    {"olmo", family::gpt2},
    {"smollm", family::digits_gpt2},
    {"starcoder", family::digits_gpt2},
    {"refact", family::digits_gpt2},
    {"command-r", family::digits_gpt2},
    {"codeshell", family::digits_gpt2},
    {"exaone", family::digits_gpt2},
    {"llama-bpe", family::llama3},
    {"llama3", family::llama3},
    {"llama-v3", family::llama3},
    {"falcon3", family::llama3},
    {"dbrx", family::llama3_merges},
    {"smaug-bpe", family::llama3_merges},
    {"glm4", family::llama3_merges},
    {"chatglm-bpe", family::llama3_merges},
    {"qwen2", family::qwen2},
    {"deepseek-r1-qwen", family::qwen2},
    {"stablelm2", family::qwen2},
    {"qwen35", family::qwen35},
    {"gpt-4o", family::gpt4o},
    {"llama4", family::gpt4o},
    {"tekken", family::tekken},
    {"falcon", family::falcon},
    {"deepseek-coder", family::coder},
    {"deepseek-v3", family::v3},
});

void add_patterns(pre_tokenizer_list& list, std::initializer_list<std::string_view> patterns, const std::string& where) {
  for (const std::string_view pattern : patterns) list.stages.push_back(make_regex_split(pattern, where));
}

void add_stages(family kind, gguf_split& split, const std::string& where) {
  pre_tokenizer_list& list = split.pre_tokenizers;
  list.byte_level = true; // no mapping stage behind: the model works on bytes
  switch (kind) {
    case family::gpt2:
      return add_patterns(list, {gpt2_pattern}, where);
    case family::digits_gpt2:
      list.stages.push_back(make_digits(true));
      return add_patterns(list, {gpt2_pattern}, where);
    case family::llama3:
    case family::llama3_merges:
      return add_patterns(list, {llama3_pattern}, where);
    case family::qwen2:
      return add_patterns(list, {qwen2_pattern}, where);
    case family::qwen35:
      return add_patterns(list, {qwen35_pattern}, where);
    case family::gpt4o:
      return add_patterns(list, {gpt4o_pattern}, where);
    case family::tekken:
      return add_patterns(list, {tekken_pattern}, where);
    case family::plain:
      return add_patterns(list, {R"([\p{P}$+<=>\^~|]+)", gpt2_pattern, R"(\p{N}+)", "[0-9][0-9][0-9]"}, where);
    case family::falcon: // digits are split behind the mapping of bytes to characters, so that is where it must be done
      list.byte_level = false;
      list.stages.push_back(make_punctuation(split_behavior::contiguous));
      list.stages.push_back(make_byte_level(false, true, true));
      list.stages.push_back(make_digits(false));
      return add_patterns(list, {"[0-9][0-9][0-9]"}, where);
    case family::coder:
      add_patterns(list, {R"([\r\n])", R"(\s?\p{L}+)", R"(\s?\p{P}+)", "[一-龥ࠀ-一가-퟿]+"}, where);
      list.stages.push_back(make_digits(true));
      return;
    case family::v3:
      return add_patterns(list, {R"(\p{N}{1,3})", "[一-龥぀-ゟ゠-ヿ]+", deepseek_v3_words}, where);
  }
}

} // namespace

gguf_split find_gguf_split(std::string_view name, const std::string& where) {
  const auto found = std::find_if(names.begin(), names.end(), [&](const named_family& item) { return item.name == name; });
  if (found == names.end())
    throw load_error(where + ": tokenizer.ggml.pre: unknown pre-tokenizer \"" + std::string(name.substr(0, 64)) + "\"");
  gguf_split split;
  add_stages(found->kind, split, where);
  split.ignore_merges = found->kind == family::llama3 || found->kind == family::tekken;
  split.add_bos = split.ignore_merges;
  const bool composes = found->kind == family::qwen2 || found->kind == family::qwen35;
  if (composes && name != "stablelm2") split.normalizers.push_back(make_nfc()); // as those models' tokenizer.json says
  return split;
}

} // namespace troupe
