#include "models/gguf.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <limits>
#include <string_view>
#include <type_traits>
#include <unordered_set>
#include <utility>

#include "models/load_check.hpp"

namespace troupe {

namespace {

static_assert(std::endian::native == std::endian::little, "tensors are used as they lie in the file, which is little-endian");

constexpr std::size_t kMaxRank = 4;              // GGML_MAX_DIMS
constexpr std::size_t kKeyLimit = 65'535;        // of a key or a tensor name, in bytes
constexpr std::size_t kElementLimit = 8'000'000; // array elements of all metadata together: each costs a `value`
constexpr std::size_t kDefaultAlignment = 32;
constexpr std::size_t kAlignmentLimit = 1U << 20;
constexpr std::string_view kAlignmentKey = "general.alignment";

enum class kv_type : std::uint32_t { u8, i8, u16, i16, u32, i32, f32, boolean, string, array, u64, i64, f64 };

// Bytes of one element, or the least for a string (its length); 0: no such type, or no element type.
std::size_t least_bytes(kv_type type) {
  switch (type) {
    case kv_type::u8:
    case kv_type::i8:
    case kv_type::boolean:
      return 1;
    case kv_type::u16:
    case kv_type::i16:
      return 2;
    case kv_type::u32:
    case kv_type::i32:
    case kv_type::f32:
      return 4;
    case kv_type::u64:
    case kv_type::i64:
    case kv_type::f64:
    case kv_type::string:
      return 8;
    case kv_type::array:
      return 0;
  }
  return 0;
}

struct ggml_type {
  std::uint32_t number;
  std::string_view name;
  std::optional<dtype> type;
};

// ggml.h, enum ggml_type. Those without a dtype are only named in the refusal.
constexpr std::array<ggml_type, 32> kTypes = {{
    {0, "F32", dtype::f32},        {1, "F16", dtype::f16},       {2, "Q4_0", dtype::q4_0},      {3, "Q4_1", dtype::q4_1},
    {6, "Q5_0", dtype::q5_0},      {7, "Q5_1", dtype::q5_1},     {8, "Q8_0", dtype::q8_0},      {9, "Q8_1", std::nullopt},
    {10, "Q2_K", std::nullopt},    {11, "Q3_K", std::nullopt},   {12, "Q4_K", dtype::q4_k},     {13, "Q5_K", dtype::q5_k},
    {14, "Q6_K", dtype::q6_k},     {15, "Q8_K", std::nullopt},   {16, "IQ2_XXS", std::nullopt}, {17, "IQ2_XS", std::nullopt},
    {18, "IQ3_XXS", std::nullopt}, {19, "IQ1_S", std::nullopt},  {20, "IQ4_NL", std::nullopt},  {21, "IQ3_S", std::nullopt},
    {22, "IQ2_S", std::nullopt},   {23, "IQ4_XS", std::nullopt}, {24, "I8", dtype::i8},         {25, "I16", std::nullopt},
    {26, "I32", dtype::i32},       {27, "I64", dtype::i64},      {28, "F64", std::nullopt},     {29, "IQ1_M", std::nullopt},
    {30, "BF16", dtype::bf16},     {34, "TQ1_0", std::nullopt},  {35, "TQ2_0", std::nullopt},   {39, "MXFP4", std::nullopt},
}};

// Walks the file front to back; every read is checked against what is left.
class cursor {
 public:
  cursor(std::span<const std::byte> bytes, const std::string& file) : bytes_(bytes), file_(file) {}

  std::size_t position() const { return position_; }
  std::size_t left() const { return bytes_.size() - position_; }

  template <class T>
  T number(std::string_view item) {
    static_assert(std::is_arithmetic_v<T>);
    if (left() < sizeof(T)) fail_load(file_, item, "the file ends here");
    T result;
    std::memcpy(&result, bytes_.data() + position_, sizeof(T));
    position_ += sizeof(T);
    return result;
  }

  std::string string(std::string_view item, std::size_t limit = std::numeric_limits<std::size_t>::max()) {
    const auto length = number<std::uint64_t>(item);
    if (length > left()) fail_load(file_, item, "a string of " + std::to_string(length) + " bytes runs past the end of the file");
    if (length > limit) fail_load(file_, item, "a name of " + std::to_string(length) + " bytes");
    std::string text(reinterpret_cast<const char*>(bytes_.data()) + position_, static_cast<std::size_t>(length));
    position_ += static_cast<std::size_t>(length);
    return text;
  }

 private:
  std::span<const std::byte> bytes_;
  const std::string& file_;
  std::size_t position_ = 0;
};

class parser {
 public:
  parser(std::span<const std::byte> bytes, const std::string& file) : bytes_(bytes), file_(file), in_(bytes, file) {}

