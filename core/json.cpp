#include "core/json.hpp"

#include <cmath>
#include <nlohmann/json.hpp>

namespace troupe::json {

namespace {

using nlohmann_json = nlohmann::json;

// An empty array or object takes about 200 bytes where a number takes 40, so it counts as this many values.
constexpr std::size_t kContainerCost = 8;

// Builds a `value` from parser events and enforces the limits as they arrive.
class tree_builder : public nlohmann::json_sax<nlohmann_json> {
 public:
  explicit tree_builder(const limits& bounds) : bounds_(bounds) {}

  bool null() override { return add(value()); }
  bool boolean(bool b) override { return add(value(b)); }
  bool number_integer(number_integer_t i) override { return add(value(static_cast<std::int64_t>(i))); }
  bool number_unsigned(number_unsigned_t u) override {
    return u <= INT64_MAX ? add(value(static_cast<std::int64_t>(u))) : add(value(static_cast<double>(u)));
  }
  bool number_float(number_float_t d, const string_t&) override { return std::isfinite(d) ? add(value(d)) : fail("number out of range"); }
  bool string(string_t& s) override { return add(value(std::move(s))); }
  bool binary(binary_t&) override { return fail("unexpected binary value"); }
  bool start_object(std::size_t) override { return open(value(value_object())); }
  bool start_array(std::size_t) override { return open(value(value_array())); }
  bool end_object() override { return close(); }
  bool end_array() override { return close(); }
  bool key(string_t& k) override {
    keys_.back() = std::move(k);
    return true;
  }
  bool parse_error(std::size_t position, const std::string&, const nlohmann::detail::exception& e) override {
    if (!failure_.empty()) return false;
    // The parser's own text quotes the input: keep its kind and place only.
    failure_ = (e.id == 406 ? "number out of range at byte " : "syntax error or invalid UTF-8 at byte ") + std::to_string(position);
    return false;
  }

  value take() { return std::move(root_); }
  const std::string& failure() const { return failure_; }

 private:
  bool fail(std::string reason) {
    failure_ = std::move(reason);
    return false;
  }
  bool add(value item) {
    if (++values_ > bounds_.max_values) return fail("more than " + std::to_string(bounds_.max_values) + " values");
    if (open_.empty()) {
      root_ = std::move(item);
    } else if (open_.back().is_array()) {
      open_.back().mutable_array().push_back(std::move(item));
    } else {
      open_.back().mutable_object().set(std::move(keys_.back()), std::move(item));
    }
    return true;
  }
  bool open(value container) {
    if (open_.size() >= bounds_.max_depth) return fail("nested deeper than " + std::to_string(bounds_.max_depth));
    values_ += kContainerCost - 1;
    open_.push_back(std::move(container));
    keys_.emplace_back();
    return true;
  }
  bool close() {
    value done = std::move(open_.back());
    open_.pop_back();
    keys_.pop_back();
    return add(std::move(done));
  }

  const limits& bounds_;
  std::vector<value> open_;
  std::vector<std::string> keys_; // the pending key of each open object
  value root_;
  std::size_t values_ = 0;
  std::string failure_;
};

void write(const value& item, std::string& out) {
  if (item.is_null()) {
    out += "null";
  } else if (item.is_bool()) {
    out += item.as_bool() ? "true" : "false";
  } else if (item.is_int()) {
    out += std::to_string(item.as_int());
  } else if (item.is_double()) {
    out += nlohmann_json(item.as_double()).dump(); // shortest round-trip form; null when not finite
  } else if (item.is_string()) {
    out += quote(item.as_string());
  } else if (item.is_array()) {
    out += '[';
    const char* comma = "";
    for (const value& element : item.as_array()) {
      out += comma;
      write(element, out);
      comma = ",";
    }
    out += ']';
  } else {
    out += '{';
    const char* comma = "";
    for (const auto& [key, member] : item.as_object().entries()) {
      out += comma;
      out += quote(key);
      out += ':';
      write(member, out);
      comma = ",";
    }
    out += '}';
  }
}

} // namespace

result<value> parse(std::string_view text, const limits& bounds) {
  tree_builder builder(bounds);
  if (!nlohmann_json::sax_parse(text.begin(), text.end(), &builder)) {
    return error{error_kind::invalid_request, "not valid JSON: " + builder.failure(), "", std::nullopt};
  }
  return builder.take();
}

std::string dump(const value& item) {
  std::string out;
  write(item, out);
  return out;
}

std::string quote(std::string_view text) { return nlohmann_json(text).dump(-1, ' ', false, nlohmann_json::error_handler_t::replace); }

} // namespace troupe::json
