#include "tokenizer/jinja/cell.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "tokenizer/jinja/unicode.hpp"

namespace troupe::jinja {

namespace {

constexpr std::size_t kMaxNesting = 200;        // of containers
constexpr std::size_t kIndexFrom = 16;          // entries from which a dict keeps an index
constexpr std::size_t kMaxTupleKey = 64U << 10; // bytes of a tuple's hash key: tuples may share parts, and grow exponentially

void check_nesting(std::size_t depth) {
  if (depth > kMaxNesting) throw render_error("data is nested too deeply");
}

template <class T>
std::string bits(char mark, T value) {
  std::string out(1 + sizeof value, mark);
  std::memcpy(out.data() + 1, &value, sizeof value);
  return out;
}

std::string number_key(double value) {
  constexpr double limit = 9223372036854775808.0; // 2^63
  if (value == std::floor(value) && value >= -limit && value < limit) return bits('i', static_cast<std::int64_t>(value));
  return bits('f', value);
}

} // namespace

text::text(std::string content) : bytes(std::move(content)), length(unicode::length(bytes)) {}

cell cell::literal(std::string_view content) { return std::make_shared<const text>(std::string(content)); }

bool cell::is_callable() const { return is_method() || (is_object() && as_object()->callable()); }

bool cell::truthy() const {
  if (is_bool()) return as_bool();
  if (is_int()) return as_int() != 0;
  if (is_double()) return as_double() != 0;
  if (is_text()) return !bytes().empty();
  if (is_dict()) return as_dict().size() > 0;
  if (is_sequence()) return as_sequence().kind == sequence_kind::iterator || !as_sequence().items.empty();
  return is_method() || is_object();
}

std::size_t cell::depth() const {
  if (is_sequence()) return as_sequence().depth;
  if (is_dict()) return as_dict().depth();
  if (is_method()) return as_method().self.depth() + 1;
  return 0;
}

std::string_view cell::type_name() const {
  if (is_undefined()) return "Undefined";
  if (is_none()) return "NoneType";
  if (is_bool()) return "bool";
  if (is_int()) return "int";
  if (is_double()) return "float";
  if (is_text()) return "str";
  if (is_dict()) return "dict";
  if (is_method()) return "builtin_function_or_method";
  if (is_object()) return as_object()->type_name();
  switch (as_sequence().kind) {
    case sequence_kind::list:
      return "list";
    case sequence_kind::tuple:
      return "tuple";
    case sequence_kind::range:
      return "range";
    case sequence_kind::iterator:
      return "generator";
    case sequence_kind::dict_keys:
      return "dict_keys";
    case sequence_kind::dict_values:
      return "dict_values";
    case sequence_kind::dict_items:
      return "dict_items";
  }
  return "object";
}

bool cell::same_object(const cell& other) const {
  if (data_.index() != other.data_.index()) return false;
  if (is_none()) return true;
  if (is_bool()) return as_bool() == other.as_bool();
  if (is_int()) return as_int() == other.as_int();
  if (is_text()) return &as_text() == &other.as_text() || bytes() == other.bytes();
  if (is_sequence()) return &as_sequence() == &other.as_sequence();
  if (is_dict()) return &as_dict() == &other.as_dict();
  if (is_object()) return as_object() == other.as_object();
  return false;
}

std::string hash_key(const cell& key) {
  if (key.is_text()) return "s" + key.bytes();
  if (key.is_integral()) return bits('i', key.as_int());
  if (key.is_double()) return number_key(key.as_double());
  if (key.is_none()) return "n";
  if (key.is_undefined()) return "u";
  if (key.is_object()) return bits('o', key.as_object());
  if (key.is_sequence(sequence_kind::tuple)) {
    std::string out = "t";
    for (const cell& part : key.as_sequence().items) {
      const std::string inner = hash_key(part);
      out += bits('l', inner.size()) + inner;
      if (out.size() > kMaxTupleKey) throw render_error("a tuple is too large to be a key");
    }
    return out;
  }
  throw render_error("unhashable type: '" + std::string(key.type_name()) + "'");
}

std::optional<std::size_t> dict::position(const cell& key) const {
  if (index_.empty() && key.is_text()) return position(key.bytes());
  const std::string hash = hash_key(key);
  if (!index_.empty()) {
    auto it = index_.find(hash);
    return it == index_.end() ? std::nullopt : std::optional(it->second);
  }
  auto it = std::find_if(entries_.begin(), entries_.end(), [&](const entry& e) { return hash_key(e.first) == hash; });
  return it == entries_.end() ? std::nullopt : std::optional(static_cast<std::size_t>(it - entries_.begin()));
}

std::optional<std::size_t> dict::position(std::string_view key) const {
  if (!index_.empty()) {
    auto it = index_.find("s" + std::string(key));
    return it == index_.end() ? std::nullopt : std::optional(it->second);
  }
  auto it = std::find_if(entries_.begin(), entries_.end(), [&](const entry& e) { return e.first.is_text() && e.first.bytes() == key; });
  return it == entries_.end() ? std::nullopt : std::optional(static_cast<std::size_t>(it - entries_.begin()));
}

const cell* dict::find(const cell& key) const {
  auto at = position(key);
  return at ? &entries_[*at].second : nullptr;
}

const cell* dict::find(std::string_view key) const {
  auto at = position(key);
  return at ? &entries_[*at].second : nullptr;
}

void dict::set(cell key, cell item) {
  const std::size_t depth = 1 + std::max(key.depth(), item.depth());
  check_nesting(depth);
  depth_ = std::max(depth_, depth);
  if (auto at = position(key)) {
    entries_[*at].second = std::move(item);
    return;
  }
  entries_.emplace_back(std::move(key), std::move(item));
  if (!index_.empty()) {
    index_.emplace(hash_key(entries_.back().first), entries_.size() - 1);
  } else if (entries_.size() >= kIndexFrom) {
    for (std::size_t i = 0; i < entries_.size(); ++i) index_.emplace(hash_key(entries_[i].first), i);
  }
}

std::optional<cell> object::item(machine&, const cell&) { return std::nullopt; }
cell object::call(machine&, arguments) { throw render_error("'" + std::string(type_name()) + "' object is not callable"); }
std::string object::repr(machine&, std::size_t) { return "<" + std::string(type_name()) + ">"; }

cell make_sequence(sequence_kind kind, std::vector<cell> items) {
  auto made = std::make_shared<sequence>();
  made->kind = kind;
  for (const cell& item : items) made->depth = std::max(made->depth, item.depth() + 1);
  check_nesting(made->depth);
  made->items = std::move(items);
  return cell::sequence_ptr(std::move(made));
}

cell make_dict(dict entries) { return std::make_shared<const dict>(std::move(entries)); }
cell make_undefined(std::string why) { return undefined{std::make_shared<const std::string>(std::move(why))}; }

} // namespace troupe::jinja
