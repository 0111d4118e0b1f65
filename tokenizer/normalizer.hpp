// Normalisers of tokenizer.json: text in, text out, before anything is split.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "core/value.hpp"

namespace troupe {

class normalizer {
 public:
  virtual ~normalizer() = default;
  virtual std::string apply(std::string text) const = 0; // UTF-8 in and out
};

using normalizer_list = std::vector<std::unique_ptr<normalizer>>; // applied in order

// The "normalizer" member (maybe null): nested sequences come out flat. Throws load_error on an unknown stage or option.
normalizer_list read_normalizers(const value* item, const std::string& where);

std::unique_ptr<normalizer> make_prepend(std::string text);
std::unique_ptr<normalizer> make_replace(std::string from, std::string to);
std::unique_ptr<normalizer> make_nfc();

std::string normalize(const normalizer_list& stages, std::string text);

} // namespace troupe
