// Typed, range-checked reading of a JSON object's members. The first fault is kept, later ones are ignored, so that a caller reads
// everything and asks once.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "core/error.hpp"
#include "core/value.hpp"

namespace troupe::http {

// An integer, also one written as 16.0 or 1e3; nothing for every other value.
std::optional<std::int64_t> integer_of(const value& item);

class field_reader {
 public:
  explicit field_reader(const value& object) : object_(object) {}

  // Member `name`, or nullptr when it is absent or null.
  const value* find(std::string_view name) const;
  // Each returns nothing when the member is absent, null or faulty. Bounds are inclusive.
  std::optional<bool> flag(std::string_view name);
  std::optional<std::int64_t> integer(std::string_view name, std::int64_t low, std::int64_t high);
  std::optional<double> number(std::string_view name, double low, double high);
  const std::string* text(std::string_view name);
  const value_array* array(std::string_view name);
  const value* object(std::string_view name);

  // `message` follows the quoted name: "must be ..".
  void fail(std::string_view name, std::string_view message);
  void fail(error failure);
  const std::optional<error>& failure() const { return failure_; }

 private:
  const value& object_;
  std::optional<error> failure_;
};

} // namespace troupe::http
