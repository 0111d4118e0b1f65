// Added tokens and tokenizer_config.json: which tokens are special, and what goes round a text.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "core/value.hpp"
#include "tokenizer/token_table.hpp"

namespace troupe {

// An object with "content", "id" (unless `id` says it) and flags. Throws load_error.
added_token read_added_token(const value& item, const std::string& where, std::optional<std::int64_t> id = std::nullopt);

// Enters the token into the table. A text that the vocabulary has keeps the vocabulary's id. An empty text is ignored.
void add_token(added_token token, token_table_parts& table, const std::string& where);

// tokenizer_config.json (an object, or null): bos_token, eos_token, add_bos_token, add_eos_token.
void apply_config(const value& config, token_table_parts& table, const std::string& where);

// A token named in tokenizer_config.json: a string, or an object with "content".
std::optional<std::string> token_text(const value& config, std::string_view key);

} // namespace troupe
