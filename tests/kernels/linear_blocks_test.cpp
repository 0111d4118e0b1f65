// dequantise_row against the values that the `gguf` Python package reads from the same bytes (tests/fixtures/kernels/make_quants.py).
#include <gtest/gtest.h>

#include <fstream>
#include <iterator>
#include <map>
#include <string>

#include "kernels/linear.hpp"
#include "tests/kernels/linear_support.hpp"

namespace troupe::cpu {
namespace {

struct record {
  std::vector<std::byte> blocks;
  std::vector<float> values;
};

std::map<std::string, record> read_fixture() {
  std::ifstream file(TROUPE_SOURCE_DIR "/tests/fixtures/kernels/quants.bin", std::ios::binary);
  std::map<std::string, record> records;
  struct {
    char name[8];
    std::uint32_t bytes;
    std::uint32_t elements;
  } header;
  while (file.read(reinterpret_cast<char*>(&header), sizeof header)) {
    record r;
    r.blocks.resize(header.bytes);
    r.values.resize(header.elements);
    file.read(reinterpret_cast<char*>(r.blocks.data()), header.bytes);
    file.read(reinterpret_cast<char*>(r.values.data()), static_cast<std::streamsize>(4 * r.values.size()));
    if (file) records.emplace(std::string(header.name, strnlen(header.name, 8)), std::move(r));
  }
  return records;
}

TEST(DequantiseRow, EveryTypeReadsWhatTheGgufPackageReads) {
  const auto records = read_fixture();
  ASSERT_EQ(records.size(), test::all_types.size());
  for (dtype type : test::all_types) {
    const auto found = records.find(std::string(traits(type).name));
    ASSERT_NE(found, records.end()) << traits(type).name;
    const record& r = found->second;
    for (std::int64_t rows : {1, 2, 4}) { // the same bytes cut into rows
      const auto columns = static_cast<std::int64_t>(r.values.size()) / rows;
      const weight_view view{type, rows, columns, r.blocks.data()};
      for (std::int64_t row = 0; row < rows; ++row) {
        std::vector<float> out(static_cast<std::size_t>(columns), 1e30F);
        dequantise_row(view, row, out.data());
        for (std::int64_t c = 0; c < columns; ++c) {
          const float expected = r.values[static_cast<std::size_t>(row * columns + c)];
          ASSERT_NEAR(out[static_cast<std::size_t>(c)], expected, 1e-6F * std::abs(expected) + 1e-7F) << traits(type).name << " " << c;
        }
      }
    }
  }
}

TEST(DequantiseRow, BytesNeedNoAlignment) {
  std::mt19937 random{7};
  for (dtype type : test::all_types) {
    auto weight = test::random_weight(type, 2, 256, random);
    std::vector<float> expected(256);
    dequantise_row(weight.view, 1, expected.data());
    weight.bytes.insert(weight.bytes.begin(), std::byte{0});
    weight.view.data = weight.bytes.data() + 1;
    std::vector<float> out(256);
    dequantise_row(weight.view, 1, out.data());
    EXPECT_EQ(out, expected) << traits(type).name;
  }
}

} // namespace
} // namespace troupe::cpu
