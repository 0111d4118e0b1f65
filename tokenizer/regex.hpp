// Regular expressions of tokenizer files. They are written for Oniguruma (Ruby syntax); PCRE2 runs them, compiled to machine code.
#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

namespace troupe {

struct regex_match {
  std::size_t begin = 0;
  std::size_t end = 0;
};

// A compiled pattern; immutable, so safe to share between threads.
class regex {
 public:
  // Throws load_error, beginning with `where`, on a pattern that is malformed or whose meaning differs between the two engines.
  regex(std::string_view pattern, const std::string& where);
  ~regex();
  regex(regex&&) noexcept;
  regex& operator=(regex&&) noexcept;

  // The first match at or after `from`; look-behind sees the text before it. `text` must be UTF-8. A search that exceeds its budget
  // finds nothing.
  std::optional<regex_match> find(std::string_view text, std::size_t from) const;

  // Calls visit(begin, end) for every match, left to right. An empty match right behind another one is skipped, as Oniguruma's
  // iterators do.
  template <class Visit>
  void for_each(std::string_view text, Visit&& visit) const {
    std::size_t from = 0;
    std::optional<std::size_t> last_end;
    while (from <= text.size()) {
      const auto match = find(text, from);
      if (!match) return;
      if (match->begin == match->end && last_end == match->end) {
        from = next_character(text, from);
        continue;
      }
      from = match->end;
      last_end = match->end;
      visit(match->begin, match->end);
    }
  }

 private:
  static std::size_t next_character(std::string_view text, std::size_t at);

  struct impl;
  std::unique_ptr<impl> impl_;
};

// The same pattern in PCRE2's syntax (UTF and UCP on). Throws load_error as regex does.
std::string translate_regex(std::string_view pattern, const std::string& where);

} // namespace troupe
