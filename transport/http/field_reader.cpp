#include "transport/http/field_reader.hpp"

#include <array>
#include <charconv>
#include <cmath>

namespace troupe::http {

namespace {

constexpr double kExactIntegers = 9007199254740992.0; // 2^53: up to here a double holds every integer

template <class Number>
std::string printed(Number number) {
  std::array<char, 32> digits;
  return {digits.data(), std::to_chars(digits.data(), digits.data() + digits.size(), number).ptr};
}

template <class Number>
std::string range_text(std::string_view kind, Number low, Number high) {
  return "must be " + std::string(kind) + " from " + printed(low) + " to " + printed(high);
}

} // namespace

std::optional<std::int64_t> integer_of(const value& item) {
  if (item.is_int()) return item.as_int();
  if (!item.is_double()) return std::nullopt;
  const double number = item.as_double();
  if (std::trunc(number) != number || std::abs(number) > kExactIntegers) return std::nullopt;
  return static_cast<std::int64_t>(number);
}

const value* field_reader::find(std::string_view name) const {
  const value* item = object_.find(name);
  return item != nullptr && !item->is_null() ? item : nullptr;
}

std::optional<bool> field_reader::flag(std::string_view name) {
  const value* item = find(name);
  if (item == nullptr) return std::nullopt;
  if (item->is_bool()) return item->as_bool();
  fail(name, "must be true or false");
  return std::nullopt;
}

std::optional<std::int64_t> field_reader::integer(std::string_view name, std::int64_t low, std::int64_t high) {
  const value* item = find(name);
  if (item == nullptr) return std::nullopt;
  const auto number = integer_of(*item);
  if (number && *number >= low && *number <= high) return number;
  fail(name, range_text("an integer", low, high));
  return std::nullopt;
}

std::optional<double> field_reader::number(std::string_view name, double low, double high) {
  const value* item = find(name);
  if (item == nullptr) return std::nullopt;
  // Written so that a NaN fails: every comparison with one is false.
  if (item->is_number() && item->as_double() >= low && item->as_double() <= high) return item->as_double();
  fail(name, range_text("a number", low, high));
  return std::nullopt;
}

const std::string* field_reader::text(std::string_view name) {
  const value* item = find(name);
  if (item == nullptr || item->is_string()) return item == nullptr ? nullptr : &item->as_string();
  fail(name, "must be a string");
  return nullptr;
}

const value_array* field_reader::array(std::string_view name) {
  const value* item = find(name);
  if (item == nullptr || item->is_array()) return item == nullptr ? nullptr : &item->as_array();
  fail(name, "must be an array");
  return nullptr;
}

const value* field_reader::object(std::string_view name) {
  const value* item = find(name);
  if (item == nullptr || item->is_object()) return item;
  fail(name, "must be an object");
  return nullptr;
}

void field_reader::fail(std::string_view name, std::string_view message) {
  fail(invalid_request(std::string(name), "'" + std::string(name) + "' " + std::string(message)));
}

void field_reader::fail(error failure) {
  if (!failure_) failure_ = std::move(failure);
}

} // namespace troupe::http
