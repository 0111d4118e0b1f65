#include "models/safetensors.hpp"

#include <algorithm>
#include <array>
#include <string_view>
#include <utility>

#include "core/json.hpp"
#include "models/load_check.hpp"

namespace troupe {

namespace {

constexpr std::size_t kHeaderLimit = 100'000'000; // the reference reader's own limit
constexpr std::size_t kMaxRank = 16;

struct element_type {
  std::string_view name;
  std::size_t bits;
  std::optional<dtype> type;
};

constexpr std::array<element_type, 22> kTypes = {{
    {"F32", 32, dtype::f32},
    {"F16", 16, dtype::f16},
    {"BF16", 16, dtype::bf16},
    {"I8", 8, dtype::i8},
    {"U8", 8, dtype::u8},
    {"I32", 32, dtype::i32},
    {"I64", 64, dtype::i64},
    {"BOOL", 8, std::nullopt},
    {"I16", 16, std::nullopt},
    {"U16", 16, std::nullopt},
    {"U32", 32, std::nullopt},
    {"U64", 64, std::nullopt},
    {"F64", 64, std::nullopt},
    {"C64", 64, std::nullopt},
    {"F8_E4M3", 8, std::nullopt},
    {"F8_E5M2", 8, std::nullopt},
    {"F8_E4M3FNUZ", 8, std::nullopt},
    {"F8_E5M2FNUZ", 8, std::nullopt},
    {"F8_E8M0", 8, std::nullopt},
    {"F4", 4, std::nullopt},
    {"F6_E2M3", 6, std::nullopt},
    {"F6_E3M2", 6, std::nullopt},
}};

const element_type* find_type(std::string_view name) {
  auto it = std::find_if(kTypes.begin(), kTypes.end(), [&](const element_type& t) { return t.name == name; });
  return it == kTypes.end() ? nullptr : &*it;
}

std::vector<std::int64_t> read_shape(const value* field, const std::string& file, const std::string& tensor) {
  if (!field || !field->is_array()) fail_load(file, tensor, "no array \"shape\"");
  const value_array& items = field->as_array();
  if (items.size() > kMaxRank) fail_load(file, tensor, "more than 16 dimensions");
  std::vector<std::int64_t> shape;
  for (const value& item : items) {
    if (!item.is_int() || item.as_int() < 0) fail_load(file, tensor, "a dimension is not a non-negative integer");
    shape.push_back(item.as_int());
  }
  return shape;
}

// [begin, end) relative to the data section, with begin <= end <= limit.
std::pair<std::size_t, std::size_t> read_offsets(const value* field, std::size_t limit, const std::string& file,
                                                 const std::string& tensor) {
  if (!field || !field->is_array() || field->as_array().size() != 2) fail_load(file, tensor, "no pair \"data_offsets\"");
  const value& first = field->as_array()[0];
  const value& last = field->as_array()[1];
  if (!first.is_int() || !last.is_int() || first.as_int() < 0 || last.as_int() < 0) {
    fail_load(file, tensor, "data_offsets are not non-negative integers");
  }
  const auto begin = static_cast<std::size_t>(first.as_int());
  const auto end = static_cast<std::size_t>(last.as_int());
  if (begin > end) fail_load(file, tensor, "data_offsets run backwards");
  if (end > limit) {
    fail_load(file, tensor, "data ends at byte " + std::to_string(end) + " of a data section of " + std::to_string(limit) + " bytes");
  }
  return {begin, end};
}

file_tensor read_tensor(const std::string& key, const value& entry, std::span<const std::byte> data, const std::string& file) {
  if (!entry.is_object()) fail_load(file, key, "the entry is not an object");
  const value* type_field = entry.find("dtype");
  if (!type_field || !type_field->is_string()) fail_load(file, key, "no string \"dtype\"");
  const element_type* type = find_type(type_field->as_string());
  if (!type) fail_load(file, key, "unknown dtype " + printable(type_field->as_string()));
  std::vector<std::int64_t> shape = read_shape(entry.find("shape"), file, key);
  const auto [begin, end] = read_offsets(entry.find("data_offsets"), data.size(), file, key);

  const std::optional<std::size_t> elements = element_count(shape);
  const std::optional<std::size_t> bits = elements ? checked_multiply(*elements, type->bits) : std::nullopt;
  if (!bits) fail_load(file, key, "the size of shape " + shape_text(shape) + " overflows");
  if (*bits % 8 != 0 || *bits / 8 != end - begin) {
    fail_load(file, key,
              std::string(type->name) + " " + shape_text(shape) + " does not fill its " + std::to_string(end - begin) + " bytes");
  }
  return {key, std::string(type->name), type->type, std::move(shape), data.subspan(begin, end - begin)};
}

// The reference reader insists on this too: offsets tile the data section.
void check_tiling(const std::vector<file_tensor>& tensors, std::span<const std::byte> data, const std::string& file) {
  const std::byte* next = data.data();
  for (const file_tensor& tensor : tensors) {
    if (tensor.data.data() != next) fail_load(file, tensor.name, "its bytes overlap another tensor's or leave a hole before them");
    next += tensor.data.size();
  }
  if (next != data.data() + data.size()) {
    fail_load(file, "", std::to_string(data.data() + data.size() - next) + " bytes after the last tensor belong to none");
  }
}

} // namespace

std::vector<file_tensor> parse_safetensors(std::span<const std::byte> bytes, const std::string& name) {
  if (bytes.size() < 8) fail_load(name, "", "too short for a safetensors file");
  std::uint64_t header_size = 0;
  for (std::size_t i = 0; i < 8; ++i) header_size |= std::to_integer<std::uint64_t>(bytes[i]) << (8 * i);
  if (header_size > kHeaderLimit)
    fail_load(name, "", "no safetensors file: it claims a header of " + std::to_string(header_size) + " bytes");
  if (header_size > bytes.size() - 8) fail_load(name, "", "the file ends inside its header");
  const auto header = bytes.subspan(8, static_cast<std::size_t>(header_size));
  const auto data = bytes.subspan(8 + header.size());

  const auto parsed = json::parse({reinterpret_cast<const char*>(header.data()), header.size()});
  if (!parsed) fail_load(name, "header", parsed.failure().message);
  if (!parsed->is_object()) fail_load(name, "header", "not a JSON object");
  std::vector<file_tensor> tensors;
  tensors.reserve(parsed->as_object().size());
  for (const auto& [key, entry] : parsed->as_object().entries()) {
    if (key != "__metadata__") tensors.push_back(read_tensor(key, entry, data, name));
  }
  // Empty tensors sort before the one that starts where they stand.
  std::sort(tensors.begin(), tensors.end(), [](const file_tensor& a, const file_tensor& b) {
    return a.data.data() != b.data.data() ? a.data.data() < b.data.data() : a.data.size() < b.data.size();
  });
  check_tiling(tensors, data, name);
  return tensors;
}

} // namespace troupe
