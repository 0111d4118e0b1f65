#include "transport/http/prompt_fields.hpp"

#include <string>

namespace troupe::http {

namespace {

constexpr std::string_view kForms = "must be a string, an array of strings, an array of token ids or an array of such arrays";

std::string indexed(std::string_view name, std::size_t i) { return std::string(name) + '[' + std::to_string(i) + ']'; }

// The message tells the place in the array; `param` is the member alone.
void fail_at(field_reader& fields, std::string_view name, std::size_t i, const std::string& message) {
  const std::string member(name.substr(0, name.find('[')));
  fields.fail(invalid_request(member, "'" + indexed(name, i) + "' " + message));
}

std::vector<prompt> read_several(field_reader& fields, const value_array& items, const served_model& model) {
  std::vector<prompt> out;
  const bool strings = items.front().is_string();
  for (std::size_t i = 0; i < items.size(); ++i) {
    if (strings && items[i].is_string()) {
      out.emplace_back(items[i].as_string());
    } else if (!strings && items[i].is_array() && !items[i].as_array().empty()) {
      out.emplace_back(read_token_ids(fields, indexed("prompt", i), items[i].as_array(), model));
    } else {
      fields.fail("prompt", kForms);
      return out;
    }
  }
  return out;
}

} // namespace

error unknown_model(const served_model& model) {
  std::string names;
  for (const std::string& name : model.names) names += (names.empty() ? "'" : ", '") + name + "'";
  return {error_kind::not_found, "the model does not exist; served here: " + names, "model", std::nullopt};
}

std::string outside_vocabulary(std::int64_t id, const served_model& model) {
  return "token id " + std::to_string(id) + " is not in 0.." + std::to_string(model.vocab_size - 1);
}

std::vector<token_id> read_token_ids(field_reader& fields, std::string_view name, const value_array& ids, const served_model& model) {
  std::vector<token_id> out;
  out.reserve(ids.size());
  for (std::size_t i = 0; i < ids.size(); ++i) {
    const auto id = integer_of(ids[i]);
    if (!id) {
      fail_at(fields, name, i, "must be a token id");
      return out;
    }
    if (*id < 0 || *id >= model.vocab_size) {
      fail_at(fields, name, i, "is outside the vocabulary: " + outside_vocabulary(*id, model));
      return out;
    }
    out.push_back(static_cast<token_id>(*id));
  }
  return out;
}

std::vector<prompt> read_prompts(field_reader& fields, const served_model& model, const server_limits& limits) {
  const value* item = fields.find("prompt");
  if (item == nullptr) {
    fields.fail("prompt", "is required");
    return {};
  }
  if (item->is_string()) return {item->as_string()};
  if (!item->is_array() || item->as_array().empty()) {
    fields.fail("prompt", kForms);
    return {};
  }
  const value_array& items = item->as_array();
  if (items.front().is_number()) return {read_token_ids(fields, "prompt", items, model)};
  if (items.size() > static_cast<std::size_t>(limits.choices)) {
    fields.fail("prompt", "must not hold more than " + std::to_string(limits.choices) + " prompts");
    return {};
  }
  return read_several(fields, items, model);
}

} // namespace troupe::http
