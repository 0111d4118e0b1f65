#include "kernels/matmul_gpu.hpp"

#include <filesystem>
#include <fstream>
#include <sstream>

#include "device/cuda/graph.hpp"
#include "device/cuda/resources.hpp"
#include "tests/kernels/gpu/gpu_testing.hpp"

namespace troupe {
namespace {

struct shape {
  std::int32_t rows;
  std::int64_t out_rows, columns;
};

class gpu_matmul_test : public test::gpu_op_test {
 protected:
  struct problem {
    dtype type;
    shape s;
    std::int64_t x_stride, y_stride;
    std::vector<float> w, x, bias, residual;
    buffer dw, dx, dbias, dresidual, y;
  };

  problem make(dtype type, const shape& s) {
    problem p{type, s, s.columns + 8, s.out_rows + 16, {}, {}, {}, {}, {}, {}, {}, {}, {}};
    const auto count = [](std::int64_t a, std::int64_t b) { return static_cast<std::size_t>(a * b); };
    p.w = exact(type, count(s.out_rows, s.columns));
    p.x = exact(type, count(s.rows, p.x_stride));
    p.bias = exact(type, count(s.out_rows, 1), 4.0F);
    p.residual = exact(type, count(s.rows, p.y_stride), 4.0F);
    for (std::size_t i = 0; i < p.x.size(); ++i) { // what lies between the rows is no part of the product
      if (static_cast<std::int64_t>(i) % p.x_stride >= s.columns) p.x[i] = std::numeric_limits<float>::quiet_NaN();
    }
    p.dw = upload(narrow(type, p.w)), p.dx = upload(narrow(type, p.x)), p.dbias = upload(narrow(type, p.bias));
    p.dresidual = upload(narrow(type, p.residual));
    return p;
  }

  gpu::matmul_args args_of(const problem& p, bool bias, bool residual) const {
    gpu::matmul_args a;
    a.type = a.y_type = p.type;
    a.weight = p.dw.data();
    a.out_rows = p.s.out_rows;
    a.columns = p.s.columns;
    a.x = p.dx.data();
    a.x_stride = p.x_stride;
    a.rows = p.s.rows;
    if (bias) a.bias = p.dbias.data();
    if (residual) a.residual = p.dresidual.data();
    a.y = p.y.data();
    a.y_stride = p.y_stride;
    return a;
  }

  // Every element, and that nothing else was written.
  void expect_right(const problem& p, const std::vector<float>& out, bool bias, bool residual, double rounding,
                    double rounding_before = 0) {
    for (std::int64_t r = 0; r < p.s.rows; ++r) {
      for (std::int64_t o = 0; o < p.y_stride; ++o) {
        const float got = out[static_cast<std::size_t>(r * p.y_stride + o)];
        if (o >= p.s.out_rows) {
          ASSERT_TRUE(std::isnan(got)) << "wrote behind row " << r;
          continue;
        }
        double right = 0, size = 0;
        for (std::int64_t i = 0; i < p.s.columns; ++i) {
          const double term = static_cast<double>(p.w[static_cast<std::size_t>(o * p.s.columns + i)]) *
                              static_cast<double>(p.x[static_cast<std::size_t>(r * p.x_stride + i)]);
          right += term, size += std::abs(term);
        }
        if (bias) right += static_cast<double>(p.bias[static_cast<std::size_t>(o)]);
        const double product = right;
        if (residual) right += static_cast<double>(p.residual[static_cast<std::size_t>(r * p.y_stride + o)]);
        ASSERT_NEAR(static_cast<double>(got), right, rounding * std::abs(right) + rounding_before * std::abs(product) + 2e-6 * size + 1e-6)
            << "row " << r << ", column " << o;
      }
    }
  }

