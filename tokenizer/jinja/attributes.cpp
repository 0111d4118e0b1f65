// Attribute and item access as Jinja2's immutable sandbox has it, and calls.
#include <algorithm>
#include <array>

#include "tokenizer/jinja/machine.hpp"
#include "tokenizer/jinja/parameters.hpp"

namespace troupe::jinja {

namespace {

// For messages, which outlive the step that paid for them: cut where a character begins, whatever the length of the name.
std::string quoted(std::string_view name) {
  constexpr std::size_t most = 64; // bytes
  if (name.size() <= most) return "'" + std::string(name) + "'";
  std::size_t end = most;
  while (end > 0 && (static_cast<unsigned char>(name[end]) & 0xC0) == 0x80) --end;
  return "'" + std::string(name.substr(0, end)) + "..'";
}

cell unsafe(const cell& base, std::string_view name) {
  return make_undefined("attribute " + quoted(name) + " of a " + std::string(base.type_name()) +
                        " is not available: templates may not change data");
}

cell view(machine& m, const dict& source, sequence_kind kind) {
  m.charge(1 + source.size());
  std::vector<cell> items;
  items.reserve(source.size());
  for (const auto& [key, item] : source.entries()) {
    if (kind == sequence_kind::dict_keys) items.push_back(key);
    if (kind == sequence_kind::dict_values) items.push_back(item);
    if (kind == sequence_kind::dict_items) items.push_back(make_tuple({key, item}));
  }
  return make_sequence(kind, std::move(items));
}

cell dict_get(machine& m, const cell& self, const arguments& args) {
  const parameters p("get", args, {"key", "default"}, 1);
  m.charge();
  const cell* found = self.as_dict().find(p.at(0));
  return found != nullptr ? *found : p.get(1, {});
}
cell dict_items(machine& m, const cell& self, const arguments& args) {
  const parameters none("items", args, {});
  return view(m, self.as_dict(), sequence_kind::dict_items);
}
cell dict_keys(machine& m, const cell& self, const arguments& args) {
  const parameters none("keys", args, {});
  return view(m, self.as_dict(), sequence_kind::dict_keys);
}
cell dict_values(machine& m, const cell& self, const arguments& args) {
  const parameters none("values", args, {});
  return view(m, self.as_dict(), sequence_kind::dict_values);
}
cell copy(machine& m, const cell& self, const arguments& args) {
  const parameters none("copy", args, {});
  m.charge();
  return self;
}

cell sequence_count(machine& m, const cell& self, const arguments& args) {
  const parameters p("count", args, {"value"}, 1);
  const auto& items = self.as_sequence().items;
  return static_cast<std::int64_t>(std::count_if(items.begin(), items.end(), [&](const cell& i) { return equal(m, i, p.at(0)); }));
}
cell sequence_index(machine& m, const cell& self, const arguments& args) {
  const parameters p("index", args, {"value"}, 1);
  const auto& items = self.as_sequence().items;
  auto it = std::find_if(items.begin(), items.end(), [&](const cell& i) { return equal(m, i, p.at(0)); });
  if (it == items.end()) throw render_error("index: the value is not in the " + std::string(self.type_name()));
  return static_cast<std::int64_t>(it - items.begin());
}

constexpr std::array<builtin, 5> dict_methods = {
    {{"get", dict_get}, {"items", dict_items}, {"keys", dict_keys}, {"values", dict_values}, {"copy", copy}}};
constexpr std::array<builtin, 3> list_methods = {{{"count", sequence_count}, {"index", sequence_index}, {"copy", copy}}};
constexpr std::array<std::string_view, 6> dict_changes = {"clear", "pop", "popitem", "setdefault", "update", "fromkeys"};
constexpr std::array<std::string_view, 8> list_changes = {"append", "clear", "pop", "reverse", "insert", "sort", "extend", "remove"};

template <std::size_t N>
const builtin* in_table(const std::array<builtin, N>& table, std::string_view name, std::size_t count = N) {
  auto end = table.begin() + static_cast<std::ptrdiff_t>(count);
  auto it = std::find_if(table.begin(), end, [&](const builtin& b) { return b.name == name; });
  return it == end ? nullptr : &*it;
}

template <std::size_t N>
bool listed(const std::array<std::string_view, N>& table, std::string_view name) {
  return std::find(table.begin(), table.end(), name) != table.end();
}

// What Python's getattr finds; none when there is no such attribute.
std::optional<cell> own_attribute(machine& m, const cell& base, std::string_view name) {
  if (base.is_object()) return base.as_object()->attribute(m, name);
  if (auto found = find_method(base, name)) return found;
  if (base.is_dict() && listed(dict_changes, name)) return unsafe(base, name);
  if (base.is_sequence(sequence_kind::list) && listed(list_changes, name)) return unsafe(base, name);
  if (base.is_sequence(sequence_kind::range)) {
    const sequence& range = base.as_sequence();
    if (name == "start") return range.start;
    if (name == "stop") return range.stop;
    if (name == "step") return range.step;
  }
  return std::nullopt;
}

cell missing(const cell& base, const std::string& what) {
  return make_undefined("'" + std::string(base.type_name()) + (base.is_none() ? "' has no " : " object' has no ") + what);
}

} // namespace

void fail_undefined(const cell& item) { throw render_error(*item.as_undefined().why); }

std::optional<cell> find_method(const cell& base, std::string_view name) {
  const builtin* found = nullptr;
  if (base.is_text()) found = find_string_method(name);
  if (base.is_dict()) found = in_table(dict_methods, name);
  if (base.is_sequence(sequence_kind::list)) found = in_table(list_methods, name);
  if (base.is_sequence(sequence_kind::tuple) || base.is_sequence(sequence_kind::range)) found = in_table(list_methods, name, 2);
  if (found == nullptr) return std::nullopt;
  return std::make_shared<const method>(method{base, found});
}

cell get_attribute(machine& m, const cell& base, std::string_view name) {
  m.charge();
  if (base.is_undefined()) fail_undefined(base);
  if (auto found = own_attribute(m, base, name)) return *found;
  if (base.is_dict()) {
    if (const cell* found = base.as_dict().find(name)) return *found;
  }
  return missing(base, "attribute " + quoted(name));
}

cell get_item(machine& m, const cell& base, const cell& key) {
  m.charge();
  if (base.is_undefined()) fail_undefined(base);
  if (auto found = subscript(m, base, key)) return *found;
  if (!key.is_text())
    return missing(base, "element " + (key.is_integral() ? std::to_string(key.as_int()) : "of that " + std::string(key.type_name())));
  if (auto found = own_attribute(m, base, key.bytes())) return *found;
  return missing(base, "attribute " + quoted(key.bytes()));
}

cell call(machine& m, const cell& callee, arguments args) {
  m.charge(1 + args.positional.size() + args.named.size());
  if (callee.is_undefined()) fail_undefined(callee);
  if (callee.is_method()) return callee.as_method().function->run(m, callee.as_method().self, args);
  if (callee.is_object()) return callee.as_object()->call(m, std::move(args));
  throw render_error("'" + std::string(callee.type_name()) + "' object is not callable");
}

} // namespace troupe::jinja
