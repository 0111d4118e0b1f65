// What one rendering runs on: its budgets, the objects it made, and the operations on cells, with Python's and Jinja2's meanings.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "tokenizer/jinja/cell.hpp"

namespace troupe::jinja {

struct budget {
  std::size_t steps;
  std::size_t depth;  // of evaluation
  std::size_t output; // bytes of one string
  std::chrono::milliseconds time;
};

class machine {
 public:
  machine(const budget& limits, std::int64_t now) : limits_(limits), now_(now), deadline_(std::chrono::steady_clock::now() + limits.time) {}
  machine(const machine&) = delete;
  machine& operator=(const machine&) = delete;

  // Every piece of work is paid for before it is done: one step for a node or an item, one for 64 bytes.
  void charge(std::size_t steps = 1);
  void charge_bytes(std::size_t bytes) { charge(1 + bytes / 64); }
  // For a string that is about to be made, maybe of an overflown (saturated) size.
  void check_size(std::size_t bytes) const;

  cell text(std::string content) {
    check_size(content.size());
    charge_bytes(content.size());
    return std::make_shared<const jinja::text>(std::move(content));
  }
  cell text(std::string_view content) { return text(std::string(content)); }
  void append(std::string& out, std::string_view more);

  template <class T, class... Args>
  T* make(Args&&... args) {
    charge();
    auto made = std::make_unique<T>(std::forward<Args>(args)...);
    T* plain = made.get();
    objects_.push_back(std::move(made));
    return plain;
  }

  std::int64_t now() const { return now_; }
  std::size_t max_output() const { return limits_.output; }

  // Nesting of evaluation; refuses what is deeper than the budget.
  class level {
   public:
    explicit level(machine& m) : machine_(m) {
      if (machine_.depth_ >= machine_.limits_.depth) throw render_error("expressions, blocks and calls are nested too deeply");
      ++machine_.depth_;
    }
    ~level() { --machine_.depth_; }
    level(const level&) = delete;
    level& operator=(const level&) = delete;

   private:
    machine& machine_;
  };

 private:
  budget limits_;
  std::int64_t now_;
  std::chrono::steady_clock::time_point deadline_;
  std::size_t steps_ = 0;
  std::size_t next_look_ = 0; // at the clock
  std::size_t depth_ = 0;
  std::vector<std::unique_ptr<object>> objects_;
};

// operators.cpp
enum class arithmetic_op : std::uint8_t { add, subtract, multiply, divide, floor_divide, modulo, power };
enum class compare_op : std::uint8_t { equal, not_equal, less, less_equal, greater, greater_equal, in, not_in };
cell arithmetic(machine& m, arithmetic_op op, const cell& a, const cell& b);
cell negative(const cell& a);
cell positive(const cell& a);
bool compare(machine& m, compare_op op, const cell& a, const cell& b);
bool equal(machine& m, const cell& a, const cell& b);
bool less(machine& m, const cell& a, const cell& b); // throws render_error for types without an order
bool contains(machine& m, const cell& container, const cell& item);

// sequences.cpp
// The items of anything that can be iterated; an iterator is used up.
std::vector<cell> items_of(machine& m, const cell& iterable);
bool is_iterable(const cell& item);
std::size_t length_of(machine& m, const cell& item); // len(); throws render_error
struct slice_bounds {
  cell start, stop, step; // none where left out
};
cell slice(machine& m, const cell& base, const slice_bounds& bounds);
// base[key], as Python: none when there is no such item.
std::optional<cell> subscript(machine& m, const cell& base, const cell& key);

// attributes.cpp
cell get_attribute(machine& m, const cell& base, std::string_view name); // base.name
cell get_item(machine& m, const cell& base, const cell& key);            // base[key]
std::optional<cell> find_method(const cell& base, std::string_view name);
cell call(machine& m, const cell& callee, arguments args);
[[noreturn]] void fail_undefined(const cell& item);

// print.cpp
std::string to_string(machine& m, const cell& item); // str()
std::string repr(machine& m, const cell& item, std::size_t depth = 0);
std::string float_repr(double number);
struct json_style {
  bool ascii = false;
  bool sorted = false;
  std::optional<std::string> indent;
  std::string item_separator = ", ";
  std::string key_separator = ": ";
};
std::string to_json(machine& m, const cell& item, const json_style& style);

// strings.cpp: parts that filters share with methods.
std::vector<std::string_view> split_lines(machine& m, std::string_view text); // str.splitlines
std::string replace_all(machine& m, std::string_view text, std::string_view from, std::string_view to, std::int64_t limit = -1);
std::string_view strip(machine& m, std::string_view text, const std::optional<std::string>& characters, bool left, bool right);
std::string upper(machine& m, std::string_view text);
std::string lower(machine& m, std::string_view text);
std::string capitalize(machine& m, std::string_view text);
// `left` and `right` times `fill` around the text.
std::string pad(machine& m, std::string_view text, std::size_t left, std::size_t right, std::string_view fill);
bool is_upper(std::string_view text); // str.isupper
bool is_lower(std::string_view text);
std::optional<cell> parse_int(std::string_view text, int base); // int(text, base); none when it is no number
std::optional<double> parse_float(std::string_view text);

// percent_format.cpp, brace_format.cpp, time_format.cpp
std::string format_percent(machine& m, std::string_view format, const cell& values);     // format % values
std::string format_braces(machine& m, std::string_view format, const arguments& values); // format.format(..)
std::string format_time(std::string_view format, std::int64_t unix_seconds);             // strftime, UTC

// Tables of names; nullptr for an unknown one.
const builtin* find_string_method(std::string_view name);
const builtin* find_filter(std::string_view name);
const builtin* find_test(std::string_view name);
const builtin* find_global(std::string_view name);

} // namespace troupe::jinja
