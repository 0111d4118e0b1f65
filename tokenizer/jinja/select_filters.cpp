// Filters that apply other filters and tests to each item.
#include <array>

#include "tokenizer/jinja/attribute_path.hpp"
#include "tokenizer/jinja/parameters.hpp"
#include "tokenizer/jinja/tables.hpp"

namespace troupe::jinja {

namespace {

const builtin& known_filter(const cell& name) {
  const builtin* found = name.is_text() ? find_filter(name.bytes()) : nullptr;
  if (found == nullptr) throw render_error("map: no such filter");
  return *found;
}
const builtin& known_test(const cell& name) {
  const builtin* found = name.is_text() ? find_test(name.bytes()) : nullptr;
  if (found == nullptr) throw render_error("select: no such test");
  return *found;
}

arguments without_first(const arguments& args, std::size_t count) {
  return {{args.positional.begin() + static_cast<std::ptrdiff_t>(count), args.positional.end()}, args.named};
}

cell map_filter(machine& m, const cell& self, const arguments& args) {
  const machine::level deeper(m);
  if (!self.truthy()) return make_iterator({});
  std::vector<cell> out;
  if (args.positional.empty()) {
    const parameters p("map", args, {"attribute", "default"});
    if (!p.given(0)) throw render_error("map needs a filter's name or an attribute");
    const attribute_path path(m, p.at(0));
    const cell fallback = p.get(1, {});
    for (const cell& item : items_of(m, self)) out.push_back(path(m, item, p.has_value(1) ? &fallback : nullptr));
    return make_iterator(std::move(out));
  }
  const builtin& filter = known_filter(args.positional[0]);
  const arguments rest = without_first(args, 1);
  for (const cell& item : items_of(m, self)) out.push_back(filter.run(m, item, rest));
  return make_iterator(std::move(out));
}

// select, reject, selectattr and rejectattr.
template <bool keep, bool by_attribute>
cell select_filter(machine& m, const cell& self, const arguments& args) {
  if (!self.truthy()) return make_iterator({});
  constexpr std::size_t test_at = by_attribute ? 1 : 0;
  if (by_attribute && args.positional.empty()) throw render_error("selectattr needs an attribute's name");
  const attribute_path path(m, by_attribute ? args.positional[0] : cell());
  const builtin* test = args.positional.size() > test_at ? &known_test(args.positional[test_at]) : nullptr;
  const arguments rest = test != nullptr ? without_first(args, test_at + 1) : arguments();
  std::vector<cell> out;
  for (const cell& item : items_of(m, self)) {
    const cell subject = path(m, item);
    const bool passes = test != nullptr ? test->run(m, subject, rest).truthy() : subject.truthy();
    if (passes == keep) out.push_back(item);
  }
  return make_iterator(std::move(out));
}

constexpr std::array<builtin, 5> filters = {{
    {"map", map_filter},
    {"reject", select_filter<false, false>},
    {"rejectattr", select_filter<false, true>},
    {"select", select_filter<true, false>},
    {"selectattr", select_filter<true, true>},
}};

} // namespace

std::span<const builtin> select_filters() { return filters; }

} // namespace troupe::jinja