  std::vector<std::string> lines_;
};

constexpr shape shapes[] = {{1, 8, 8}, {3, 72, 136}, {17, 264, 520}, {129, 1000, 264}, {300, 136, 2048}};

TEST_F(gpu_matmul_test, equals_the_reference_with_bias_residual_and_in_place) {
  gpu::matmul product(*allocator_, {}, [](const std::string&) {});
  for (const dtype type : {dtype::bf16, dtype::f16}) {
    for (const shape& s : shapes) {
      for (const bool bias : {false, true}) {
        for (const int residual : {0, 1, 2}) { // 2: in place
          SCOPED_TRACE(::testing::Message() << traits(type).name << " " << s.rows << " x " << s.out_rows << " x " << s.columns << ", bias "
                                            << bias << ", residual " << residual);
          problem p = make(type, s);
          std::vector<float> start = test::poisoned(p.residual.size());
          for (std::size_t i = 0; residual == 2 && i < start.size(); ++i) {
            if (static_cast<std::int64_t>(i) % p.y_stride < s.out_rows) start[i] = p.residual[i];
          }
          p.y = upload(narrow(type, start));
          gpu::matmul_args args = args_of(p, bias, residual == 1);
          if (residual == 2) args.residual = p.y.data();
          product.run(stream(), args);
          expect_right(p, widen(type, download<std::uint16_t>(p.y)), bias, residual != 0, test::unit(type) / 2,
                       residual == 2 ? test::unit(type) / 2 : 0);
        }
      }
    }
  }
}

TEST_F(gpu_matmul_test, logits_come_in_f32) {
  gpu::matmul product(*allocator_, {}, [](const std::string&) {});
  for (const dtype type : {dtype::bf16, dtype::f16}) {
    for (const shape& s : shapes) {
      problem p = make(type, s);
      p.y = upload(test::poisoned(p.residual.size()));
      gpu::matmul_args args = args_of(p, false, false);
      args.y_type = dtype::f32;
      product.run(stream(), args);
      expect_right(p, download<float>(p.y), false, false, 1e-6);
    }
  }
}

TEST_F(gpu_matmul_test, tuned_algorithms_are_right_for_every_count_of_rows_and_survive_on_disk) {
  const std::filesystem::path file = std::filesystem::path(::testing::TempDir()) / ("matmul_" + std::to_string(seed_));
  const shape s{200, 264, 520};
  const std::int32_t counts[] = {64, 200};
  const auto check = [&](const std::filesystem::path& path) {
    problem p = make(dtype::bf16, s);
    p.y = poisoned_halves(p.residual.size());
    const std::vector<float> kept = p.x;
    gpu::matmul product(*allocator_, path, [this](const std::string& line) { lines_.push_back(line); });
    const void* weights[] = {p.dw.data(), p.dw.data()};
    product.tune(*stream_, args_of(p, true, false), weights, counts);
    for (const std::int32_t rows : {1, 63, 64, 65, 200}) {
      p = make(dtype::bf16, {rows, s.out_rows, s.columns});
      p.y = poisoned_halves(p.residual.size());
      product.run(stream(), args_of(p, true, false));
      expect_right(p, widen(dtype::bf16, download<std::uint16_t>(p.y)), true, false, test::unit(dtype::bf16) / 2);
    }
    product.save();
  };
  check(file);
  EXPECT_TRUE(lines_.empty()) << lines_.front();
  std::stringstream text;
  text << std::ifstream(file).rdbuf();
  ASSERT_NE(text.str().find("264 520"), std::string::npos) << "the file holds the product";
  const auto first_written = std::filesystem::last_write_time(file);
  check(file);
  EXPECT_TRUE(lines_.empty()) << lines_.front();
  EXPECT_EQ(std::filesystem::last_write_time(file), first_written) << "nothing was measured again";
  std::string damaged = text.str();
  damaged[damaged.find("264 520") + 12] ^= 1;
  const std::string foreign = "troupe matmul algorithms 1: another GPU\nchecksum 0\n";
  for (const std::string& content : {damaged, foreign, std::string(), std::string("\0\xff{]", 4), text.str().substr(0, 100)}) {
    lines_.clear();
    std::ofstream(file, std::ios::binary) << content;
    check(file);
    EXPECT_EQ(lines_.size(), 1U) << "a file that cannot be used is one line in the log";
  }
  lines_.clear();
  check("/proc/no/such/folder");
  EXPECT_EQ(lines_.size(), 1U) << "nor is one that cannot be written an error";
  std::filesystem::remove(file);
}

TEST_F(gpu_matmul_test, can_be_captured_and_allocates_nothing_after_its_start) {
  problem p = make(dtype::f16, {100, 128, 256});
  gpu::matmul product(*allocator_, {}, [](const std::string&) {});
  const void* weights[] = {p.dw.data()};
  const std::int32_t counts[] = {100};
  p.y = poisoned_halves(p.residual.size());
  product.tune(*stream_, args_of(p, false, true), weights, counts);
  p = make(dtype::f16, {100, 128, 256});
  p.y = poisoned_halves(p.residual.size());
  const cuda::graph recorded = cuda::graph::capture(*stream_, [&] { product.run(stream(), args_of(p, false, true)); });
  const cuda::resource_counts before = cuda::resources_made();
  recorded.launch(*stream_);
  product.run(stream(), args_of(p, false, true));
  EXPECT_EQ(before, cuda::resources_made());
  expect_right(p, widen(dtype::f16, download<std::uint16_t>(p.y)), false, true, test::unit(dtype::f16) / 2);
}

TEST_F(gpu_matmul_test, what_cannot_be_computed_is_refused) {
  gpu::matmul product(*allocator_, {}, [](const std::string&) {});
  problem p = make(dtype::bf16, {2, 16, 16});
  p.y = poisoned_halves(p.residual.size());
  gpu::matmul_args args = args_of(p, true, false);
  args.y_type = dtype::f32;
  EXPECT_THROW(product.run(stream(), args), std::invalid_argument) << "f32 with a bias";
  args = args_of(p, false, false);
  args.columns = 12;
  EXPECT_THROW(product.run(stream(), args), std::invalid_argument);
  args = args_of(p, false, false);
  args.type = args.y_type = dtype::f32;
  EXPECT_THROW(product.run(stream(), args), std::invalid_argument);
}

} // namespace
} // namespace troupe
