#include "models/safetensors.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/models/file_builders.hpp"

namespace troupe {
namespace {

using test_files::as_bytes;
using test_files::load_failure;
using test_files::safetensors;
using testing::HasSubstr;

std::vector<file_tensor> parse(const std::string& file) { return parse_safetensors(as_bytes(file), "x.safetensors"); }

std::string failure_of(std::string_view header, std::string_view data = "") {
  const std::string file = safetensors(header, data);
  const std::string line = load_failure([&] { parse(file); });
  EXPECT_THAT(line, testing::StartsWith("x.safetensors: "));
  EXPECT_EQ(line.find('\n'), std::string::npos);
  return line;
}

TEST(safetensors, tensors_come_in_data_order_with_type_shape_and_bytes) {
  const std::string file =
      safetensors(R"({"b":{"dtype":"BF16","shape":[2,3],"data_offsets":[4,16]},"a":{"dtype":"F32","shape":[],"data_offsets":[0,4]}})",
                  "wxyzABCDEFGHIJKL");
  const auto tensors = parse(file);
  ASSERT_EQ(tensors.size(), 2U);
  EXPECT_EQ(tensors[0].name, "a");
  EXPECT_TRUE(tensors[0].shape.empty());
  EXPECT_EQ(tensors[1].name, "b");
  EXPECT_EQ(tensors[1].type, dtype::bf16);
  EXPECT_EQ(tensors[1].type_name, "BF16");
  EXPECT_EQ(tensors[1].shape, (std::vector<std::int64_t>{2, 3}));
  ASSERT_EQ(tensors[1].data.size(), 12U);
  EXPECT_EQ(static_cast<char>(tensors[1].data[0]), 'A');
}

TEST(safetensors, zero_size_tensors_load_in_the_middle_and_at_the_end) {
  const std::string file =
      safetensors(R"({"mark":{"dtype":"F32","shape":[0],"data_offsets":[4,4]},"a":{"dtype":"I8","shape":[4],"data_offsets":[0,4]},)"
                  R"("b":{"dtype":"U8","shape":[2],"data_offsets":[4,6]},"last":{"dtype":"F16","shape":[3,0],"data_offsets":[6,6]}})",
                  "abcdef");
  const auto tensors = parse(file);
  ASSERT_EQ(tensors.size(), 4U);
  EXPECT_EQ(tensors[1].name, "mark");
  EXPECT_TRUE(tensors[1].data.empty());
  EXPECT_EQ(tensors[3].name, "last");
}

TEST(safetensors, a_tensor_with_elements_but_no_bytes_is_refused) {
  EXPECT_THAT(failure_of(R"({"t":{"dtype":"F32","shape":[1],"data_offsets":[0,0]}})"), HasSubstr("t: F32 [1] does not fill its 0 bytes"));
}

TEST(safetensors, metadata_is_skipped_by_name_whether_empty_or_not) {
  for (const char* metadata : {R"("__metadata__":{},)", R"("__metadata__":{"format":"pt"},)", ""}) {
    const std::string file = safetensors("{" + std::string(metadata) + R"("t":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}})", "x");
    EXPECT_EQ(parse(file).size(), 1U) << metadata;
  }
}

TEST(safetensors, header_longer_than_the_file_or_the_limit_is_refused) {
  std::string file = safetensors("{}");
  file[0] = 3;
  EXPECT_THAT(load_failure([&] { parse(file); }), HasSubstr("ends inside its header"));
  file[7] = 0x7f;
  EXPECT_THAT(load_failure([&] { parse(file); }), HasSubstr("claims a header"));
  EXPECT_THAT(load_failure([&] { parse("1234567"); }), HasSubstr("too short"));
}

TEST(safetensors, header_that_is_no_json_object_is_refused) {
  failure_of("[]");
  failure_of("{\"a\":");
  failure_of(R"({"t":3})");
  failure_of(R"({"t":{"shape":[1],"data_offsets":[0,1]}})", "x");
  failure_of(R"({"t":{"dtype":"U8","data_offsets":[0,1]}})", "x");
  failure_of(R"({"t":{"dtype":"U8","shape":[1]}})", "x");
}

TEST(safetensors, shapes_whose_size_wraps_round_are_refused) {
  EXPECT_THAT(failure_of(R"({"t":{"dtype":"F32","shape":[4611686018427387904,4],"data_offsets":[0,0]}})"), HasSubstr("overflows"));
  EXPECT_THAT(failure_of(R"({"t":{"dtype":"F64","shape":[2305843009213693952],"data_offsets":[0,0]}})"), HasSubstr("overflows"));
  EXPECT_THAT(failure_of(R"({"t":{"dtype":"U8","shape":[18446744073709551616],"data_offsets":[0,0]}})"), HasSubstr("dimension"));
  EXPECT_THAT(failure_of(R"({"t":{"dtype":"U8","shape":[-1],"data_offsets":[0,0]}})"), HasSubstr("dimension"));
  // A zero beside dimensions that overflow does not make them sane.
  EXPECT_THAT(failure_of(R"({"t":{"dtype":"U8","shape":[0,9223372036854775807,9223372036854775807],"data_offsets":[0,0]}})"),
              HasSubstr("overflows"));
}

TEST(safetensors, offsets_outside_the_data_or_backwards_are_refused) {
  EXPECT_THAT(failure_of(R"({"t":{"dtype":"U8","shape":[4],"data_offsets":[0,4]}})", "abc"),
              HasSubstr("ends at byte 4 of a data section of 3"));
  EXPECT_THAT(failure_of(R"({"t":{"dtype":"U8","shape":[1],"data_offsets":[1,0]}})", "abc"), HasSubstr("backwards"));
  failure_of(R"({"t":{"dtype":"U8","shape":[1],"data_offsets":[-1,0]}})", "abc");
  failure_of(R"({"t":{"dtype":"U8","shape":[1],"data_offsets":[0,1,2]}})", "abc");
  failure_of(R"({"t":{"dtype":"U8","shape":[1],"data_offsets":[0.0,1.0]}})", "abc");
}

TEST(safetensors, holes_overlaps_and_left_over_bytes_are_refused) {
  EXPECT_THAT(failure_of(R"({"t":{"dtype":"U8","shape":[2],"data_offsets":[1,3]}})", "abc"), HasSubstr("hole"));
  EXPECT_THAT(failure_of(R"({"t":{"dtype":"U8","shape":[2],"data_offsets":[0,2]}})", "abc"), HasSubstr("1 bytes after the last tensor"));
  EXPECT_THAT(
      failure_of(R"({"a":{"dtype":"U8","shape":[2],"data_offsets":[0,2]},"b":{"dtype":"U8","shape":[2],"data_offsets":[1,3]}})", "abc"),
      HasSubstr("overlap"));
}

TEST(safetensors, unknown_types_are_refused_and_known_ones_without_kernels_are_listed) {
  EXPECT_THAT(failure_of(R"({"t":{"dtype":"Q9","shape":[1],"data_offsets":[0,1]}})", "x"), HasSubstr("unknown dtype Q9"));
  const std::string file = safetensors(R"({"t":{"dtype":"F8_E4M3","shape":[3],"data_offsets":[0,3]}})", "abc");
  EXPECT_EQ(parse(file)[0].type, std::nullopt);
}

TEST(safetensors, names_from_the_file_cannot_break_the_error_line) { EXPECT_THAT(failure_of("{\"a\\nb\\u0007\":3}"), HasSubstr("a?b?: ")); }

} // namespace
} // namespace troupe
