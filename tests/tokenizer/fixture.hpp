// Fixtures of tests/fixtures/tokenizer, and the same vocabularies as GGUF metadata.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "core/json.hpp"
#include "tokenizer/tokenizer.hpp"

namespace troupe::testing {

using ids = std::vector<token_id>;

inline std::filesystem::path fixture_path(const std::string& name) {
  return std::filesystem::path(TROUPE_SOURCE_DIR) / "tests/fixtures/tokenizer" / name;
}

inline std::string read_fixture(const std::string& name) {
  std::ifstream in(fixture_path(name), std::ios::binary);
  if (!in) throw std::runtime_error("no fixture " + name);
  return {std::istreambuf_iterator<char>(in), {}};
}

inline value parse_json(std::string_view text) {
  auto parsed = json::parse(text);
  if (!parsed) throw std::runtime_error(parsed.failure().message);
  return std::move(*parsed);
}

inline value json_fixture(const std::string& name) { return parse_json(read_fixture(name + ".json")); }

inline ids to_ids(const value& array) {
  ids out;
  for (const value& item : array.as_array()) out.push_back(static_cast<token_id>(item.as_int()));
  return out;
}

inline value object(std::initializer_list<std::pair<const char*, value>> members) {
  value_object out;
  for (const auto& [key, item] : members) out.set(key, item);
  return out;
}

inline std::shared_ptr<const tokenizer> from_json(const value& spec, const value& config = value(value_object{})) {
  return tokenizer_from_json(spec, config, "tokenizer.json");
}

inline std::shared_ptr<const tokenizer> load_fixture(const std::string& name) { return from_json(*json_fixture(name).find("tokenizer")); }

// GGUF metadata with the fixture's vocabulary; `members` are further keys under tokenizer.ggml.
inline value gguf_metadata(const value& fixture, std::initializer_list<std::pair<const char*, value>> members) {
  const value& spec = *fixture.find("tokenizer");
  const value& model = *spec.find("model");
  std::size_t size = 0;
  for (const auto& [text, id] : model.find("vocab")->as_object().entries())
    size = std::max(size, static_cast<std::size_t>(id.as_int()) + 1);
  for (const value& token : spec.find("added_tokens")->as_array())
    size = std::max(size, static_cast<std::size_t>(token.find("id")->as_int()) + 1);
  value_array texts(size, value("")), kinds(size, value(1));
  for (const auto& [text, id] : model.find("vocab")->as_object().entries()) texts[static_cast<std::size_t>(id.as_int())] = value(text);
  for (const value& token : spec.find("added_tokens")->as_array()) {
    const auto id = static_cast<std::size_t>(token.find("id")->as_int());
    texts[id] = *token.find("content");
    kinds[id] = value(token.find("special")->as_bool() ? 3 : 4);
  }
  value_array merges;
  for (const value& merge : model.find("merges")->as_array()) {
    merges.emplace_back(merge.as_array()[0].as_string() + " " + merge.as_array()[1].as_string());
  }
  value_object out;
  out.set("tokenizer.ggml.tokens", texts);
  out.set("tokenizer.ggml.token_type", fixture.find("kinds") != nullptr ? *fixture.find("kinds") : value(kinds));
  if (const value* scores = fixture.find("scores")) {
    out.set("tokenizer.ggml.scores", *scores);
  } else {
    out.set("tokenizer.ggml.merges", merges);
  }
  for (const auto& [key, item] : members) out.set(std::string("tokenizer.ggml.") + key, item);
  return out;
}

} // namespace troupe::testing
