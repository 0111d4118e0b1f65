#include "models/gguf.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>

#include "tests/models/file_builders.hpp"

namespace troupe {
namespace {

using test_files::gguf_builder;
using test_files::load_failure;
using testing::HasSubstr;

std::string failure_of(const gguf_builder& file) {
  const std::string line = load_failure([&] { parse_gguf(file.bytes(), "x.gguf"); });
  EXPECT_THAT(line, testing::StartsWith("x.gguf: "));
  EXPECT_EQ(line.find('\n'), std::string::npos);
  return line;
}

constexpr std::uint32_t kF32 = 0;
constexpr std::uint32_t kQ4_0 = 2;
constexpr std::uint32_t kQ6_K = 14;

TEST(gguf, reads_every_kind_of_value) {
  gguf_builder file(0, 14);
  file.string("u8").number(std::uint32_t{0}).number(std::uint8_t{255});
  file.string("i8").number(std::uint32_t{1}).number(std::int8_t{-5});
  file.string("u16").number(std::uint32_t{2}).number(std::uint16_t{65535});
  file.string("i16").number(std::uint32_t{3}).number(std::int16_t{-3});
  file.u32("u32", 4294967295U).i32("i32", -7).f32("f32", 0.5F);
  file.string("bool").number(std::uint32_t{7}).number(std::uint8_t{1});
  file.text_pair("string", "text");
  file.string("strings").number(std::uint32_t{9}).number(std::uint32_t{8}).number(std::uint64_t{2}).string("a").string("");
  file.string("u64").number(std::uint32_t{10}).number(std::uint64_t{7});
  file.string("huge").number(std::uint32_t{10}).number(std::numeric_limits<std::uint64_t>::max());
  file.string("i64").number(std::uint32_t{11}).number(std::int64_t{-9});
  file.string("f64").number(std::uint32_t{12}).number(0.25);
  const value metadata = parse_gguf(file.bytes(), "x").metadata;
  EXPECT_EQ(*metadata.find("u8"), value(255));
  EXPECT_EQ(*metadata.find("i8"), value(-5));
  EXPECT_EQ(*metadata.find("u16"), value(65535));
  EXPECT_EQ(*metadata.find("i16"), value(-3));
  EXPECT_EQ(*metadata.find("u32"), value(std::int64_t{4294967295}));
  EXPECT_EQ(*metadata.find("i32"), value(-7));
  EXPECT_EQ(*metadata.find("f32"), value(0.5));
  EXPECT_EQ(*metadata.find("bool"), value(true));
  EXPECT_EQ(*metadata.find("string"), value("text"));
  EXPECT_EQ(*metadata.find("strings"), value(value_array{"a", ""}));
  EXPECT_EQ(*metadata.find("u64"), value(7));
  EXPECT_TRUE(metadata.find("huge")->is_double());
  EXPECT_EQ(*metadata.find("i64"), value(-9));
  EXPECT_EQ(*metadata.find("f64"), value(0.25));
}

TEST(gguf, places_tensors_after_the_aligned_header_with_dimensions_turned_round) {
  for (std::uint32_t version : {2U, 3U}) {
    gguf_builder file(2, 1, version);
    file.u32("general.alignment", 64).tensor("m", {32, 3}, kQ4_0, 64).tensor("v", {4}, kF32, 0).pad(64);
    const std::size_t start = file.text.size();
    file.zeros(64).zeros(54);
    const gguf_file read = parse_gguf(file.bytes(), "x");
    EXPECT_EQ(read.version, version);
    ASSERT_EQ(read.tensors.size(), 2U);
    EXPECT_EQ(read.tensors[0].shape, (std::vector<std::int64_t>{3, 32}));
    EXPECT_EQ(read.tensors[0].type, dtype::q4_0);
    EXPECT_EQ(read.tensors[0].data.size(), 54U);
    EXPECT_EQ(read.tensors[0].data.data(), file.bytes().data() + start + 64);
    EXPECT_EQ(read.tensors[1].data.data(), file.bytes().data() + start);
  }
}

TEST(gguf, zero_element_tensors_are_accepted) {
  gguf_builder file(2, 0);
  file.tensor("a", {4, 0}, kF32, 0).tensor("b", {0, 4}, kQ4_0, 0).pad();
  const gguf_file read = parse_gguf(file.bytes(), "x");
  EXPECT_TRUE(read.tensors[0].data.empty());
  EXPECT_EQ(read.tensors[0].shape, (std::vector<std::int64_t>{0, 4}));
  EXPECT_TRUE(read.tensors[1].data.empty());
}

TEST(gguf, alignment_of_a_wrong_type_or_value_is_refused) {
  EXPECT_THAT(failure_of(gguf_builder(0, 1).i32("general.alignment", 32)), HasSubstr("general.alignment: its type is not uint32"));
  for (std::uint32_t bad : {0U, 24U, 1U << 30, 0xffffffe0U}) {
    EXPECT_THAT(failure_of(gguf_builder(0, 1).u32("general.alignment", bad)), HasSubstr("power of two")) << bad;
  }
}

TEST(gguf, byte_sizes_that_wrap_round_are_refused) {
  // 2^62 - 4 floats are 2^64 - 16 bytes: rounding that up to the alignment would give 0.
  EXPECT_THAT(failure_of(gguf_builder(1, 0).tensor("t", {(std::uint64_t{1} << 62) - 4}, kF32, 0).pad()), HasSubstr("t: "));
  EXPECT_THAT(failure_of(gguf_builder(1, 0).tensor("t", {std::uint64_t{1} << 62, 4}, kF32, 0).pad()), HasSubstr("overflows"));
  EXPECT_THAT(failure_of(gguf_builder(1, 0).tensor("t", {256, std::uint64_t{1} << 56}, kQ6_K, 0).pad()), HasSubstr("overflows"));
  EXPECT_THAT(failure_of(gguf_builder(1, 0).tensor("t", {std::uint64_t{1} << 63}, kF32, 0).pad()), HasSubstr("overflows"));
}

TEST(gguf, counts_that_cannot_fit_are_refused_before_anything_is_reserved) {
  EXPECT_THAT(failure_of(gguf_builder(std::uint64_t{1} << 60, 0).zeros(64)), HasSubstr("tensor count"));
  EXPECT_THAT(failure_of(gguf_builder(0, std::uint64_t{1} << 60).zeros(64)), HasSubstr("key count"));
  // An array of 2^61 eight-byte elements, whose size in bytes wraps.
  EXPECT_THAT(
      failure_of(
          gguf_builder(0, 1).string("k").number(std::uint32_t{9}).number(std::uint32_t{10}).number(std::uint64_t{1} << 61).zeros(16)),
      HasSubstr("runs past the end"));
}

TEST(gguf, unknown_value_and_element_types_are_refused) {
  EXPECT_THAT(failure_of(gguf_builder(0, 1).string("k").number(std::uint32_t{13}).zeros(16)), HasSubstr("k: unknown value type 13"));
  EXPECT_THAT(
      failure_of(gguf_builder(0, 1).string("k").number(std::uint32_t{9}).number(std::uint32_t{77}).number(std::uint64_t{1}).zeros(16)),
      HasSubstr("unsupported array element type 77"));
  // Arrays of arrays would recurse.
  EXPECT_THAT(
      failure_of(gguf_builder(0, 1).string("k").number(std::uint32_t{9}).number(std::uint32_t{9}).number(std::uint64_t{1}).zeros(16)),
      HasSubstr("unsupported array element type 9"));
  EXPECT_THAT(failure_of(gguf_builder(0, 1).string("k").number(std::uint32_t{7}).number(std::uint8_t{2})), HasSubstr("boolean"));
}

TEST(gguf, string_lengths_near_the_end_of_the_number_range_are_refused) {
  for (std::uint64_t length :
       {std::numeric_limits<std::uint64_t>::max(), std::numeric_limits<std::uint64_t>::max() - 15, std::uint64_t{9}}) {
    EXPECT_THAT(failure_of(gguf_builder(0, 1).number(length).zeros(8)), HasSubstr("key")) << length;
  }
  EXPECT_THAT(failure_of(gguf_builder(0, 1).string(std::string(70'000, 'k')).zeros(8)), HasSubstr("a name of 70000 bytes"));
}

TEST(gguf, offsets_past_the_end_or_unaligned_are_refused) {
  const auto with_offset = [](std::uint64_t offset) {
    gguf_builder file(1, 0);
    file.tensor("t", {8}, kF32, offset).pad().zeros(32);
    return file;
  };
  EXPECT_EQ(parse_gguf(with_offset(0).bytes(), "x").tensors[0].data.size(), 32U);
  EXPECT_THAT(failure_of(with_offset(32)), HasSubstr("run past the end"));
  EXPECT_THAT(failure_of(with_offset(16)), HasSubstr("not a multiple of the alignment"));
  EXPECT_THAT(failure_of(with_offset(std::numeric_limits<std::uint64_t>::max() - 31)), HasSubstr("run past the end"));
  // The header's end itself lies beyond the file: no data section at all.
  EXPECT_THAT(failure_of(gguf_builder(1, 0).tensor("t", {8}, kF32, 0)), HasSubstr("run past the end"));
}

TEST(gguf, tensor_entries_that_make_no_sense_are_refused) {
  EXPECT_THAT(failure_of(gguf_builder(1, 0).tensor("t", {1, 1, 1, 1, 1}, kF32, 0).pad()), HasSubstr("5 dimensions"));
  EXPECT_THAT(failure_of(gguf_builder(1, 0).tensor("t", {31}, kQ4_0, 0).pad().zeros(64)), HasSubstr("whole number of Q4_0 blocks"));
  EXPECT_THAT(failure_of(gguf_builder(1, 0).tensor("t", {32}, 4, 0).pad().zeros(64)), HasSubstr("unknown tensor type 4"));
  EXPECT_THAT(failure_of(gguf_builder(1, 0).tensor("t", {256}, 10, 0).pad().zeros(84)), HasSubstr("tensor type Q2_K is not supported"));
  EXPECT_THAT(failure_of(gguf_builder(2, 0).tensor("t", {0}, kF32, 0).tensor("t", {0}, kF32, 0).pad()), HasSubstr("stands twice"));
  EXPECT_THAT(failure_of(gguf_builder(0, 2).u32("k", 1).u32("k", 2)), HasSubstr("stands twice"));
}

TEST(gguf, other_versions_byte_orders_and_files_are_refused) {
  EXPECT_THAT(failure_of(gguf_builder(0, 0, 1)), HasSubstr("version 1"));
  EXPECT_THAT(failure_of(gguf_builder(0, 0, 4)), HasSubstr("version 4"));
  EXPECT_THAT(failure_of(gguf_builder(0, 0, 0x03000000)), HasSubstr("big-endian"));
  gguf_builder other(0, 0);
  other.text[0] = 'g';
  EXPECT_THAT(failure_of(other), HasSubstr("no GGUF file"));
}

TEST(gguf, every_truncation_of_a_valid_file_is_an_error) {
  gguf_builder file(1, 3);
  file.text_pair("general.architecture", "llama").u32("k", 3);
  file.string("list").number(std::uint32_t{9}).number(std::uint32_t{8}).number(std::uint64_t{2}).string("a").string("b");
  file.tensor("t", {8, 2}, kF32, 0).pad().zeros(64);
  ASSERT_EQ(parse_gguf(file.bytes(), "x").tensors.size(), 1U);
  for (std::size_t size = 0; size < file.text.size(); ++size) {
    EXPECT_THROW(parse_gguf(file.bytes().first(size), "x"), load_error) << size;
  }
}

} // namespace
} // namespace troupe
