// Strict reading of a stage's options: a wrong kind, a missing member and a member that nobody asked for are load errors.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/error.hpp"
#include "core/value.hpp"

namespace troupe {

class json_fields {
 public:
  // `where` names the part in errors: "FILE: pre_tokenizer". Throws load_error when `item` is no object.
  json_fields(const value& item, std::string where) : item_(item), where_(std::move(where)) {
    if (!item.is_object()) fail("expected an object, found " + std::string(item.type_name()));
  }

  [[noreturn]] void fail(const std::string& reason) const { throw load_error(where_ + ": " + reason); }
  const std::string& where() const { return where_; }

  // Member or nullptr (also when null); counts as read.
  const value* get(std::string_view key) {
    read_.push_back(key);
    const value* found = item_.find(key);
    return found != nullptr && found->is_null() ? nullptr : found;
  }
  const value& need(std::string_view key) {
    const value* found = get(key);
    if (found == nullptr) fail("\"" + std::string(key) + "\" is missing");
    return *found;
  }
  bool flag(std::string_view key) { return as_flag(need(key), key); }
  bool flag(std::string_view key, bool fallback) {
    const value* found = get(key);
    return found == nullptr ? fallback : as_flag(*found, key);
  }
  std::string text(std::string_view key) { return as_text(need(key), key); }
  std::optional<std::string> maybe_text(std::string_view key) {
    const value* found = get(key);
    return found == nullptr ? std::nullopt : std::optional(as_text(*found, key));
  }
  std::int64_t integer(std::string_view key) {
    const value& found = need(key);
    if (!found.is_int()) fail("\"" + std::string(key) + "\" must be an integer");
    return found.as_int();
  }
  const value_array& array(std::string_view key) {
    const value& found = need(key);
    if (!found.is_array()) fail("\"" + std::string(key) + "\" must be an array");
    return found.as_array();
  }

  // Refuses members that were never asked for.
  void done() const {
    for (const auto& [key, unused] : item_.as_object().entries()) {
      bool known = false;
      for (const std::string_view name : read_) known = known || name == key;
      if (!known) fail("unknown option \"" + key.substr(0, 64) + "\"");
    }
  }

 private:
  bool as_flag(const value& found, std::string_view key) const {
    if (!found.is_bool()) fail("\"" + std::string(key) + "\" must be true or false");
    return found.as_bool();
  }
  std::string as_text(const value& found, std::string_view key) const {
    if (!found.is_string()) fail("\"" + std::string(key) + "\" must be a string");
    return found.as_string();
  }

  const value& item_;
  std::string where_;
  std::vector<std::string_view> read_; // keys are literals
};

} // namespace troupe
