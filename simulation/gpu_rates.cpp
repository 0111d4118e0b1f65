#include "simulation/gpu_rates.hpp"

#include <algorithm>
#include <optional>
#include <string>

#include "core/json.hpp"

namespace troupe::simulation {
namespace {

using point = std::pair<double, double>;

// Along the measured points, level before the first one, in proportion behind the last.
double along(const std::vector<point>& points, double x) {
  if (x <= points.front().first) return points.front().second;
  for (std::size_t i = 1; i < points.size(); ++i) {
    const auto& [x0, y0] = points[i - 1];
    const auto& [x1, y1] = points[i];
    if (x <= x1) return y0 + (x - x0) / (x1 - x0) * (y1 - y0);
  }
  return x / points.back().first * points.back().second;
}

struct bad_member {
  std::string what;
};

std::optional<double> positive(const value& object, const std::string& name) {
  const value* const n = object.find(name);
  if (n == nullptr || n->is_null()) return std::nullopt;
  if (!n->is_number() || n->as_double() <= 0) throw bad_member{name + " must be a number above 0"};
  return n->as_double();
}

// What one way took; sizes that it was not measured for are left out.
std::vector<point> curve(const value& sizes, const char* way) {
  if (!sizes.is_array()) throw bad_member{"all_reduce: sizes must be an array"};
  std::vector<point> points;
  for (const value& sum : sizes.as_array()) {
    const auto bytes = positive(sum, "bytes"), seconds = positive(sum, way);
    if (!bytes) throw bad_member{"all_reduce: a size has no bytes"};
    if (!seconds) continue;
    if (!points.empty() && *bytes <= points.back().first) throw bad_member{"all_reduce: bytes must ascend"};
    points.emplace_back(*bytes, *seconds);
  }
  return points;
}

gpu_rates read(const value& root) {
  const value* const ceilings = root.find("ceilings");
  if (ceilings == nullptr || !ceilings->is_object()) throw bad_member{"ceilings is missing: no result of troupe bench ceilings"};
  gpu_rates rates;
  rates.read_bytes_per_second = positive(*ceilings, "read_bytes_per_second").value_or(rates.read_bytes_per_second);
  rates.flops_per_second = positive(*ceilings, "matmul_flops_per_second").value_or(rates.flops_per_second);
  const value* const group = root.find("all_reduce");
  if (group == nullptr) return rates;
  const auto gpus = positive(*group, "gpus");
  if (!gpus || *gpus < 2 || *gpus > 1024) throw bad_member{"all_reduce: gpus must be a number from 2 to 1024"};
  const value* const sizes = group->find("sizes");
  if (sizes == nullptr) throw bad_member{"all_reduce: sizes is missing"};
  rates.all_reduce_gpus = static_cast<std::int32_t>(*gpus);
  rates.at_once = curve(*sizes, "own_seconds");
  rates.in_slices = curve(*sizes, "nccl_seconds");
  if (rates.in_slices.empty()) throw bad_member{"all_reduce: no size has nccl_seconds"};
  return rates;
}

} // namespace

double all_reduce_seconds(const gpu_rates& rates, std::int32_t gpus, double bytes) {
  if (gpus < 2) return 0;
  const double measured = rates.all_reduce_gpus, wanted = gpus;
  const double sliced = along(rates.in_slices, bytes * ((wanted - 1) / wanted) / ((measured - 1) / measured));
  const double load = bytes * (wanted - 1) / (measured - 1);
  if (rates.at_once.empty() || load > rates.at_once.back().first) return sliced;
  return std::min(sliced, along(rates.at_once, load));
}

result<gpu_rates> parse_gpu_rates(std::string_view json_text) {
  const auto parsed = json::parse(json_text);
  if (!parsed) return parsed.failure();
  try {
    return read(*parsed);
  } catch (const bad_member& bad) {
    return invalid_request("", bad.what);
  }
}

} // namespace troupe::simulation