  gguf_file run() {
    gguf_file out;
    out.version = read_version();
    const auto tensor_count = in_.number<std::uint64_t>("tensor count");
    const auto pair_count = in_.number<std::uint64_t>("key count");
    // The shortest pair: an empty key, a type, one byte. The shortest tensor entry: an empty name, rank, type, offset.
    if (pair_count > in_.left() / 13) fail_load(file_, "key count", std::to_string(pair_count) + " keys cannot fit in the file");
    if (tensor_count > in_.left() / 24) fail_load(file_, "tensor count", std::to_string(tensor_count) + " tensors cannot fit in the file");
    out.metadata = read_metadata(pair_count);
    read_tensor_entries(out.tensors, tensor_count);
    place_tensors(out.tensors);
    return out;
  }

 private:
  std::uint32_t read_version() {
    if (!looks_like_gguf(bytes_)) fail_load(file_, "", "no GGUF file: it does not begin with \"GGUF\"");
    in_.number<std::uint32_t>("magic");
    const auto version = in_.number<std::uint32_t>("version");
    if (version != 0 && (version & 0xffffU) == 0) fail_load(file_, "version", "big-endian GGUF files are not supported");
    if (version != 2 && version != 3) {
      fail_load(file_, "version", "GGUF version " + std::to_string(version) + " is not supported (2 and 3 are)");
    }
    return version;
  }

  value read_metadata(std::uint64_t count) {
    value_object pairs;
    for (std::uint64_t i = 0; i < count; ++i) {
      std::string key = in_.string("key " + std::to_string(i), kKeyLimit);
      if (pairs.find(key)) fail_load(file_, key, "the key stands twice");
      const auto type = static_cast<kv_type>(in_.number<std::uint32_t>(key));
      if (key == kAlignmentKey) check_alignment_type(type);
      value item = type == kv_type::array ? read_array(key) : read_scalar(type, key);
      if (key == kAlignmentKey) set_alignment(item.as_int());
      pairs.set(std::move(key), std::move(item));
    }
    return pairs;
  }

  void check_alignment_type(kv_type type) const {
    if (type != kv_type::u32) fail_load(file_, kAlignmentKey, "its type is not uint32");
  }

  void set_alignment(std::int64_t alignment) {
    if (alignment <= 0 || static_cast<std::size_t>(alignment) > kAlignmentLimit ||
        !std::has_single_bit(static_cast<std::size_t>(alignment))) {
      fail_load(file_, kAlignmentKey, std::to_string(alignment) + " is not a power of two up to " + std::to_string(kAlignmentLimit));
    }
    alignment_ = static_cast<std::size_t>(alignment);
  }

  value read_array(const std::string& key) {
    const auto type = static_cast<kv_type>(in_.number<std::uint32_t>(key));
    const auto count = in_.number<std::uint64_t>(key);
    const std::size_t least = least_bytes(type);
    if (least == 0) fail_load(file_, key, "unsupported array element type " + std::to_string(static_cast<std::uint32_t>(type)));
    if (count > in_.left() / least)
      fail_load(file_, key, "an array of " + std::to_string(count) + " elements runs past the end of the file");
    if (count > kElementLimit - elements_) fail_load(file_, key, "more than " + std::to_string(kElementLimit) + " array elements in all");
    elements_ += static_cast<std::size_t>(count);
    value_array items;
    items.reserve(static_cast<std::size_t>(count));
    for (std::uint64_t i = 0; i < count; ++i) items.push_back(read_scalar(type, key));
    return items;
  }

  value read_scalar(kv_type type, const std::string& key) {
    switch (type) {
      case kv_type::u8:
        return std::int64_t{in_.number<std::uint8_t>(key)};
      case kv_type::i8:
        return std::int64_t{in_.number<std::int8_t>(key)};
      case kv_type::u16:
        return std::int64_t{in_.number<std::uint16_t>(key)};
      case kv_type::i16:
        return std::int64_t{in_.number<std::int16_t>(key)};
      case kv_type::u32:
        return std::int64_t{in_.number<std::uint32_t>(key)};
      case kv_type::i32:
        return std::int64_t{in_.number<std::int32_t>(key)};
      case kv_type::i64:
        return in_.number<std::int64_t>(key);
      case kv_type::f32:
        return double{in_.number<float>(key)};
      case kv_type::f64:
        return in_.number<double>(key);
      case kv_type::string:
        return in_.string(key);
      case kv_type::u64: {
        const auto number = in_.number<std::uint64_t>(key);
        if (number <= static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max())) return static_cast<std::int64_t>(number);
        return static_cast<double>(number);
      }
      case kv_type::boolean: {
        const auto byte = in_.number<std::uint8_t>(key);
        if (byte > 1) fail_load(file_, key, "a boolean is neither 0 nor 1");
        return byte == 1;
      }
      case kv_type::array:
        break;
    }
    fail_load(file_, key, "unknown value type " + std::to_string(static_cast<std::uint32_t>(type)));
  }

