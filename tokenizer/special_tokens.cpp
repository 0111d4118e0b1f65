#include "tokenizer/special_tokens.hpp"

#include <algorithm>
#include <limits>
#include <unordered_map>
#include <utility>

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
  if (number < 0 || number > std::numeric_limits<token_id>::max()) fields.fail("token id " + std::to_string(number) + " is out of range");
  added_token token;
  token.id = static_cast<token_id>(number);
  token.content = fields.text("content");
  if (token.content.size() > max_added_bytes) fields.fail("an added token is longer than 1024 bytes");
  token.special = fields.flag("special", false);
  token.normalized = fields.flag("normalized", !token.special);
  token.single_word = fields.flag("single_word", false);
  token.lstrip = fields.flag("lstrip", false);
  token.rstrip = fields.flag("rstrip", false);
  fields.get("__type"); // tokenizer_config.json marks its objects so
  fields.done();
  return token;
}

void add_tokens(std::vector<added_token> tokens, token_table_parts& table, const std::string& where) {
  std::unordered_map<std::string, token_id> known; // filled when first needed
  for (added_token& token : tokens) {
    if (token.content.empty()) continue;
    const auto at = static_cast<std::size_t>(token.id);
    if (at >= table.texts.size() || table.texts[at] != token.content) {
      for (std::size_t id = 0; known.empty() && id < table.texts.size(); ++id) {
        if (table.texts[id]) known.emplace(*table.texts[id], static_cast<token_id>(id));
      }
      token.id = known.emplace(token.content, token.id).first->second;
    }
    table.set_text(token.id, token.content, where);
    table.added.push_back(std::move(token));
  }
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
