#include "tokenizer/unicode.hpp"

#include <unicode/bytestream.h>
#include <unicode/normalizer2.h>
#include <unicode/uchar.h>

#include <limits>

#include "core/error.hpp"
#include "tokenizer/utf8.hpp"

namespace troupe::unicode {
namespace {

bool in_categories(char32_t code, std::uint32_t mask) { return (U_GET_GC_MASK(static_cast<UChar32>(code)) & mask) != 0; }

const icu::Normalizer2& normalizer_of(form target) {
  UErrorCode status = U_ZERO_ERROR;
  const icu::Normalizer2* found = nullptr;
  switch (target) {
    case form::nfc:
      found = icu::Normalizer2::getNFCInstance(status);
      break;
    case form::nfd:
      found = icu::Normalizer2::getNFDInstance(status);
      break;
    case form::nfkc:
      found = icu::Normalizer2::getNFKCInstance(status);
      break;
    case form::nfkd:
      found = icu::Normalizer2::getNFKDInstance(status);
      break;
  }
  if (U_FAILURE(status) || found == nullptr) throw load_error(std::string("ICU: normalisation data: ") + u_errorName(status));
  return *found;
}

} // namespace

bool is_white_space(char32_t code) {
  if (code < 0x80) return code == ' ' || (code >= '\t' && code <= '\r');
  return u_isUWhiteSpace(static_cast<UChar32>(code)) != 0;
}

bool is_word(char32_t code) {
  const auto c = static_cast<UChar32>(code);
  return u_hasBinaryProperty(c, UCHAR_ALPHABETIC) || in_categories(code, U_GC_M_MASK | U_GC_ND_MASK | U_GC_PC_MASK) ||
         u_hasBinaryProperty(c, UCHAR_JOIN_CONTROL);
}

bool is_numeric(char32_t code) { return in_categories(code, U_GC_N_MASK); }

bool is_punctuation(char32_t code) {
  if (code < 0x80) {
    return (code >= '!' && code <= '/') || (code >= ':' && code <= '@') || (code >= '[' && code <= '`') || (code >= '{' && code <= '~');
  }
  return in_categories(code, U_GC_P_MASK);
}

bool is_mark(char32_t code) { return in_categories(code, U_GC_M_MASK); }

std::string to_lower(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  for (std::size_t at = 0; at < text.size();) {
    const utf8::character next = utf8::read_valid(text, at);
    at += next.size;
    if (next.code == 0x130) { // the one character whose lower case is two, whatever the language (SpecialCasing.txt)
      out += "i\xCC\x87";
    } else {
      utf8::append(out, static_cast<char32_t>(u_tolower(static_cast<UChar32>(next.code))));
    }
  }
  return out;
}

std::string normalize(std::string_view text, form target) {
  if (text.size() > static_cast<std::size_t>(std::numeric_limits<std::int32_t>::max())) return std::string(text);
  const icu::Normalizer2& normalizer = normalizer_of(target);
  const icu::StringPiece source(text.data(), static_cast<std::int32_t>(text.size()));
  UErrorCode status = U_ZERO_ERROR;
  if (normalizer.isNormalizedUTF8(source, status) && U_SUCCESS(status)) return std::string(text);
  std::string out;
  icu::StringByteSink<std::string> sink(&out, static_cast<std::int32_t>(text.size()));
  status = U_ZERO_ERROR;
  normalizer.normalizeUTF8(0, source, sink, nullptr, status);
  return U_SUCCESS(status) ? out : std::string(text);
}

} // namespace troupe::unicode
