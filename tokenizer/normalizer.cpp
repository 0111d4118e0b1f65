#include "tokenizer/normalizer.hpp"

#include <optional>

#include "tokenizer/json_fields.hpp"
#include "tokenizer/regex.hpp"
#include "tokenizer/text_pattern.hpp"
#include "tokenizer/unicode.hpp"
#include "tokenizer/utf8.hpp"

namespace troupe {
namespace {

struct unicode_form final : normalizer {
  explicit unicode_form(unicode::form target) : target_(target) {}
  std::string apply(std::string text) const override { return unicode::normalize(text, target_); }
  unicode::form target_;
};

struct lowercase final : normalizer {
  std::string apply(std::string text) const override { return unicode::to_lower(text); }
};

// Drops every combining mark; of use behind a decomposition.
struct strip_accents final : normalizer {
  std::string apply(std::string text) const override {
    std::string out;
    out.reserve(text.size());
    for (std::size_t at = 0; at < text.size();) {
      const utf8::character next = utf8::read_valid(text, at);
      if (!unicode::is_mark(next.code)) out.append(text, at, next.size);
      at += next.size;
    }
    return out;
  }
};

struct strip final : normalizer {
  strip(bool left, bool right) : left_(left), right_(right) {}
  std::string apply(std::string text) const override {
    std::size_t begin = 0;
    std::size_t end = text.size();
    while (left_ && begin < end) {
      const utf8::character next = utf8::read_valid(text, begin);
      if (!unicode::is_white_space(next.code)) break;
      begin += next.size;
    }
    while (right_ && end > begin) {
      const std::size_t last = utf8::previous(text, end);
      if (!unicode::is_white_space(utf8::read_valid(text, last).code)) break;
      end = last;
    }
    return text.substr(begin, end - begin);
  }
  bool left_, right_;
};

struct prepend final : normalizer {
  explicit prepend(std::string text) : text_(std::move(text)) {}
  std::string apply(std::string text) const override { return text.empty() ? text : text_ + text; }
  std::string text_;
};

struct replace final : normalizer {
  replace(text_pattern pattern, std::string content) : pattern_(std::move(pattern)), content_(std::move(content)) {}
  std::string apply(std::string text) const override { return pattern_.replace_all(text, content_); }
  text_pattern pattern_;
  std::string content_;
};

std::optional<unicode::form> form_named(std::string_view type) {
  if (type == "NFC") return unicode::form::nfc;
  if (type == "NFD") return unicode::form::nfd;
  if (type == "NFKC") return unicode::form::nfkc;
  if (type == "NFKD") return unicode::form::nfkd;
  return std::nullopt;
}

std::unique_ptr<normalizer> read_one(json_fields& fields, const std::string& type) {
  if (const auto form = form_named(type)) return std::make_unique<unicode_form>(*form);
  if (type == "Lowercase") return std::make_unique<lowercase>();
  if (type == "StripAccents") return std::make_unique<strip_accents>();
  if (type == "Strip") {
    const bool left = fields.flag("strip_left");
    return std::make_unique<strip>(left, fields.flag("strip_right"));
  }
  if (type == "Prepend") return make_prepend(fields.text("prepend"));
  if (type == "Replace") {
    text_pattern pattern = read_pattern(fields.need("pattern"), fields.where());
    return std::make_unique<replace>(std::move(pattern), fields.text("content"));
  }
  fields.fail("unknown normalizer \"" + type.substr(0, 64) + "\"");
}

void collect(const value& item, const std::string& where, normalizer_list& out, int depth) {
  json_fields fields(item, where);
  const std::string type = fields.text("type");
  if (type == "Sequence") {
    if (depth == 8) fields.fail("sequences are nested too deeply");
    for (const value& inner : fields.array("normalizers")) collect(inner, where, out, depth + 1);
  } else {
    out.push_back(read_one(fields, type));
  }
  fields.done();
}

} // namespace

normalizer_list read_normalizers(const value* item, const std::string& where) {
  normalizer_list out;
  if (item != nullptr && !item->is_null()) collect(*item, where, out, 0);
  return out;
}

std::unique_ptr<normalizer> make_prepend(std::string text) { return std::make_unique<prepend>(std::move(text)); }
std::unique_ptr<normalizer> make_replace(std::string from, std::string to) {
  return std::make_unique<replace>(text_pattern(std::move(from)), std::move(to));
}
std::unique_ptr<normalizer> make_nfc() { return std::make_unique<unicode_form>(unicode::form::nfc); }

std::string normalize(const normalizer_list& stages, std::string text) {
  for (const auto& stage : stages) text = stage->apply(std::move(text));
  return text;
}

} // namespace troupe
