// Binds the arguments of a call to the names of parameters, with Python's rules.
#pragma once

#include <initializer_list>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "tokenizer/jinja/machine.hpp"

namespace troupe::jinja {

class parameters {
 public:
  // The first `required` of `names` must be given. Throws render_error when the call does not fit.
  // `args` must outlive this.
  parameters(std::string_view function, const arguments& args, std::initializer_list<std::string_view> names, std::size_t required = 0);
  parameters(std::string_view function, arguments&& args, std::initializer_list<std::string_view> names, std::size_t required = 0) = delete;

  // Whether parameter `index` was given and, for has_value, is not None.
  bool given(std::size_t index) const { return values_[index] != nullptr; }
  bool has_value(std::size_t index) const { return given(index) && !values_[index]->is_none(); }
  const cell& at(std::size_t index) const { return *values_[index]; }
  cell get(std::size_t index, cell fallback) const { return given(index) ? at(index) : std::move(fallback); }

  // Checked kinds; the fallback stands for a parameter that was not given.
  std::int64_t integer(std::size_t index, std::int64_t fallback) const;
  bool truth(std::size_t index, bool fallback) const { return given(index) ? at(index).truthy() : fallback; }
  const std::string& string(std::size_t index) const;
  std::string string(std::size_t index, std::string fallback) const;

 private:
  [[noreturn]] void fail(const std::string& reason) const;
  std::string_view function_;
  std::vector<std::string_view> names_;
  std::vector<const cell*> values_; // into the arguments
};

} // namespace troupe::jinja
