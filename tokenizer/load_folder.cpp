// A Hugging Face folder: which files hold the tokenizer and the chat template.
#include <fstream>
#include <iterator>

#include "core/error.hpp"
#include "core/json.hpp"
#include "tokenizer/special_tokens.hpp"
#include "tokenizer/tokenizer.hpp"

namespace troupe {
namespace {

constexpr std::uintmax_t max_file_bytes = std::uintmax_t{512} << 20;

std::optional<std::string> read_file(const std::filesystem::path& path) {
  std::error_code failed;
  if (!std::filesystem::is_regular_file(path, failed)) return std::nullopt;
  const std::uintmax_t size = std::filesystem::file_size(path, failed);
  if (failed) throw load_error(path.string() + ": cannot be read: " + failed.message());
  if (size > max_file_bytes) throw load_error(path.string() + ": larger than 512 MiB");
  std::ifstream in(path, std::ios::binary);
  std::string text(static_cast<std::size_t>(size), '\0');
  if (!in.read(text.data(), static_cast<std::streamsize>(text.size()))) throw load_error(path.string() + ": cannot be read");
  return text;
}

std::optional<value> read_json(const std::filesystem::path& path) {
  const auto text = read_file(path);
  if (!text) return std::nullopt;
  auto parsed = json::parse(*text);
  if (!parsed) throw load_error(path.string() + ": " + parsed.failure().message);
  return std::move(*parsed);
}

value read_config(const std::filesystem::path& folder) {
  value config = read_json(folder / "tokenizer_config.json").value_or(value(value_object{}));
  if (!config.is_object()) throw load_error((folder / "tokenizer_config.json").string() + ": expected an object");
  return config;
}

// "chat_template": the source itself, or a list of {"name", "template"} of which "default" is meant.
std::optional<std::string> template_of(const value& config, const std::filesystem::path& path) {
  const value* found = config.find("chat_template");
  if (found == nullptr || found->is_null()) return std::nullopt;
  if (found->is_string()) return found->as_string();
  if (!found->is_array()) throw load_error(path.string() + ": chat_template: expected a string or an array");
  const std::string* first = nullptr;
  for (const value& item : found->as_array()) {
    const value* name = item.find("name");
    const value* text = item.find("template");
    if (name == nullptr || text == nullptr || !name->is_string() || !text->is_string()) {
      throw load_error(path.string() + ": chat_template: an item needs \"name\" and \"template\"");
    }
    if (name->as_string() == "default") return text->as_string();
    if (first == nullptr) first = &text->as_string();
  }
  return first == nullptr ? std::nullopt : std::optional(*first);
}

const std::string* metadata_text(const value& metadata, std::string_view key) {
  const value* found = metadata.find(key);
  return found != nullptr && found->is_string() ? &found->as_string() : nullptr;
}

// The text of the token whose id `key` holds; empty when there is none.
std::string token_at(const value& metadata, std::string_view key) {
  const value* id = metadata.find(key);
  const value* tokens = metadata.find("tokenizer.ggml.tokens");
  if (id == nullptr || !id->is_int() || tokens == nullptr || !tokens->is_array()) return {};
  const value_array& texts = tokens->as_array();
  if (id->as_int() < 0 || static_cast<std::uint64_t>(id->as_int()) >= texts.size()) return {};
  const value& text = texts[static_cast<std::size_t>(id->as_int())];
  return text.is_string() ? text.as_string() : std::string();
}

} // namespace

std::shared_ptr<const tokenizer> load_tokenizer(const std::filesystem::path& folder) {
  const value config = read_config(folder);
  const std::filesystem::path json_path = folder / "tokenizer.json";
  if (const auto parsed = read_json(json_path)) return tokenizer_from_json(*parsed, config, json_path.string());
  const std::filesystem::path model_path = folder / "tokenizer.model";
  if (const auto model = read_file(model_path)) return tokenizer_from_sentencepiece(*model, config, model_path.string());
  throw load_error(folder.string() + ": neither tokenizer.json nor tokenizer.model is there");
}

std::optional<chat_template_source> find_chat_template(const std::filesystem::path& folder) {
  const value config = read_config(folder);
  auto text = read_file(folder / "chat_template.jinja"); // a file of its own goes before the config's member
  if (!text) {
    if (const auto file = read_json(folder / "chat_template.json")) text = template_of(*file, folder / "chat_template.json");
  }
  if (!text) text = template_of(config, folder / "tokenizer_config.json");
  if (!text) return std::nullopt;
  return chat_template_source{std::move(*text), token_text(config, "bos_token").value_or(""), token_text(config, "eos_token").value_or("")};
}

std::optional<chat_template_source> find_chat_template(const value& gguf_metadata) {
  const std::string* text = metadata_text(gguf_metadata, "tokenizer.chat_template");
  if (text == nullptr) text = metadata_text(gguf_metadata, "tokenizer.chat_template.default");
  if (text == nullptr) return std::nullopt;
  return chat_template_source{*text, token_at(gguf_metadata, "tokenizer.ggml.bos_token_id"),
                              token_at(gguf_metadata, "tokenizer.ggml.eos_token_id")};
}

} // namespace troupe
