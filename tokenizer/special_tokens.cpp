#include "tokenizer/special_tokens.hpp"

#include <algorithm>

#include "tokenizer/json_fields.hpp"

namespace troupe {
namespace {

std::optional<token_id> id_of(const token_table_parts& table, const std::string& text) {
  for (const added_token& token : table.added) {
    if (token.content == text) return token.id;
  }
  const auto found = std::find(table.texts.begin(), table.texts.end(), text);
  if (found == table.texts.end()) return std::nullopt;
  return static_cast<token_id>(found - table.texts.begin());
}

std::optional<bool> config_flag(const value& config, std::string_view key) {
  const value* found = config.find(key);
  if (found == nullptr || !found->is_bool()) return std::nullopt;
  return found->as_bool();
}

} // namespace

added_token read_added_token(const value& item, const std::string& where, std::optional<std::int64_t> id) {
  json_fields fields(item, where);
  const std::int64_t number = id ? *id : fields.integer("id");
  if (number < 0 || number > max_token_id) fields.fail("token id " + std::to_string(number) + " is out of range");
  added_token token;
  token.id = static_cast<token_id>(number);
  token.content = fields.text("content");
  token.special = fields.flag("special", false);
  token.normalized = fields.flag("normalized", !token.special);
  token.single_word = fields.flag("single_word", false);
  token.lstrip = fields.flag("lstrip", false);
  token.rstrip = fields.flag("rstrip", false);
  fields.get("__type"); // tokenizer_config.json marks its objects so
  fields.done();
  return token;
}

void add_token(added_token token, token_table_parts& table, const std::string& where) {
  if (token.content.empty()) return;
  const auto at = static_cast<std::size_t>(token.id);
  const bool in_place = at < table.texts.size() && table.texts[at] == token.content;
  if (!in_place) {
    if (const auto known = id_of(table, token.content)) token.id = *known;
  }
  table.set_text(token.id, token.content, where);
  table.added.push_back(std::move(token));
}

std::optional<std::string> token_text(const value& config, std::string_view key) {
  const value* found = config.find(key);
  if (found != nullptr && found->is_object()) found = found->find("content");
  if (found == nullptr || !found->is_string()) return std::nullopt;
  return found->as_string();
}

void apply_config(const value& config, token_table_parts& table, const std::string& where) {
  if (const auto text = token_text(config, "bos_token")) table.bos = id_of(table, *text);
  if (const auto text = token_text(config, "eos_token")) {
    if (const auto id = id_of(table, *text)) table.eos.push_back(*id);
  }
  const auto add_bos = config_flag(config, "add_bos_token");
  const auto add_eos = config_flag(config, "add_eos_token");
  if (add_bos.value_or(false) && !table.bos) throw load_error(where + ": tokenizer_config: add_bos_token without a known bos_token");
  if (add_eos.value_or(false) && table.eos.empty()) throw load_error(where + ": tokenizer_config: add_eos_token without a known eos_token");
  if (add_bos) table.prefix = *add_bos ? std::vector<token_id>{*table.bos} : std::vector<token_id>{};
  if (add_eos) table.suffix = *add_eos ? table.eos : std::vector<token_id>{};
}

} // namespace troupe
