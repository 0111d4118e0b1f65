// Added tokens and tokenizer_config.json: which tokens are special, and what goes round a text.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/value.hpp"
#include "tokenizer/token_table.hpp"

namespace troupe {

inline constexpr std::size_t max_added_bytes = 1024; // of an added token: bounds the work at each place of a text

// An object with "content", "id" (unless `id` says it) and flags. Throws load_error.
added_token read_added_token(const value& item, const std::string& where, std::optional<std::int64_t> id = std::nullopt);

// Enters the tokens into the table. A text that the vocabulary has keeps the vocabulary's id. Empty texts are ignored.
void add_tokens(std::vector<added_token> tokens, token_table_parts& table, const std::string& where);

// tokenizer_config.json (an object, or null): bos_token, eos_token, add_bos_token, add_eos_token.
void apply_config(const value& config, token_table_parts& table, const std::string& where);

// A token named in tokenizer_config.json: a string, or an object with "content".
std::optional<std::string> token_text(const value& config, std::string_view key);

} // namespace troupe
