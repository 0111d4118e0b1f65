#define PCRE2_CODE_UNIT_WIDTH 8
#include "tokenizer/regex.hpp"

#include <pcre2.h>

#include <array>

#include "core/error.hpp"
#include "tokenizer/utf8.hpp"

namespace troupe {
namespace {

constexpr std::size_t max_pattern_bytes = 64U << 10;
constexpr std::uint32_t max_match_steps = 10'000'000; // backtracking points of one search
constexpr std::uint32_t max_heap_kib = 256U << 10;
constexpr std::size_t min_jit_stack = 64U << 10;
constexpr std::size_t max_jit_stack = 8U << 20;

template <auto Free>
struct freer {
  template <class T>
  void operator()(T* item) const {
    Free(item);
  }
};
using code_ptr = std::unique_ptr<pcre2_code, freer<pcre2_code_free>>;
using match_data_ptr = std::unique_ptr<pcre2_match_data, freer<pcre2_match_data_free>>;
using match_context_ptr = std::unique_ptr<pcre2_match_context, freer<pcre2_match_context_free>>;
using compile_context_ptr = std::unique_ptr<pcre2_compile_context, freer<pcre2_compile_context_free>>;
using jit_stack_ptr = std::unique_ptr<pcre2_jit_stack, freer<pcre2_jit_stack_free>>;

// Working memory of one thread's searches.
struct scratch {
  match_data_ptr data{pcre2_match_data_create(1, nullptr)};
  match_context_ptr context{pcre2_match_context_create(nullptr)};
  jit_stack_ptr stack{pcre2_jit_stack_create(min_jit_stack, max_jit_stack, nullptr)};

  scratch() {
    if (!data || !context) throw std::bad_alloc();
    pcre2_set_match_limit(context.get(), max_match_steps);
    pcre2_set_heap_limit(context.get(), max_heap_kib);
    if (stack) pcre2_jit_stack_assign(context.get(), nullptr, stack.get());
  }
};

scratch& thread_scratch() {
  thread_local scratch instance;
  return instance;
}

} // namespace

struct regex::impl {
  code_ptr code;
  bool jit = false;
};

regex::regex(std::string_view pattern, const std::string& where) : impl_(std::make_unique<impl>()) {
  if (pattern.size() > max_pattern_bytes) throw load_error(where + ": the pattern is longer than 64 KiB");
  const std::string translated = translate_regex(pattern, where);
  const compile_context_ptr context(pcre2_compile_context_create(nullptr));
  if (!context) throw std::bad_alloc();
  pcre2_set_newline(context.get(), PCRE2_NEWLINE_LF);
  pcre2_set_parens_nest_limit(context.get(), 64);
  int code = 0;
  std::size_t offset = 0;
  impl_->code.reset(pcre2_compile(reinterpret_cast<PCRE2_SPTR>(translated.data()), translated.size(),
                                  PCRE2_UTF | PCRE2_UCP | PCRE2_MULTILINE | PCRE2_NEVER_BACKSLASH_C, &code, &offset, context.get()));
  if (!impl_->code) {
    std::array<PCRE2_UCHAR, 256> message{};
    pcre2_get_error_message(code, message.data(), message.size());
    throw load_error(where + ": bad pattern: " + reinterpret_cast<const char*>(message.data()));
  }
  impl_->jit = pcre2_jit_compile(impl_->code.get(), PCRE2_JIT_COMPLETE) == 0;
}

regex::~regex() = default;
regex::regex(regex&&) noexcept = default;
regex& regex::operator=(regex&&) noexcept = default;

std::optional<regex_match> regex::find(std::string_view text, std::size_t from) const {
  scratch& work = thread_scratch();
  const auto* subject = reinterpret_cast<PCRE2_SPTR>(text.data());
  int found = PCRE2_ERROR_JIT_STACKLIMIT;
  if (impl_->jit) {
    found = pcre2_jit_match(impl_->code.get(), subject, text.size(), from, PCRE2_NO_UTF_CHECK, work.data.get(), work.context.get());
  }
  // The interpreter keeps its backtracking points on the heap: no recursion, whatever the length of the text.
  if (found == PCRE2_ERROR_JIT_STACKLIMIT) {
    found =
        pcre2_match(impl_->code.get(), subject, text.size(), from, PCRE2_NO_UTF_CHECK | PCRE2_NO_JIT, work.data.get(), work.context.get());
  }
  if (found < 0) return std::nullopt;
  const std::size_t* ends = pcre2_get_ovector_pointer(work.data.get());
  return regex_match{ends[0], ends[1]};
}

std::size_t regex::next_character(std::string_view text, std::size_t at) {
  return at >= text.size() ? at + 1 : at + utf8::read_valid(text, at).size;
}

} // namespace troupe
