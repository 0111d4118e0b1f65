// A JSON-like tree: what config files, GGUF metadata, chat messages and templates are made of.
// Objects keep insertion order (templates print it); lookup is linear below 16 members and indexed above.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

namespace troupe {

class value;
using value_array = std::vector<value>;

// Insertion-ordered string -> value map. A repeated key keeps its first place and takes the last value.
class value_object {
 public:
  using entry = std::pair<std::string, value>;

  const value* find(std::string_view key) const;
  value* find(std::string_view key);
  value& set(std::string key, value item);
  std::size_t size() const noexcept;
  bool empty() const noexcept { return size() == 0; }
  const std::vector<entry>& entries() const noexcept { return entries_; }

 private:
  std::vector<entry> entries_;
  std::map<std::string, std::size_t, std::less<>> index_; // filled once entries_ is large
};

class value {
 public:
  value() = default; // null
  value(std::nullptr_t) {}
  value(bool b) : data_(b) {}
  value(int i) : data_(std::int64_t{i}) {}
  value(std::int64_t i) : data_(i) {}
  value(double d) : data_(d) {}
  value(std::string s) : data_(std::move(s)) {}
  value(std::string_view s) : data_(std::string(s)) {}
  value(const char* s) : data_(std::string(s)) {}
  value(value_array a);
  value(value_object o);

  bool is_null() const { return data_.index() == 0; }
  bool is_bool() const { return data_.index() == 1; }
  bool is_int() const { return data_.index() == 2; }
  bool is_double() const { return data_.index() == 3; }
  bool is_number() const { return is_int() || is_double(); }
  bool is_string() const { return data_.index() == 4; }
  bool is_array() const { return data_.index() == 5; }
  bool is_object() const { return data_.index() == 6; }

  // Unchecked kinds throw std::bad_variant_access: test first.
  bool as_bool() const { return std::get<bool>(data_); }
  std::int64_t as_int() const { return std::get<std::int64_t>(data_); }
  double as_double() const { return is_int() ? static_cast<double>(as_int()) : std::get<double>(data_); }
  const std::string& as_string() const { return std::get<std::string>(data_); }
  const value_array& as_array() const { return *std::get<std::shared_ptr<value_array>>(data_); }
  const value_object& as_object() const { return *std::get<std::shared_ptr<value_object>>(data_); }
  // Copies of a value share arrays and objects; these unshare before they hand out a writable one.
  value_array& mutable_array();
  value_object& mutable_object();

  // Member `key` of an object; nullptr when this is no object or has no such member.
  const value* find(std::string_view key) const;
  // "null", "boolean", "integer", "number", "string", "array" or "object", for error texts.
  std::string_view type_name() const;

  friend bool operator==(const value& a, const value& b);

 private:
  std::variant<std::monostate, bool, std::int64_t, double, std::string, std::shared_ptr<value_array>, std::shared_ptr<value_object>> data_;
};

} // namespace troupe
