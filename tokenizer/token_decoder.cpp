#include "tokenizer/token_decoder.hpp"

#include <charconv>

#include "tokenizer/byte_alphabet.hpp"
#include "tokenizer/json_fields.hpp"
#include "tokenizer/text_pattern.hpp"
#include "tokenizer/utf8.hpp"

namespace troupe {
namespace {

struct byte_level final : decoder_stage {
  std::string apply(std::string text) const override {
    auto bytes = byte_alphabet::decode(text);
    return bytes ? std::move(*bytes) : text;
  }
};

struct byte_fallback final : decoder_stage {
  std::string apply(std::string text) const override {
    if (text.size() != 6 || !text.starts_with("<0x") || text[5] != '>') return text;
    unsigned code = 0;
    const auto [end, failed] = std::from_chars(text.data() + 3, text.data() + 5, code, 16);
    if (failed != std::errc() || end != text.data() + 5) return text;
    return std::string(1, static_cast<char>(code));
  }
};

struct replace final : decoder_stage {
  replace(text_pattern pattern, std::string content) : pattern_(std::move(pattern)), content_(std::move(content)) {}
  std::string apply(std::string text) const override { return pattern_.replace_all(text, content_); }
  text_pattern pattern_;
  std::string content_;
};

// Up to `count` leading `content` of every token.
struct strip final : decoder_stage {
  strip(std::string content, std::int64_t count) : content_(std::move(content)), count_(count) {}
  std::string apply(std::string text) const override {
    std::size_t at = 0;
    for (std::int64_t i = 0; i < count_ && std::string_view(text).substr(at).starts_with(content_); ++i) at += content_.size();
    return text.substr(at);
  }
  std::string content_;
  std::int64_t count_;
};

class reader {
 public:
  reader(token_decoder& out, const std::string& where) : out_(out), where_(where) {}

  void read(const value& item, int depth) {
    json_fields fields(item, where_);
    const std::string type = fields.text("type");
    if (type == "Sequence") {
      if (depth == 8) fields.fail("sequences are nested too deeply");
      for (const value& inner : fields.array("decoders")) read(inner, depth + 1);
    } else {
      read_one(fields, type);
    }
    fields.done();
  }

 private:
  // Stages that rewrite text must see text: not single bytes, nor the joined whole.
  void need_text(json_fields& fields, const std::string& type) const {
    if (bytes_ || fused_) fields.fail("\"" + type + "\" behind ByteLevel, ByteFallback or Fuse is not supported");
  }

  void read_one(json_fields& fields, const std::string& type) {
    if (type == "ByteLevel") {
      need_text(fields, type);
      for (const char* option : {"add_prefix_space", "trim_offsets", "use_regex"}) fields.flag(option, true); // encoding only
      out_.stages.push_back(std::make_unique<byte_level>());
      bytes_ = fused_ = true; // it joins the tokens too
    } else if (type == "ByteFallback") {
      need_text(fields, type);
      out_.stages.push_back(std::make_unique<byte_fallback>());
      bytes_ = true;
    } else if (type == "Fuse") {
      fused_ = true;
    } else if (type == "Replace") {
      need_text(fields, type);
      text_pattern pattern = read_pattern(fields.need("pattern"), where_);
      out_.stages.push_back(std::make_unique<replace>(std::move(pattern), fields.text("content")));
    } else if (type == "Strip") {
      read_strip(fields);
    } else if (type == "Metaspace") {
      need_text(fields, type);
      read_metaspace(fields);
    } else {
      fields.fail("unknown decoder \"" + type.substr(0, 64) + "\"");
    }
  }

  void read_strip(json_fields& fields) {
    const std::string content = fields.text("content");
    const std::int64_t start = fields.integer("start");
    if (fields.integer("stop") != 0) fields.fail("\"stop\" other than 0 is not supported");
    if (start < 0 || utf8::length(content) != 1) fields.fail("Strip needs one character and a count");
    if (start == 0) return;
    if (!fused_) {
      need_text(fields, "Strip");
      out_.stages.push_back(std::make_unique<strip>(content, start));
    } else if (start == 1 && content == " " && out_.lead == lead_rule::none) {
      out_.lead = lead_rule::strip_space;
    } else {
      fields.fail("stripping a whole text of more than one leading blank is not supported");
    }
  }

  void read_metaspace(json_fields& fields) {
    const std::string mark = fields.text("replacement");
    if (utf8::length(mark) != 1) fields.fail("\"replacement\" must be one character");
    fields.get("str_rep");
    fields.flag("split", true);
    const bool add = fields.flag("add_prefix_space", true);
    const std::string scheme = fields.maybe_text("prepend_scheme").value_or(add ? "always" : "never");
    if (scheme != "always" && scheme != "first" && scheme != "never") fields.fail("unknown prepend_scheme");
    if (scheme != "never") {
      if (!out_.stages.empty()) fields.fail("Metaspace must be the first decoder");
      out_.lead = lead_rule::drop_marks;
      out_.mark = mark;
    }
    out_.stages.push_back(std::make_unique<replace>(text_pattern(mark), " "));
  }

  token_decoder& out_;
  const std::string& where_;
  bool bytes_ = false; // tokens may be bytes by now
  bool fused_ = false; // one text by now
};

} // namespace

std::string token_decoder::bytes_of(std::string_view token) const {
  std::string text(token);
  for (const auto& stage : stages) text = stage->apply(std::move(text));
  return text;
}

token_decoder read_decoder(const value* item, const std::string& where) {
  token_decoder out;
  if (item == nullptr || item->is_null()) return out;
  out.lead = lead_rule::none;
  reader(out, where).read(*item, 0);
  return out;
}

token_decoder make_byte_level_decoder() {
  token_decoder out;
  out.lead = lead_rule::none;
  out.stages.push_back(std::make_unique<byte_level>());
  return out;
}

token_decoder make_sentencepiece_decoder(bool strip_first) {
  token_decoder out;
  out.lead = strip_first ? lead_rule::strip_space : lead_rule::none;
  out.stages.push_back(std::make_unique<replace>(text_pattern(std::string("\xE2\x96\x81")), " "));
  out.stages.push_back(std::make_unique<byte_fallback>());
  return out;
}

} // namespace troupe
