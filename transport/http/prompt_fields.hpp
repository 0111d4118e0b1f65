// The "prompt" member in its four forms, and arrays of token ids.
#pragma once

#include <string_view>
#include <vector>

#include "core/request.hpp"
#include "core/service.hpp"
#include "transport/http/field_reader.hpp"
#include "transport/http/server.hpp"

namespace troupe::http {

error unknown_model(const served_model& model);

// A string, an array of strings, an array of ids, or an array of arrays of ids. At most limits.choices prompts.
std::vector<prompt> read_prompts(field_reader& fields, const served_model& model, const server_limits& limits);

// Ids in [0, vocab_size). `name` is how the error calls the array; it names the id at fault.
std::vector<token_id> read_token_ids(field_reader& fields, std::string_view name, const value_array& ids, const served_model& model);

// "token id 7 is not in 0..6"
std::string outside_vocabulary(std::int64_t id, const served_model& model);

} // namespace troupe::http
