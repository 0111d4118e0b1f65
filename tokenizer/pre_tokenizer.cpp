#include "tokenizer/pre_tokenizer.hpp"

#include <optional>

#include "tokenizer/byte_alphabet.hpp"
#include "tokenizer/json_fields.hpp"
#include "tokenizer/splitter.hpp"
#include "tokenizer/text_pattern.hpp"
#include "tokenizer/unicode.hpp"
#include "tokenizer/utf8.hpp"

namespace troupe {
namespace {

// GPT-2's split (openai/gpt-2, src/encoder.py).
constexpr std::string_view gpt2_pattern = R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";

struct pattern_split final : pre_tokenizer {
  pattern_split(text_pattern pattern, split_behavior behavior, bool invert)
      : pattern_(std::move(pattern)), behavior_(behavior), invert_(invert) {}

  void split(const piece& in, std::vector<piece>& out, text_arena&) const override {
    splitter cut(in, out, behavior_, invert_);
    pattern_.for_each(in.text, [&](std::size_t begin, std::size_t end) { cut.match(begin, end); });
    cut.finish();
  }
  text_pattern pattern_;
  split_behavior behavior_;
  bool invert_;
};

// Every character of a class is a match of its own.
struct class_split final : pre_tokenizer {
  using predicate = bool (*)(char32_t);
  class_split(predicate in_class, split_behavior behavior) : in_class_(in_class), behavior_(behavior) {}

  void split(const piece& in, std::vector<piece>& out, text_arena&) const override {
    splitter cut(in, out, behavior_, false);
    for (std::size_t at = 0; at < in.text.size();) {
      const utf8::character next = utf8::read_valid(in.text, at);
      if (in_class_(next.code)) cut.match(at, at + next.size);
      at += next.size;
    }
    cut.finish();
  }
  predicate in_class_;
  split_behavior behavior_;
};

// Runs of word characters, and runs of what is neither word nor blank; blanks are dropped.
struct whitespace final : pre_tokenizer {
  static int kind(char32_t code) { return unicode::is_word(code) ? 1 : unicode::is_white_space(code) ? 0 : 2; }

  void split(const piece& in, std::vector<piece>& out, text_arena&) const override {
    splitter cut(in, out, split_behavior::removed, true);
    std::size_t begin = 0;
    int running = 0;
    for (std::size_t at = 0; at <= in.text.size();) {
      const bool ended = at == in.text.size();
      const utf8::character next = ended ? utf8::character{} : utf8::read_valid(in.text, at);
      const int now = ended ? 0 : kind(next.code);
      if (now != running) {
        if (running != 0) cut.match(begin, at);
        begin = at;
        running = now;
      }
      if (ended) break;
      at += next.size;
    }
    cut.finish();
  }
};

enum class prepend_scheme : std::uint8_t { always, first, never };

struct metaspace final : pre_tokenizer {
  metaspace(std::string mark, prepend_scheme scheme, bool cut) : mark_(std::move(mark)), scheme_(scheme), cut_(cut) {}

  void split(const piece& in, std::vector<piece>& out, text_arena& arena) const override {
    std::string& text = arena.emplace_back(text_pattern(std::string(" ")).replace_all(in.text, mark_));
    const bool wanted = scheme_ == prepend_scheme::always || (scheme_ == prepend_scheme::first && in.first);
    if (wanted && !text.starts_with(mark_)) text.insert(0, mark_);
    const piece whole{text, in.first};
    splitter pieces(whole, out, split_behavior::merged_with_next, false);
    if (cut_) {
      text_pattern(mark_).for_each(text, [&](std::size_t begin, std::size_t end) { pieces.match(begin, end); });
    }
    pieces.finish();
  }
  std::string mark_; // one character
  prepend_scheme scheme_;
  bool cut_;
};

struct byte_level final : pre_tokenizer {
  byte_level(bool add_prefix_space, bool use_regex, bool map) : add_prefix_space_(add_prefix_space), map_(map) {
    if (use_regex) pattern_.emplace(gpt2_pattern, "byte-level split");
  }

