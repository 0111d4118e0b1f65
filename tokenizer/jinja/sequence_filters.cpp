// Filters of rows of values. Meanings and parameters are Jinja2's.
#include <algorithm>
#include <array>
#include <unordered_set>

#include "tokenizer/jinja/attribute_path.hpp"
#include "tokenizer/jinja/machine.hpp"
#include "tokenizer/jinja/parameters.hpp"
#include "tokenizer/jinja/tables.hpp"

namespace troupe::jinja {

namespace {

cell without_case(machine& m, const cell& item) { return item.is_text() ? m.text(lower(m, item.bytes())) : item; }

// What sort, min, max, unique and groupby compare.
struct sort_key {
  machine& m;
  std::vector<attribute_path> paths;
  bool case_sensitive;
  bool as_list; // sort compares lists of keys, even of one

  sort_key(machine& owner, const cell& attributes, bool with_case, bool several) : m(owner), case_sensitive(with_case), as_list(several) {
    if (!several || !attributes.is_text()) {
      paths.emplace_back(m, attributes);
      return;
    }
    const std::string& text = attributes.bytes();
    for (std::size_t start = 0; start <= text.size();) {
      const std::size_t comma = std::min(text.find(',', start), text.size());
      paths.emplace_back(m, m.text(text.substr(start, comma - start)));
      start = comma + 1;
    }
  }
  cell one(const attribute_path& path, const cell& item, const cell* fallback = nullptr) const {
    cell key = path(m, item, fallback);
    return case_sensitive ? key : without_case(m, key);
  }
  cell operator()(const cell& item) const {
    if (!as_list) return one(paths[0], item);
    std::vector<cell> keys;
    for (const auto& path : paths) keys.push_back(one(path, item));
    return make_list(std::move(keys));
  }
};

using keyed = std::pair<cell, cell>; // key, item

// Stable, also in reverse (Python's sorted).
void sort_keyed(machine& m, std::vector<keyed>& rows, bool reverse) {
  std::stable_sort(rows.begin(), rows.end(),
                   [&](const keyed& a, const keyed& b) { return reverse ? less(m, b.first, a.first) : less(m, a.first, b.first); });
}

template <class Key>
std::vector<keyed> with_keys(machine& m, const cell& rows, const Key& key) {
  std::vector<keyed> out;
  for (cell& item : items_of(m, rows)) {
    cell k = key(item);
    out.emplace_back(std::move(k), std::move(item));
  }
  return out;
}

std::vector<cell> values_of(std::vector<keyed> rows) {
  std::vector<cell> out;
  out.reserve(rows.size());
  for (auto& row : rows) out.push_back(std::move(row.second));
  return out;
}

cell length_filter(machine& m, const cell& self, const arguments& args) {
  const parameters none("length", args, {});
  return static_cast<std::int64_t>(length_of(m, self));
}

cell first_filter(machine& m, const cell& self, const arguments& args) {
  const parameters none("first", args, {});
  if (self.is_text() || (self.is_sequence() && self.as_sequence().kind != sequence_kind::iterator)) {
    if (auto item = subscript(m, self, 0)) return *item;
  }
  if (self.is_sequence(sequence_kind::iterator) && self.as_sequence().consumed < self.as_sequence().items.size()) {
    return self.as_sequence().items[self.as_sequence().consumed++];
  }
  const std::vector<cell> items = items_of(m, self);
  return items.empty() ? make_undefined("No first item, sequence was empty.") : items.front();
}

// Things that Python's reversed() takes.
void require_reversible(const cell& self) {
  if (self.is_sequence(sequence_kind::iterator) || !is_iterable(self) || self.is_object()) {
    throw render_error("'" + std::string(self.type_name()) + "' object is not reversible");
  }
}

cell last_filter(machine& m, const cell& self, const arguments& args) {
  const parameters none("last", args, {});
  require_reversible(self);
  if (self.is_text() || self.is_sequence()) {
    if (auto item = subscript(m, self, -1)) return *item;
  }
  const std::vector<cell> items = items_of(m, self);
  return items.empty() ? make_undefined("No last item, sequence was empty.") : items.back();
}

cell list_filter(machine& m, const cell& self, const arguments& args) {
  const parameters none("list", args, {});
  return make_list(items_of(m, self));
}

cell items_filter(machine& m, const cell& self, const arguments& args) {
  const parameters none("items", args, {});
  if (self.is_undefined()) return make_iterator({});
  if (!self.is_dict()) throw render_error("Can only get item pairs from a mapping.");
  m.charge(1 + self.as_dict().size());
  std::vector<cell> out;
  for (const auto& [key, item] : self.as_dict().entries()) out.push_back(make_tuple({key, item}));
  return make_iterator(std::move(out));
}

cell join_filter(machine& m, const cell& self, const arguments& args) {
  const parameters p("join", args, {"d", "attribute"});
  const attribute_path path(m, p.get(1, {}));
  const std::string separator = p.given(0) ? to_string(m, p.at(0)) : "";
  std::string out;
  bool first = true;
  for (const cell& item : items_of(m, self)) {
    if (!first) m.append(out, separator);
    m.append(out, to_string(m, path(m, item)));
    first = false;
  }
  return m.text(std::move(out));
}

cell dictsort_filter(machine& m, const cell& self, const arguments& args) {
  const parameters p("dictsort", args, {"case_sensitive", "by", "reverse"});
  const std::string by = p.string(1, "key");
  if (by != "key" && by != "value") throw render_error("dictsort: by must be 'key' or 'value'");
  if (self.is_undefined()) fail_undefined(self);
  if (!self.is_dict()) throw render_error("dictsort needs a mapping, not " + std::string(self.type_name()));
  std::vector<keyed> rows;
  for (const auto& [key, item] : self.as_dict().entries()) {
    const cell& by_what = by == "key" ? key : item;
    rows.emplace_back(p.truth(0, false) ? by_what : without_case(m, by_what), make_tuple({key, item}));
  }
  m.charge(1 + rows.size());
  sort_keyed(m, rows, p.truth(2, false));
  return make_list(values_of(std::move(rows)));
}

cell sort_filter(machine& m, const cell& self, const arguments& args) {
  const parameters p("sort", args, {"reverse", "case_sensitive", "attribute"});
  auto rows = with_keys(m, self, sort_key(m, p.get(2, {}), p.truth(1, false), true));
  sort_keyed(m, rows, p.truth(0, false));
  return make_list(values_of(std::move(rows)));
}

template <bool largest>
cell extreme_filter(machine& m, const cell& self, const arguments& args) {
  const parameters p("min", args, {"case_sensitive", "attribute"});
  const auto rows = with_keys(m, self, sort_key(m, p.get(1, {}), p.truth(0, false), false));
  if (rows.empty()) return make_undefined("No aggregated item, sequence was empty.");
  const keyed* best = &rows.front();
  for (const keyed& row : rows) {
    if (&row != &rows.front() && (largest ? less(m, best->first, row.first) : less(m, row.first, best->first))) best = &row;
  }
  return best->second;
}

cell unique_filter(machine& m, const cell& self, const arguments& args) {
  const parameters p("unique", args, {"case_sensitive", "attribute"});
  std::unordered_set<std::string> seen;
  std::vector<cell> out;
  for (auto& [key, item] : with_keys(m, self, sort_key(m, p.get(1, {}), p.truth(0, false), false))) {
    if (seen.insert(hash_key(key)).second) out.push_back(std::move(item));
  }
  return make_iterator(std::move(out));
}

cell groupby_filter(machine& m, const cell& self, const arguments& args) {
  const parameters p("groupby", args, {"attribute", "default", "case_sensitive"}, 1);
  const cell fallback = p.get(1, {});
  const cell* given = p.has_value(1) ? &fallback : nullptr;
  const sort_key key(m, p.at(0), p.truth(2, false), false);
  auto rows = with_keys(m, self, [&](const cell& item) { return key.one(key.paths[0], item, given); });
  sort_keyed(m, rows, false);
  std::vector<cell> out;
  for (std::size_t start = 0; start < rows.size();) {
    std::vector<cell> group;
    std::size_t end = start;
    for (; end < rows.size() && equal(m, rows[end].first, rows[start].first); ++end) group.push_back(rows[end].second);
    if (end == start) throw render_error("groupby: a key is not equal to itself");
    out.push_back(make_tuple({key.paths[0](m, group.front(), given), make_list(std::move(group))}));
    start = end;
  }
  return make_list(std::move(out));
}

cell sum_filter(machine& m, const cell& self, const arguments& args) {
  const parameters p("sum", args, {"attribute", "start"});
  const attribute_path path(m, p.get(0, {}));
  cell total = p.get(1, 0);
  if (total.is_text()) throw render_error("sum: strings are joined with join");
  for (const cell& item : items_of(m, self)) total = arithmetic(m, arithmetic_op::add, total, path(m, item));
  return total;
}

cell reverse_filter(machine& m, const cell& self, const arguments& args) {
  const parameters none("reverse", args, {});
  if (self.is_text()) return slice(m, self, {{}, {}, -1});
  std::vector<cell> items = items_of(m, self);
  std::reverse(items.begin(), items.end());
  return self.is_sequence(sequence_kind::iterator) ? make_list(std::move(items)) : make_iterator(std::move(items));
}

cell batch_filter(machine& m, const cell& self, const arguments& args) {
  const parameters p("batch", args, {"linecount", "fill_with"}, 1);
  const std::int64_t count = p.integer(0, 1);
  std::vector<cell> out, row;
  auto flush = [&] { out.push_back(make_list(std::exchange(row, {}))); };
  for (cell& item : items_of(m, self)) {
    if (static_cast<std::int64_t>(row.size()) == count) flush();
    row.push_back(std::move(item));
  }
  if (!row.empty()) {
    if (p.has_value(1) && static_cast<std::int64_t>(row.size()) < count) {
      m.charge(static_cast<std::size_t>(count));
      row.resize(static_cast<std::size_t>(count), p.at(1));
    }
    flush();
  }
  return make_iterator(std::move(out));
}

cell slice_filter(machine& m, const cell& self, const arguments& args) {
  const parameters p("slice", args, {"slices", "fill_with"}, 1);
  const std::int64_t slices = p.integer(0, 1);
  const std::vector<cell> items = items_of(m, self);
  if (slices == 0) throw render_error("slice: the number of slices is zero");
  if (slices < 0) return make_iterator({});
  m.charge(static_cast<std::size_t>(slices));
  const auto count = static_cast<std::int64_t>(items.size());
  const std::int64_t each = count / slices, extra = count % slices;
  std::vector<cell> out;
  auto at = items.begin();
  for (std::int64_t i = 0; i < slices; ++i) {
    const auto end = at + each + (i < extra ? 1 : 0);
    std::vector<cell> row(at, end);
    if (p.has_value(1) && i >= extra) row.push_back(p.at(1));
    out.push_back(make_list(std::move(row)));
    at = end;
  }
  return make_iterator(std::move(out));
}

constexpr std::array<builtin, 17> filters = {{
    {"batch", batch_filter},
    {"count", length_filter},
    {"dictsort", dictsort_filter},
    {"first", first_filter},
    {"groupby", groupby_filter},
    {"items", items_filter},
    {"join", join_filter},
    {"last", last_filter},
    {"length", length_filter},
    {"list", list_filter},
    {"max", extreme_filter<true>},
    {"min", extreme_filter<false>},
    {"reverse", reverse_filter},
    {"slice", slice_filter},
    {"sort", sort_filter},
    {"sum", sum_filter},
    {"unique", unique_filter},
}};

} // namespace

std::span<const builtin> sequence_filters() { return filters; }

} // namespace troupe::jinja