  void read_tensor_entries(std::vector<file_tensor>& tensors, std::uint64_t count) {
    if (count > in_.left() / 24) fail_load(file_, "tensor count", std::to_string(count) + " tensors cannot fit in the file");
    tensors.reserve(static_cast<std::size_t>(count));
    offsets_.reserve(static_cast<std::size_t>(count));
    std::unordered_set<std::string> names;
    for (std::uint64_t i = 0; i < count; ++i) {
      file_tensor tensor;
      tensor.name = in_.string("tensor " + std::to_string(i), kKeyLimit);
      if (!names.insert(tensor.name).second) fail_load(file_, tensor.name, "the tensor stands twice");
      tensor.shape = read_shape(tensor.name);
      set_type(tensor, in_.number<std::uint32_t>(tensor.name));
      offsets_.push_back(in_.number<std::uint64_t>(tensor.name));
      tensors.push_back(std::move(tensor));
    }
  }

  // The file has the innermost dimension first.
  std::vector<std::int64_t> read_shape(const std::string& tensor) {
    const auto rank = in_.number<std::uint32_t>(tensor);
    if (rank > kMaxRank) fail_load(file_, tensor, std::to_string(rank) + " dimensions (4 at most)");
    std::vector<std::int64_t> shape;
    for (std::uint32_t i = 0; i < rank; ++i) {
      const auto dimension = in_.number<std::uint64_t>(tensor);
      if (dimension > static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max()))
        fail_load(file_, tensor, "a dimension overflows");
      shape.push_back(static_cast<std::int64_t>(dimension));
    }
    std::reverse(shape.begin(), shape.end());
    return shape;
  }

  void set_type(file_tensor& tensor, std::uint32_t number) const {
    auto it = std::find_if(kTypes.begin(), kTypes.end(), [&](const ggml_type& t) { return t.number == number; });
    if (it == kTypes.end()) fail_load(file_, tensor.name, "unknown tensor type " + std::to_string(number));
    if (!it->type) fail_load(file_, tensor.name, "tensor type " + std::string(it->name) + " is not supported");
    tensor.type_name = it->name;
    tensor.type = it->type;
  }

  std::size_t byte_size(const file_tensor& tensor) const {
    const dtype_traits type = traits(*tensor.type);
    const std::size_t columns = tensor.shape.empty() ? 1 : static_cast<std::size_t>(tensor.shape.back());
    if (columns % type.block_elems != 0) {
      fail_load(file_, tensor.name,
                "rows of " + std::to_string(columns) + " elements are no whole number of " + tensor.type_name + " blocks");
    }
    const auto elements = element_count(tensor.shape);
    const auto bytes = elements ? checked_multiply(*elements / type.block_elems, type.block_bytes) : std::nullopt;
    if (!bytes) fail_load(file_, tensor.name, "the size of shape " + shape_text(tensor.shape) + " overflows");
    return *bytes;
  }

  // Turns offsets, relative to the aligned end of the header, into byte ranges.
  void place_tensors(std::vector<file_tensor>& tensors) const {
    const auto rounded = checked_add(in_.position(), alignment_ - 1);
    const std::size_t start = std::min(bytes_.size(), rounded ? *rounded & ~(alignment_ - 1) : bytes_.size());
    const std::span<const std::byte> data = bytes_.subspan(start);
    for (std::size_t i = 0; i < tensors.size(); ++i) {
      file_tensor& tensor = tensors[i];
      const std::size_t size = byte_size(tensor);
      const std::uint64_t offset = offsets_[i];
      if (offset % alignment_ != 0)
        fail_load(file_, tensor.name, "offset " + std::to_string(offset) + " is not a multiple of the alignment");
      if (offset > data.size() || size > data.size() - offset) {
        fail_load(file_, tensor.name,
                  std::to_string(size) + " bytes at offset " + std::to_string(offset) + " run past the end of the file");
      }
      tensor.data = data.subspan(static_cast<std::size_t>(offset), size);
    }
  }

  std::span<const std::byte> bytes_;
  const std::string& file_;
  cursor in_;
  std::size_t alignment_ = kDefaultAlignment;
  std::size_t elements_ = 0;
  std::vector<std::uint64_t> offsets_;
};

} // namespace

bool looks_like_gguf(std::span<const std::byte> bytes) {
  constexpr std::string_view magic = "GGUF";
  return bytes.size() >= magic.size() && std::memcmp(bytes.data(), magic.data(), magic.size()) == 0;
}

gguf_file parse_gguf(std::span<const std::byte> bytes, const std::string& name) { return parser(bytes, name).run(); }

} // namespace troupe
