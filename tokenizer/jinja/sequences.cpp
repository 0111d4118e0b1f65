// Iteration, length, indexing and slicing.
#include <algorithm>

#include "tokenizer/jinja/machine.hpp"
#include "tokenizer/jinja/unicode.hpp"

namespace troupe::jinja {

namespace {

std::vector<cell> characters(machine& m, const std::string& bytes) {
  std::vector<cell> out;
  for (std::size_t at = 0; at < bytes.size();) {
    const std::size_t start = at;
    unicode::decode(bytes, at);
    out.push_back(m.text(std::string_view(bytes).substr(start, at - start)));
  }
  return out;
}

// Where a slice of something with `size` items begins and ends, as Python's slice.indices.
struct walk {
  std::int64_t start, stop, step;
  std::size_t count() const {
    if (step > 0) return start < stop ? static_cast<std::size_t>((stop - start - 1) / step + 1) : 0;
    return start > stop ? static_cast<std::size_t>((start - stop - 1) / -step + 1) : 0;
  }
};

std::int64_t bound(const cell& given, std::int64_t fallback, std::int64_t size, std::int64_t low, std::int64_t high) {
  if (given.is_none()) return fallback;
  if (given.is_undefined()) fail_undefined(given);
  if (!given.is_integral()) throw render_error("slice indices must be integers or None");
  std::int64_t at = given.as_int();
  if (at < 0) at = at < -size ? low : at + size;
  return std::clamp(at, low, high);
}

walk resolve(const slice_bounds& bounds, std::size_t length) {
  const auto size = static_cast<std::int64_t>(length);
  std::int64_t step = 1;
  if (!bounds.step.is_none()) {
    if (bounds.step.is_undefined()) fail_undefined(bounds.step);
    if (!bounds.step.is_integral()) throw render_error("slice indices must be integers or None");
    step = std::clamp<std::int64_t>(bounds.step.as_int(), -INT64_MAX, INT64_MAX);
  }
  if (step == 0) throw render_error("slice step cannot be zero");
  const std::int64_t low = step > 0 ? 0 : -1, high = step > 0 ? size : size - 1;
  return {bound(bounds.start, step > 0 ? low : high, size, low, high), bound(bounds.stop, step > 0 ? high : low, size, low, high), step};
}

cell slice_text(machine& m, const text& base, const walk& w) {
  const std::string_view bytes = base.bytes;
  const std::size_t count = w.count();
  if (count == 0) return m.text(std::string());
  const bool run = w.step == 1 || count == 1;
  const auto start = static_cast<std::size_t>(w.start);
  if (run && base.ascii()) return m.text(bytes.substr(start, count));
  m.charge_bytes(bytes.size());
  if (run) {
    const std::size_t from = unicode::offset(bytes, start);
    return m.text(bytes.substr(from, unicode::offset(bytes.substr(from), count)));
  }
  std::vector<std::size_t> starts; // of each character
  for (std::size_t at = 0; at < bytes.size(); unicode::decode(bytes, at)) starts.push_back(at);
  starts.push_back(bytes.size());
  m.charge(count);
  std::string out;
  std::int64_t at = w.start;
  for (std::size_t i = 0; i < count; ++i, at += i < count ? w.step : 0) {
    const auto index = static_cast<std::size_t>(at);
    out += bytes.substr(starts[index], starts[index + 1] - starts[index]);
  }
  return m.text(std::move(out));
}

// Item `index` of a range, also one step beyond its ends.
std::int64_t range_item(const sequence& range, std::int64_t index) {
  const __int128 at = static_cast<__int128>(range.start) + static_cast<__int128>(index) * range.step;
  return static_cast<std::int64_t>(std::clamp<__int128>(at, INT64_MIN, INT64_MAX));
}

std::optional<std::size_t> position(const cell& key, std::size_t length) {
  if (!key.is_integral()) return std::nullopt;
  const auto size = static_cast<std::int64_t>(length);
  const std::int64_t at = key.as_int();
  if (at >= size || at < -size) return std::nullopt;
  return static_cast<std::size_t>(at < 0 ? at + size : at);
}

} // namespace

bool is_iterable(const cell& item) {
  return item.is_text() || item.is_sequence() || item.is_dict() || item.is_undefined() ||
         (item.is_object() && item.as_object()->type_name() == "LoopContext");
}

std::vector<cell> items_of(machine& m, const cell& iterable) {
  if (iterable.is_undefined()) return {};
  if (iterable.is_text()) return characters(m, iterable.bytes());
  if (iterable.is_dict()) {
    m.charge(iterable.as_dict().size());
    std::vector<cell> keys;
    for (const auto& entry : iterable.as_dict().entries()) keys.push_back(entry.first);
    return keys;
  }
  if (iterable.is_sequence()) {
    const sequence& source = iterable.as_sequence();
    const std::size_t from = source.kind == sequence_kind::iterator ? std::exchange(source.consumed, source.items.size()) : 0;
    m.charge(1 + source.items.size() - from);
    return {source.items.begin() + static_cast<std::ptrdiff_t>(from), source.items.end()};
  }
  throw render_error("'" + std::string(iterable.type_name()) + "' object is not iterable");
}

std::size_t length_of(machine& m, const cell& item) {
  if (item.is_undefined()) return 0;
  if (item.is_text()) return item.as_text().length;
  if (item.is_dict()) return item.as_dict().size();
  if (item.is_sequence() && item.as_sequence().kind != sequence_kind::iterator) return item.as_sequence().items.size();
  if (item.is_object() && item.as_object()->type_name() == "LoopContext") {
    return static_cast<std::size_t>(item.as_object()->attribute(m, "length")->as_int());
  }
  throw render_error("object of type '" + std::string(item.type_name()) + "' has no len()");
}

cell slice(machine& m, const cell& base, const slice_bounds& bounds) {
  if (base.is_undefined()) fail_undefined(base);
  if (base.is_text()) return slice_text(m, base.as_text(), resolve(bounds, base.as_text().length));
  const bool row =
      base.is_sequence(sequence_kind::list) || base.is_sequence(sequence_kind::tuple) || base.is_sequence(sequence_kind::range);
  if (!row) throw render_error("'" + std::string(base.type_name()) + "' object cannot be sliced");
  const sequence& source = base.as_sequence();
  const walk w = resolve(bounds, source.items.size());
  const std::size_t count = w.count();
  m.charge(1 + count);
  std::vector<cell> out;
  out.reserve(count);
  std::int64_t at = w.start;
  for (std::size_t i = 0; i < count; ++i, at += i < count ? w.step : 0) out.push_back(source.items[static_cast<std::size_t>(at)]);
  cell made = make_sequence(source.kind, std::move(out));
  if (source.kind != sequence_kind::range) return made;
  auto range = std::make_shared<sequence>(made.as_sequence());
  range->start = range_item(source, w.start);
  range->stop = range_item(source, w.stop);
  if (__builtin_mul_overflow(source.step, w.step, &range->step)) throw render_error("an integer is out of range");
  return cell::sequence_ptr(std::move(range));
}

std::optional<cell> subscript(machine& m, const cell& base, const cell& key) {
  m.charge();
  if (base.is_object()) return base.as_object()->item(m, key);
  if (base.is_dict()) {
    const cell* found = nullptr;
    try {
      found = base.as_dict().find(key);
    } catch (const render_error&) { // a key that cannot be hashed is in no dict
    }
    return found != nullptr ? std::optional(*found) : std::nullopt;
  }
  if (base.is_text()) {
    const text& source = base.as_text();
    auto at = position(key, source.length);
    if (!at) return std::nullopt;
    const auto index = static_cast<std::int64_t>(*at);
    return slice_text(m, source, {index, index + 1, 1});
  }
  if (!base.is_sequence()) return std::nullopt;
  const sequence& source = base.as_sequence();
  if (source.kind != sequence_kind::list && source.kind != sequence_kind::tuple && source.kind != sequence_kind::range) return std::nullopt;
  auto at = position(key, source.items.size());
  return at ? std::optional(source.items[*at]) : std::nullopt;
}

} // namespace troupe::jinja
