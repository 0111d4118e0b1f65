#include "tokenizer/jinja/machine.hpp"

#include <algorithm>

#include "tokenizer/jinja/parameters.hpp"

namespace troupe::jinja {

void machine::charge(std::size_t steps) {
  constexpr std::size_t interval = 64; // steps between two looks at the clock
  if (steps > limits_.steps - steps_) throw render_error("it takes more than " + std::to_string(limits_.steps) + " steps");
  steps_ += steps;
  if (steps_ < next_look_) return;
  next_look_ = steps_ + interval;
  if (std::chrono::steady_clock::now() > deadline_) {
    throw render_error("it takes longer than " + std::to_string(limits_.time.count()) + " ms");
  }
}

void machine::check_size(std::size_t bytes) const {
  if (bytes > limits_.output) throw render_error("it makes a text longer than " + std::to_string(limits_.output) + " bytes");
}

void machine::append(std::string& out, std::string_view more) {
  check_size(out.size() + more.size());
  charge_bytes(more.size());
  out += more;
}

parameters::parameters(std::string_view function, const arguments& args, std::initializer_list<std::string_view> names,
                       std::size_t required)
    : function_(function), names_(names), values_(names.size(), nullptr) {
  if (args.positional.size() > names_.size()) {
    fail("takes at most " + std::to_string(names_.size()) + " arguments, not " + std::to_string(args.positional.size()));
  }
  for (std::size_t i = 0; i < args.positional.size(); ++i) values_[i] = &args.positional[i];
  for (const auto& [name, item] : args.named) {
    auto it = std::find(names_.begin(), names_.end(), name);
    if (it == names_.end()) fail("has no parameter '" + name + "'");
    const cell*& place = values_[static_cast<std::size_t>(it - names_.begin())];
    if (place != nullptr) fail("got two values for '" + name + "'");
    place = &item;
  }
  for (std::size_t i = 0; i < required; ++i) {
    if (!given(i)) fail("lacks its argument '" + std::string(names_[i]) + "'");
  }
}

void parameters::fail(const std::string& reason) const { throw render_error(std::string(function_) + " " + reason); }

std::int64_t parameters::integer(std::size_t index, std::int64_t fallback) const {
  if (!given(index)) return fallback;
  if (at(index).is_undefined()) fail_undefined(at(index));
  if (!at(index).is_integral())
    fail("needs an integer for '" + std::string(names_[index]) + "', not " + std::string(at(index).type_name()));
  return at(index).as_int();
}

const std::string& parameters::string(std::size_t index) const {
  if (at(index).is_undefined()) fail_undefined(at(index));
  if (!at(index).is_text()) fail("needs a string for '" + std::string(names_[index]) + "', not " + std::string(at(index).type_name()));
  return at(index).bytes();
}

std::string parameters::string(std::size_t index, std::string fallback) const { return given(index) ? string(index) : std::move(fallback); }

} // namespace troupe::jinja