  void split(const piece& in, std::vector<piece>& out, text_arena& arena) const override {
    piece whole = in;
    if (add_prefix_space_ && !in.text.starts_with(' ')) whole.text = arena.emplace_back(" " + std::string(in.text));
    const std::size_t from = out.size();
    splitter cut(whole, out, split_behavior::isolated, false);
    if (pattern_) pattern_->for_each(whole.text, [&](std::size_t begin, std::size_t end) { cut.match(begin, end); });
    cut.finish();
    if (!map_) return;
    for (std::size_t i = from; i < out.size(); ++i) out[i].text = arena.emplace_back(byte_alphabet::encode(out[i].text));
  }
  bool add_prefix_space_, map_;
  std::optional<regex> pattern_;
};

split_behavior read_behavior(json_fields& fields, std::string_view fallback) {
  const std::string name = fallback.empty() ? fields.text("behavior") : fields.maybe_text("behavior").value_or(std::string(fallback));
  if (name == "Removed") return split_behavior::removed;
  if (name == "Isolated") return split_behavior::isolated;
  if (name == "MergedWithPrevious") return split_behavior::merged_with_previous;
  if (name == "MergedWithNext") return split_behavior::merged_with_next;
  if (name == "Contiguous") return split_behavior::contiguous;
  fields.fail("unknown behavior \"" + name.substr(0, 64) + "\"");
}

prepend_scheme read_scheme(json_fields& fields) {
  const bool add = fields.flag("add_prefix_space", true); // the older spelling
  const std::string name = fields.maybe_text("prepend_scheme").value_or(add ? "always" : "never");
  if (name == "always") return prepend_scheme::always;
  if (name == "first") return prepend_scheme::first;
  if (name == "never") return prepend_scheme::never;
  fields.fail("unknown prepend_scheme \"" + name.substr(0, 64) + "\"");
}

std::unique_ptr<pre_tokenizer> read_metaspace(json_fields& fields) {
  std::string mark = fields.text("replacement");
  fields.get("str_rep"); // older files repeat the replacement here
  if (utf8::length(mark) != 1) fields.fail("\"replacement\" must be one character");
  const prepend_scheme scheme = read_scheme(fields);
  return std::make_unique<metaspace>(std::move(mark), scheme, fields.flag("split", true));
}

std::unique_ptr<pre_tokenizer> read_split(json_fields& fields) {
  text_pattern pattern = read_pattern(fields.need("pattern"), fields.where());
  const split_behavior behavior = read_behavior(fields, "");
  return std::make_unique<pattern_split>(std::move(pattern), behavior, fields.flag("invert"));
}

std::unique_ptr<pre_tokenizer> read_byte_level(json_fields& fields, bool map) {
  const bool prefix = fields.flag("add_prefix_space", true);
  fields.flag("trim_offsets", true); // concerns offsets only
  return make_byte_level(prefix, fields.flag("use_regex", true), map);
}

std::unique_ptr<pre_tokenizer> read_one(json_fields& fields, const std::string& type, bool last, bool& bytes) {
  bytes = false;
  if (type == "ByteLevel") {
    bytes = last;
    return read_byte_level(fields, !last);
  }
  if (type == "Split") return read_split(fields);
  if (type == "Digits") return make_digits(fields.flag("individual_digits"));
  if (type == "Punctuation") return make_punctuation(read_behavior(fields, "Isolated"));
  if (type == "Metaspace") return read_metaspace(fields);
  if (type == "Whitespace") return std::make_unique<whitespace>();
  if (type == "WhitespaceSplit") return std::make_unique<class_split>(unicode::is_white_space, split_behavior::removed);
  fields.fail("unknown pre-tokenizer \"" + type.substr(0, 64) + "\"");
}

void flatten(const value& item, const std::string& where, std::vector<const value*>& out, int depth) {
  json_fields fields(item, where);
  if (fields.text("type") != "Sequence") {
    out.push_back(&item);
    return;
  }
  if (depth == 8) fields.fail("sequences are nested too deeply");
  for (const value& inner : fields.array("pretokenizers")) flatten(inner, where, out, depth + 1);
  fields.done();
}

} // namespace

pre_tokenizer_list read_pre_tokenizers(const value* item, const std::string& where) {
  pre_tokenizer_list out;
  if (item == nullptr || item->is_null()) return out;
  std::vector<const value*> flat;
  flatten(*item, where, flat, 0);
  for (std::size_t i = 0; i < flat.size(); ++i) {
    json_fields fields(*flat[i], where);
    out.stages.push_back(read_one(fields, fields.text("type"), i + 1 == flat.size(), out.byte_level));
    fields.done();
  }
  return out;
}

std::unique_ptr<pre_tokenizer> make_regex_split(std::string_view pattern, const std::string& where) {
  return std::make_unique<pattern_split>(text_pattern(regex(pattern, where)), split_behavior::isolated, false);
}

std::unique_ptr<pre_tokenizer> make_digits(bool individual) {
  return std::make_unique<class_split>(unicode::is_numeric, individual ? split_behavior::isolated : split_behavior::contiguous);
}

std::unique_ptr<pre_tokenizer> make_punctuation(split_behavior behavior) {
  return std::make_unique<class_split>(unicode::is_punctuation, behavior);
}

std::unique_ptr<pre_tokenizer> make_byte_level(bool add_prefix_space, bool use_regex, bool map) {
  return std::make_unique<byte_level>(add_prefix_space, use_regex, map);
}

std::vector<piece> pre_tokenize(const pre_tokenizer_list& list, piece whole, text_arena& arena) {
  std::vector<piece> pieces;
  if (!whole.text.empty()) pieces.push_back(whole);
  std::vector<piece> next;
  for (const auto& stage : list.stages) {
    next.clear();
    for (const piece& in : pieces) stage->split(in, next, arena);
    pieces.swap(next);
  }
  return pieces;
}

} // namespace troupe
