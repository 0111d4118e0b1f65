#include "tokenizer/sentencepiece_file.hpp"

namespace troupe {
namespace {

// Field numbers of sentencepiece_model.proto.
enum model_field : std::uint64_t { pieces = 1, trainer_spec = 2, normalizer_spec = 3 };
enum piece_field : std::uint64_t { type = 3 };
enum trainer_field : std::uint64_t { model_type = 3 };
enum normalizer_field : std::uint64_t {
  precompiled_charsmap = 2,
  add_dummy_prefix = 3,
  remove_extra_whitespaces = 4,
  escape_whitespaces = 5
};
constexpr std::uint64_t bpe_model_type = 2;

struct field {
  std::uint64_t number = 0;
  std::uint64_t integer = 0; // of a varint
  std::string_view bytes;    // of a length-delimited field
};

// Walks the fields of one message (protobuf.dev, "Encoding").
class message {
 public:
  explicit message(std::string_view bytes) : rest_(bytes) {}
  bool failed() const { return failed_; }

  std::optional<field> next() {
    if (rest_.empty() || failed_) return std::nullopt;
    field out;
    const std::uint64_t tag = varint();
    out.number = tag >> 3;
    switch (tag & 7) {
      case 0:
        out.integer = varint();
        break;
      case 1:
        take(8);
        break;
      case 2:
        out.bytes = take(varint());
        break;
      case 5:
        take(4);
        break;
      default:
        failed_ = true;
    }
    return failed_ ? std::nullopt : std::optional(out);
  }

 private:
  std::uint64_t varint() {
    std::uint64_t out = 0;
    for (unsigned shift = 0; shift < 64; shift += 7) {
      if (rest_.empty()) break;
      const auto byte = static_cast<unsigned char>(rest_.front());
      rest_.remove_prefix(1);
      out |= static_cast<std::uint64_t>(byte & 0x7F) << shift;
      if (byte < 0x80) return out;
    }
    failed_ = true;
    return 0;
  }

  std::string_view take(std::uint64_t count) {
    if (count > rest_.size()) {
      failed_ = true;
      return {};
    }
    const std::string_view out = rest_.substr(0, static_cast<std::size_t>(count));
    rest_.remove_prefix(out.size());
    return out;
  }

  std::string_view rest_;
  bool failed_ = false;
};

bool read_piece(std::string_view bytes, sentencepiece_file& out) {
  message in(bytes);
  std::uint64_t kind = 1;
  while (const auto item = in.next()) {
    if (item->number == type) kind = item->integer;
  }
  if (in.failed() || kind < 1 || kind > 6) return false;
  out.kinds.push_back(static_cast<piece_kind>(kind));
  return true;
}

bool read_trainer(std::string_view bytes, sentencepiece_file& out) {
  message in(bytes);
  while (const auto item = in.next()) {
    if (item->number == model_type) out.bpe = item->integer == bpe_model_type;
  }
  return !in.failed();
}

bool read_normalizer(std::string_view bytes, sentencepiece_file& out) {
  message in(bytes);
  bool squeeze = true; // the proto's defaults
  bool escape = true;
  bool mapped = false;
  while (const auto item = in.next()) {
    if (item->number == precompiled_charsmap) mapped = !item->bytes.empty();
    if (item->number == add_dummy_prefix) out.blank_first = item->integer != 0;
    if (item->number == remove_extra_whitespaces) squeeze = item->integer != 0;
    if (item->number == escape_whitespaces) escape = item->integer != 0;
  }
  out.plain_text = !squeeze && escape && !mapped;
  return !in.failed();
}

} // namespace

std::optional<sentencepiece_file> read_sentencepiece_file(std::string_view bytes) {
  sentencepiece_file out;
  message in(bytes);
  while (const auto item = in.next()) {
    bool good = true;
    if (item->number == pieces) good = read_piece(item->bytes, out);
    if (item->number == trainer_spec) good = read_trainer(item->bytes, out);
    if (item->number == normalizer_spec) good = read_normalizer(item->bytes, out);
    if (!good) return std::nullopt;
  }
  return in.failed() ? std::nullopt : std::optional(std::move(out));
}

} // namespace troupe
