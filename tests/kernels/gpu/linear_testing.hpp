// What the tests of products on the GPU share: fresh inputs on both sides, the exact product, and the four paths by numbers of rows.
#pragma once

#include <cmath>
#include <string>

#include "core/weight_view.hpp"
#include "kernels/linear.hpp"
#include "kernels/linear_gpu.hpp"
#include "kernels/rms_norm.hpp"
#include "tests/kernels/gpu/gpu_testing.hpp"

namespace troupe::test {

struct product_shape {
  std::int64_t rows, outputs, columns;
};

class gpu_linear_test : public gpu_op_test {
 protected:
  // One product on fresh inputs: what goes to both sides, and the exact answer of the product alone.
  struct problem {
    dtype type;
    product_shape s;
    std::vector<float> x, weight, norm, bias, residual;
    std::vector<float> product; // [rows][outputs], after the norm (when wanted) and with the bias (likewise)
    std::vector<double> spread; // root of the sum of squares of each product's terms
    buffer device_weight, device_x, device_norm, device_bias, device_residual, workspace;
  };

  problem make(dtype type, const product_shape& s, bool with_norm, bool with_bias) {
    const auto n = [](std::int64_t a, std::int64_t b) { return static_cast<std::size_t>(a * b); };
    problem p{type, s, exact(type, n(s.rows, s.columns), 2.0F), exact(type, n(s.outputs, s.columns)), {}, {}, {}, {}, {}, {}, {}, {}, {},
              {},   {}};
    p.residual = exact(type, n(s.rows, s.outputs), 10.0F);
    std::vector<float> in = p.x;
    if (with_norm) {
      p.norm = exact(type, n(s.columns, 1));
      cpu::rms_norm(pool_, {p.x.data(), s.columns, in.data(), s.columns, s.rows, 1, s.columns, p.norm.data(), 1e-5F});
      p.device_norm = upload(narrow(type, p.norm));
    }
    if (with_bias) {
      p.bias = exact(type, n(s.outputs, 1));
      p.device_bias = upload(narrow(type, p.bias));
    }
    p.product = poisoned(n(s.rows, s.outputs));
    const weight_view view{dtype::f32, s.outputs, s.columns, reinterpret_cast<const std::byte*>(p.weight.data())};
    cpu::linear_reference(view, with_bias ? p.bias.data() : nullptr, in.data(), s.rows, p.product.data());
    p.spread = spread_of(p, in);
    p.device_weight = upload(narrow(type, p.weight));
    if (const std::size_t bytes = gpu::linear_workspace(static_cast<std::int32_t>(s.rows), s.columns); bytes > 0) {
      p.workspace = upload(std::vector<std::byte>(bytes, std::byte{0xff}));
    }
    p.device_x = upload(narrow(type, p.x));
    p.device_residual = upload(narrow(type, p.residual));
    return p;
  }

  static std::vector<double> spread_of(const problem& p, const std::vector<float>& in) {
    std::vector<double> spread;
    for (std::int64_t r = 0; r < p.s.rows; ++r) {
      for (std::int64_t o = 0; o < p.s.outputs; ++o) {
        double sum = 0;
        for (std::int64_t c = 0; c < p.s.columns; ++c) {
          const double term = static_cast<double>(in[static_cast<std::size_t>(r * p.s.columns + c)]) *
                              static_cast<double>(p.weight[static_cast<std::size_t>(o * p.s.columns + c)]);
          sum += term * term;
        }
        spread.push_back(std::sqrt(sum));
      }
    }
    return spread;
  }

  static gpu::linear_args args_of(const problem& p, std::byte* y, std::int64_t y_stride) {
    gpu::linear_args args;
    args.type = p.type;
    args.weight = p.device_weight.data();
    args.workspace = p.workspace.data();
    args.out_rows = p.s.outputs;
    args.columns = p.s.columns;
    args.x = p.device_x.data();
    args.x_stride = p.s.columns;
    args.rows = static_cast<std::int32_t>(p.s.rows);
    args.norm_weight = p.device_norm.data();
    args.epsilon = 1e-5F;
    args.bias = p.device_bias.data();
    args.y = y;
    args.y_stride = y_stride;
    return args;
  }

  // What a term's rounding to 16 bits does to a sum (only with a norm, whose result is rounded before it is multiplied), at 5 sigma.
  static double allowed(const problem& p, std::size_t i) { return (p.norm.empty() ? 2e-5 : 2.0 * unit(p.type)) * p.spread[i]; }
};

// The tests that go over all paths run once for each, so that one path alone can be looked at (under racecheck, say).
struct row_range {
  std::int64_t least, most;
};
inline constexpr row_range path_rows[] = {{1, 2}, {3, 8}, {9, 32}, {33, 128}};

class gpu_linear_path_test : public gpu_linear_test, public ::testing::WithParamInterface<row_range> {
 protected:
  static bool takes(std::int64_t rows) { return rows >= GetParam().least && rows <= GetParam().most; }
};

inline std::string name_of_rows(const ::testing::TestParamInfo<row_range>& range) {
  return std::to_string(range.param.least) + "_to_" + std::to_string(range.param.most);
}

} // namespace troupe::test
