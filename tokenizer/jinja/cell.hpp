// The values a template works with: Python's types as far as chat templates can see them. Everything but namespaces, loops and
// iterators is immutable, as in the sandbox that Hugging Face renders templates in.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <variant>
#include <vector>

namespace troupe::jinja {

class cell;
class dict;
class machine;
class object;
struct method;

// A fault at run time: wrong types, undefined values, spent budgets.
class render_error : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};
// The template called raise_exception: the message is its own.
class raised_error : public render_error {
 public:
  using render_error::render_error;
};

struct text {
  explicit text(std::string content);
  std::string bytes;  // valid UTF-8
  std::size_t length; // characters
  bool ascii() const { return length == bytes.size(); }
};

enum class sequence_kind : std::uint8_t { list, tuple, range, iterator, dict_keys, dict_values, dict_items };

// Anything that is a row of cells. An iterator (what map, select, items, reverse.. give) hands out each item once.
struct sequence {
  sequence_kind kind = sequence_kind::list;
  std::vector<cell> items;
  std::size_t depth = 1;                      // nesting of containers, this one included
  std::int64_t start = 0, stop = 0, step = 1; // of a range
  mutable std::size_t consumed = 0;           // by earlier readers of an iterator
};

struct undefined {
  std::shared_ptr<const std::string> why; // what an operation on it complains about
};
struct none_t {};

class cell {
 public:
  using text_ptr = std::shared_ptr<const text>;
  using sequence_ptr = std::shared_ptr<const sequence>;
  using dict_ptr = std::shared_ptr<const dict>;
  using method_ptr = std::shared_ptr<const method>;

  cell() = default; // none
  cell(bool b) : data_(b) {}
  cell(std::int64_t i) : data_(i) {}
  cell(int i) : data_(std::int64_t{i}) {}
  cell(double d) : data_(d) {}
  cell(undefined u) : data_(std::move(u)) {}
  cell(text_ptr t) : data_(std::move(t)) {}
  cell(sequence_ptr s) : data_(std::move(s)) {}
  cell(dict_ptr d) : data_(std::move(d)) {}
  cell(method_ptr f) : data_(std::move(f)) {}
  cell(object* o) : data_(o) {}
  // Strings go through machine::text, which counts them; literals of this program come in here.
  static cell literal(std::string_view content);
  template <class T>
  cell(T*) = delete; // a string literal is no bool

  bool is_undefined() const { return std::holds_alternative<undefined>(data_); }
  bool is_none() const { return std::holds_alternative<none_t>(data_); }
  bool is_bool() const { return std::holds_alternative<bool>(data_); }
  bool is_int() const { return std::holds_alternative<std::int64_t>(data_); } // not bool
  bool is_double() const { return std::holds_alternative<double>(data_); }
  bool is_integral() const { return is_int() || is_bool(); }
  bool is_number() const { return is_integral() || is_double(); }
  bool is_text() const { return std::holds_alternative<text_ptr>(data_); }
  bool is_sequence() const { return std::holds_alternative<sequence_ptr>(data_); }
  bool is_sequence(sequence_kind kind) const { return is_sequence() && as_sequence().kind == kind; }
  bool is_dict() const { return std::holds_alternative<dict_ptr>(data_); }
  bool is_method() const { return std::holds_alternative<method_ptr>(data_); }
  bool is_object() const { return std::holds_alternative<object*>(data_); }
  bool is_callable() const;

  // Each throws std::bad_variant_access on another kind.
  bool as_bool() const { return std::get<bool>(data_); }
  std::int64_t as_int() const { return is_bool() ? std::int64_t{as_bool()} : std::get<std::int64_t>(data_); }
  double as_double() const { return is_double() ? std::get<double>(data_) : static_cast<double>(as_int()); }
  const text& as_text() const { return *std::get<text_ptr>(data_); }
  const std::string& bytes() const { return as_text().bytes; }
  const sequence& as_sequence() const { return *std::get<sequence_ptr>(data_); }
  const dict& as_dict() const { return *std::get<dict_ptr>(data_); }
  const method& as_method() const { return *std::get<method_ptr>(data_); }
  object* as_object() const { return std::get<object*>(data_); }
  const undefined& as_undefined() const { return std::get<undefined>(data_); }

  bool truthy() const;
  std::size_t depth() const;          // of nested containers; 0 for scalars
  std::string_view type_name() const; // Python's
  bool same_object(const cell& other) const;

 private:
  std::variant<none_t, undefined, bool, std::int64_t, double, text_ptr, sequence_ptr, dict_ptr, method_ptr, object*> data_;
};

// Insertion-ordered, keys by Python's equality (1 == 1.0 == True).
class dict {
 public:
  using entry = std::pair<cell, cell>;
  const cell* find(const cell& key) const; // throws render_error when the key cannot be hashed
  const cell* find(std::string_view key) const;
  void set(cell key, cell item); // a repeated key keeps its place
  const std::vector<entry>& entries() const { return entries_; }
  std::size_t size() const { return entries_.size(); }
  std::size_t depth() const { return depth_; }

 private:
  std::optional<std::size_t> position(const cell& key) const;
  std::optional<std::size_t> position(std::string_view key) const;
  std::vector<entry> entries_;
  std::unordered_map<std::string, std::size_t> index_; // by hash_key, filled once entries_ is large
  std::size_t depth_ = 1;
};

struct arguments {
  std::vector<cell> positional;
  std::vector<std::pair<std::string, cell>> named;
};

// What lives as long as one rendering and may change: namespaces, loops, macros. Owned by the machine, so cycles are harmless.
class object {
 public:
  virtual ~object() = default;
  virtual std::string_view type_name() const = 0;
  virtual std::optional<cell> attribute(machine& m, std::string_view name) = 0;
  virtual std::optional<cell> item(machine& m, const cell& key);
  virtual bool callable() const { return false; }
  virtual cell call(machine& m, arguments args);
  virtual std::string repr(machine& m, std::size_t depth);
};

struct builtin {
  std::string_view name;
  cell (*run)(machine& m, const cell& self, const arguments& args);
};

// A built-in function, bound to the value it is a method of (none for globals).
struct method {
  cell self;
  const builtin* function;
};

// Containers nested too deeply are refused here, so that walking one never exhausts the stack.
cell make_sequence(sequence_kind kind, std::vector<cell> items);
inline cell make_list(std::vector<cell> items) { return make_sequence(sequence_kind::list, std::move(items)); }
inline cell make_tuple(std::vector<cell> items) { return make_sequence(sequence_kind::tuple, std::move(items)); }
inline cell make_iterator(std::vector<cell> items) { return make_sequence(sequence_kind::iterator, std::move(items)); }
cell make_dict(dict entries);
cell make_undefined(std::string why);

// Equal for equal keys; throws render_error for what Python cannot hash.
std::string hash_key(const cell& key);

} // namespace troupe::jinja
