#include "core/value.hpp"

#include <algorithm>
#include <array>

namespace troupe {

namespace {
constexpr std::size_t kIndexFrom = 16; // members from which lookup goes through the map
} // namespace

std::size_t value_object::size() const noexcept { return entries_.size(); }

const value* value_object::find(std::string_view key) const {
  if (!index_.empty()) {
    auto it = index_.find(key);
    return it == index_.end() ? nullptr : &entries_[it->second].second;
  }
  auto it = std::find_if(entries_.begin(), entries_.end(), [&](const entry& e) { return e.first == key; });
  return it == entries_.end() ? nullptr : &it->second;
}

value* value_object::find(std::string_view key) { return const_cast<value*>(std::as_const(*this).find(key)); }

value& value_object::set(std::string key, value item) {
  if (value* existing = find(key)) return *existing = std::move(item);
  entries_.emplace_back(std::move(key), std::move(item));
  if (!index_.empty()) {
    index_.emplace(entries_.back().first, entries_.size() - 1);
  } else if (entries_.size() >= kIndexFrom) {
    for (std::size_t i = 0; i < entries_.size(); ++i) index_.emplace(entries_[i].first, i);
  }
  return entries_.back().second;
}

value::value(value_array a) : data_(std::make_shared<value_array>(std::move(a))) {}
value::value(value_object o) : data_(std::make_shared<value_object>(std::move(o))) {}

value_array& value::mutable_array() {
  auto& held = std::get<std::shared_ptr<value_array>>(data_);
  if (held.use_count() > 1) held = std::make_shared<value_array>(*held);
  return *held;
}

value_object& value::mutable_object() {
  auto& held = std::get<std::shared_ptr<value_object>>(data_);
  if (held.use_count() > 1) held = std::make_shared<value_object>(*held);
  return *held;
}

const value* value::find(std::string_view key) const { return is_object() ? as_object().find(key) : nullptr; }

std::string_view value::type_name() const {
  static constexpr std::array<std::string_view, 7> names = {"null", "boolean", "integer", "number", "string", "array", "object"};
  return names[data_.index()];
}

bool operator==(const value& a, const value& b) {
  if (a.is_number() && b.is_number()) {
    return a.is_int() && b.is_int() ? a.as_int() == b.as_int() : a.as_double() == b.as_double();
  }
  if (a.data_.index() != b.data_.index()) return false;
  if (a.is_array()) return a.as_array() == b.as_array();
  if (a.is_object()) {
    const auto& x = a.as_object();
    const auto& y = b.as_object();
    return x.size() == y.size() && std::all_of(x.entries().begin(), x.entries().end(), [&](const auto& e) {
             const value* other = y.find(e.first);
             return other && *other == e.second;
           });
  }
  return a.data_ == b.data_;
}

} // namespace troupe
