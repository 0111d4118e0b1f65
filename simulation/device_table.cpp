#include "simulation/device_table.hpp"

#include <algorithm>
#include <cmath>
#include <utility>

#include "core/json.hpp"

namespace troupe::simulation {

namespace {

constexpr std::size_t kMostPoints = 1000; // per axis

// The cell that x lies in, or the nearest one.
std::size_t cell_of(const std::vector<double>& axis, double x) {
  const auto above = std::upper_bound(axis.begin(), axis.end(), x) - axis.begin();
  return static_cast<std::size_t>(std::clamp<std::ptrdiff_t>(above - 1, 0, static_cast<std::ptrdiff_t>(axis.size()) - 2));
}

} // namespace

cost_line cost_grid::line(double count, double context) const {
  const std::size_t k = cell_of(contexts, context);
  const auto row = [&](std::size_t r, std::size_t c) { return ns[r * contexts.size() + c]; };
  double left = row(0, k), right = row(0, k + 1);
  if (counts.size() > 1) {
    const std::size_t r = cell_of(counts, count);
    const double share = (count - counts[r]) / (counts[r + 1] - counts[r]);
    left = row(r, k) + share * (row(r + 1, k) - row(r, k));
    right = row(r, k + 1) + share * (row(r + 1, k + 1) - row(r, k + 1));
  }
  cost_line l;
  l.slope = (right - left) / (contexts[k + 1] - contexts[k]);
  l.base = left - l.slope * contexts[k];
  l.until = k + 2 == contexts.size() ? INFINITY : contexts[k + 1];
  return l;
}

double cost_grid::at(double count, double context) const {
  const cost_line l = line(count, context);
  return std::max(0.0, l.base + l.slope * context);
}

double device_table::step_ns(const step_shape& s) const {
  const double decoding = s.decode_rows > 0 ? decode.at(s.decode_rows, s.decode_context) : 0;
  const double filling = s.prefill_tokens > 0 ? prefill.at(s.prefill_tokens, s.prefill_context) : 0;
  const bool both = s.decode_rows > 0 && s.prefill_tokens > 0;
  const double alone = decoding + filling - (both ? std::min({shared_ns, decoding, filling}) : 0);
  return alone + serving.step_ns + serving.row_ns * s.decode_rows;
}

cost_line device_table::decode_line(double rows, double context) const {
  cost_line l = decode.line(rows, context);
  l.base += serving.step_ns + serving.row_ns * rows;
  return l;
}

// -- the file ---------------------------------------------------------------------------------------------------------------------

namespace {

struct bad_member {
  std::string what;
};

const value& member(const value& object, const char* name) {
  const value* found = object.find(name);
  if (!found) throw bad_member{std::string(name) + " is missing"};
  return *found;
}

std::vector<double> numbers(const value& object, const char* name) {
  const value& list = member(object, name);
  if (!list.is_array() || list.as_array().empty()) throw bad_member{std::string(name) + " must be an array of numbers"};
  std::vector<double> out;
  for (const value& item : list.as_array()) {
    if (!item.is_number() || item.as_double() < 0) throw bad_member{std::string(name) + " must hold numbers that are not negative"};
    out.push_back(item.as_double());
  }
  return out;
}

std::int32_t limit(const value& object, const char* name) {
  const value& n = member(object, name);
  if (!n.is_int() || n.as_int() < 1 || n.as_int() > (1 << 30)) throw bad_member{std::string(name) + " must be a positive integer"};
  return static_cast<std::int32_t>(n.as_int());
}

cost_grid grid(const value& object, const char* name, const char* axis) {
  const value& from = member(object, name);
  cost_grid g{numbers(from, axis), numbers(from, "context"), numbers(from, "ns")};
  const auto ascends = [](const std::vector<double>& a) {
    return std::adjacent_find(a.begin(), a.end(), std::greater_equal<>()) == a.end();
  };
  if (!ascends(g.counts) || !ascends(g.contexts)) throw bad_member{std::string(name) + ": axes must ascend"};
  if (g.contexts.size() < 2) throw bad_member{std::string(name) + ": context needs two points"};
  if (g.counts.size() > kMostPoints || g.contexts.size() > kMostPoints || g.ns.size() != g.counts.size() * g.contexts.size()) {
    throw bad_member{std::string(name) + ": ns must hold one number for each pair of axis points, row by row"};
  }
  if (std::find(g.ns.begin(), g.ns.end(), 0.0) != g.ns.end()) throw bad_member{std::string(name) + ": no step takes no time"};
  return g;
}

double nanoseconds(const value& object, const char* name) {
  const value& n = member(object, name);
  if (!n.is_number() || n.as_double() < 0) throw bad_member{std::string(name) + " must be a number that is not negative"};
  return n.as_double();
}

device_table read(const value& root) {
  device_table t;
  if (const value* v = root.find("device"); v && v->is_string()) t.device = v->as_string();
  if (const value* v = root.find("model"); v && v->is_string()) t.model = v->as_string();
  const value& l = member(root, "limits");
  t.limits = {limit(l, "block_size"),         limit(l, "num_blocks"),    limit(l, "max_num_seqs"),
              limit(l, "max_batched_tokens"), limit(l, "max_model_len"), limit(l, "vocab_size")};
  t.decode = grid(root, "decode", "rows");
  t.prefill = grid(root, "prefill", "tokens");
  t.shared_ns = nanoseconds(root, "shared_ns");
  if (const value* s = root.find("serving")) { // tables from before it was measured have none
    t.serving = {nanoseconds(*s, "request_ns"), nanoseconds(*s, "step_ns"), nanoseconds(*s, "row_ns")};
  }
  return t;
}

value list_of(const std::vector<double>& numbers) {
  value_array out;
  for (const double n : numbers) out.emplace_back(n == std::floor(n) ? value(static_cast<std::int64_t>(n)) : value(n));
  return out;
}

value grid_of(const cost_grid& g, const char* axis) {
  value_object o;
  o.set(axis, list_of(g.counts));
  o.set("context", list_of(g.contexts));
  o.set("ns", list_of(g.ns));
  return o;
}

} // namespace

result<device_table> parse_device_table(std::string_view json_text) {
  const auto parsed = json::parse(json_text);
  if (!parsed) return parsed.failure();
  try {
    return read(*parsed);
  } catch (const bad_member& bad) {
    return invalid_request("", bad.what);
  }
}

std::string dump_device_table(const device_table& t) {
  value_object limits;
  limits.set("block_size", t.limits.block_size);
  limits.set("num_blocks", t.limits.num_blocks);
  limits.set("max_num_seqs", t.limits.max_num_seqs);
  limits.set("max_batched_tokens", t.limits.max_batched_tokens);
  limits.set("max_model_len", t.limits.max_model_len);
  limits.set("vocab_size", t.limits.vocab_size);
  value_object serving;
  serving.set("request_ns", t.serving.request_ns);
  serving.set("step_ns", t.serving.step_ns);
  serving.set("row_ns", t.serving.row_ns);
  value_object root;
  root.set("device", t.device);
  root.set("model", t.model);
  root.set("limits", std::move(limits));
  root.set("decode", grid_of(t.decode, "rows"));
  root.set("prefill", grid_of(t.prefill, "tokens"));
  root.set("shared_ns", t.shared_ns);
  root.set("serving", std::move(serving));
  return json::dump(root);
}

} // namespace troupe::simulation
