#include "tokenizer/jinja/objects.hpp"

#include <array>

#include "tokenizer/jinja/parameters.hpp"

namespace troupe::jinja {

namespace {

cell loop_cycle(machine&, const cell& self, const arguments& args) {
  const auto& loop = *dynamic_cast<loop_object*>(self.as_object());
  if (!args.named.empty() || args.positional.empty()) throw render_error("cycle needs values");
  return args.positional[loop.index() % args.positional.size()];
}

cell loop_changed(machine& m, const cell& self, const arguments& args) {
  if (!args.named.empty()) throw render_error("changed takes no named values");
  return dynamic_cast<loop_object*>(self.as_object())->changed(m, args.positional);
}

constexpr builtin cycle_method = {"cycle", loop_cycle};
constexpr builtin changed_method = {"changed", loop_changed};

cell bound(object* self, const builtin& function) { return std::make_shared<const method>(method{cell(self), &function}); }

} // namespace

void namespace_object::set(machine& m, std::string_view name, cell item) {
  if (name.starts_with('_')) throw render_error("a namespace cannot have an attribute that begins with an underscore");
  m.charge();
  attributes_.set(m.text(name), std::move(item));
}

std::optional<cell> namespace_object::attribute(machine&, std::string_view name) {
  const cell* found = attributes_.find(name);
  return found != nullptr ? std::optional(*found) : std::nullopt;
}

std::optional<cell> namespace_object::item(machine& m, const cell& key) { return key.is_text() ? attribute(m, key.bytes()) : std::nullopt; }

std::string namespace_object::repr(machine& m, std::size_t depth) {
  return "<Namespace " + jinja::repr(m, make_dict(attributes_), depth) + ">";
}

bool loop_object::changed(machine& m, std::vector<cell> now) {
  cell values = make_tuple(std::move(now));
  if (equal(m, last_values_, values)) return false;
  last_values_ = std::move(values);
  return true;
}

std::optional<cell> loop_object::attribute(machine&, std::string_view name) {
  const auto index = static_cast<std::int64_t>(index_), count = static_cast<std::int64_t>(items_.size());
  if (name == "index") return index + 1;
  if (name == "index0") return index;
  if (name == "revindex") return count - index;
  if (name == "revindex0") return count - index - 1;
  if (name == "first") return index == 0;
  if (name == "last") return index + 1 == count;
  if (name == "length") return count;
  if (name == "depth") return static_cast<std::int64_t>(depth_);
  if (name == "depth0") return static_cast<std::int64_t>(depth_) - 1;
  if (name == "previtem") return index > 0 ? items_[index_ - 1] : make_undefined("there is no previous item");
  if (name == "nextitem") return index + 1 < count ? items_[index_ + 1] : make_undefined("there is no next item");
  if (name == "cycle") return bound(this, cycle_method);
  if (name == "changed") return bound(this, changed_method);
  return std::nullopt;
}

std::string loop_object::repr(machine&, std::size_t) {
  return "<LoopContext " + std::to_string(index_ + 1) + "/" + std::to_string(items_.size()) + ">";
}

} // namespace troupe::jinja
