#include "models/inspect.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "core/json.hpp"

namespace troupe {
namespace {

using testing::HasSubstr;

std::shared_ptr<const checkpoint> open_fixture(const std::string& name) {
  return open_checkpoint(std::filesystem::path(TROUPE_SOURCE_DIR) / "tests/fixtures/models" / name);
}

TEST(inspect, the_table_says_what_a_reader_asks) {
  const std::string text = describe_checkpoint(*open_fixture("qwen3-yarn"), {.context = 100, .sequences = 3, .kv_type = dtype::f32});
  EXPECT_THAT(text, HasSubstr("Hugging Face safetensors, 25 tensors"));
  EXPECT_THAT(text, HasSubstr("qwen3"));
  EXPECT_THAT(text, HasSubstr("4 heads of 24, 2 KV heads, query and key norms"));
  EXPECT_THAT(text, HasSubstr("yarn scaling by 4 from 32 positions"));
  EXPECT_THAT(text, HasSubstr("context         128 tokens"));
  EXPECT_THAT(text, HasSubstr("768 B per token as F32")); // 2 layers * 2 heads * 24 * (K and V) * 4 bytes
  EXPECT_THAT(text, HasSubstr("225.0 KiB KV for 3 x 100 tokens"));
}

TEST(inspect, the_object_adds_up) {
  const auto source = open_fixture("qwen2-bias-tied");
  const value out = describe_checkpoint_json(*source, {.context = 64, .sequences = 2, .kv_type = dtype::bf16, .list_tensors = true});
  EXPECT_EQ(*out.find("tied_head"), value(true));
  EXPECT_EQ(*out.find("sliding_window"), value(24));
  const std::int64_t per_token = out.find("kv")->find("bytes_per_token")->as_int();
  EXPECT_EQ(per_token, 2 * 3 * 2 * 16 * 2);
  EXPECT_EQ(*out.find("kv")->find("bytes"), value(per_token * 128));
  std::int64_t bytes = 0;
  for (const value& tensor : out.find("tensors")->as_array()) bytes += tensor.find("bytes")->as_int();
  EXPECT_EQ(*out.find("weight_bytes"), value(bytes));
  EXPECT_EQ(*out.find("weight_bytes_by_type")->find("F32"), value(bytes));
  EXPECT_EQ(*out.find("parameters"), value(bytes / 4));
  EXPECT_EQ(*out.find("memory_bytes"), value(bytes + per_token * 128));
  EXPECT_TRUE(json::parse(json::dump(out)));
}

TEST(inspect, the_context_is_the_models_own_unless_stated) {
  EXPECT_EQ(*describe_checkpoint_json(*open_fixture("llama3-gqa")).find("kv")->find("context"), value(256));
}

TEST(inspect, sizes_beyond_any_machine_do_not_wrap) {
  const auto source = open_fixture("llama3-gqa");
  const value out = describe_checkpoint_json(*source, {.context = 2147483647, .sequences = 2147483647, .kv_type = dtype::f32});
  EXPECT_EQ(*out.find("memory_bytes"), value(std::numeric_limits<std::int64_t>::max()));
}

} // namespace
} // namespace troupe
