// Things that change while a template runs.
#pragma once

#include <string>
#include <vector>

#include "tokenizer/jinja/machine.hpp"

namespace troupe::jinja {

class namespace_object : public object {
 public:
  // Names that begin with an underscore are refused, as transformers does.
  void set(machine& m, std::string_view name, cell item);
  std::string_view type_name() const override { return "Namespace"; }
  std::optional<cell> attribute(machine& m, std::string_view name) override;
  std::optional<cell> item(machine& m, const cell& key) override;
  std::string repr(machine& m, std::size_t depth) override;

 private:
  dict attributes_;
};

// The `loop` of a for block.
class loop_object : public object {
 public:
  explicit loop_object(std::vector<cell> items, std::size_t depth) : items_(std::move(items)), depth_(depth) {}
  const std::vector<cell>& items() const { return items_; }
  void move_to(std::size_t index) { index_ = index; }
  std::size_t index() const { return index_; }
  bool changed(machine& m, std::vector<cell> now);

  std::string_view type_name() const override { return "LoopContext"; }
  std::optional<cell> attribute(machine& m, std::string_view name) override;
  std::string repr(machine& m, std::size_t depth) override;

 private:
  std::vector<cell> items_;
  std::size_t depth_; // of recursion, always 1
  std::size_t index_ = 0;
  cell last_values_; // of changed()
};

} // namespace troupe::jinja
