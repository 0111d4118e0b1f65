// What a stage searches for: a literal string or a regular expression ({"String": ..} or {"Regex": ..}).
#pragma once

#include <string>
#include <string_view>
#include <variant>

#include "core/value.hpp"
#include "tokenizer/regex.hpp"

namespace troupe {

class text_pattern {
 public:
  explicit text_pattern(std::string literal) : what_(std::move(literal)) {}
  explicit text_pattern(regex expression) : what_(std::move(expression)) {}

  // visit(begin, end) for every match, left to right, none overlapping. An empty literal matches nowhere.
  template <class Visit>
  void for_each(std::string_view text, Visit&& visit) const {
    if (const auto* expression = std::get_if<regex>(&what_)) return expression->for_each(text, visit);
    const std::string& literal = std::get<std::string>(what_);
    if (literal.empty()) return;
    for (std::size_t at = text.find(literal); at != std::string_view::npos; at = text.find(literal, at + literal.size())) {
      visit(at, at + literal.size());
    }
  }

  std::string replace_all(std::string_view text, std::string_view with) const {
    std::string out;
    std::size_t done = 0;
    for_each(text, [&](std::size_t begin, std::size_t end) {
      out.append(text.substr(done, begin - done)).append(with);
      done = end;
    });
    return out.append(text.substr(done));
  }

 private:
  std::variant<std::string, regex> what_;
};

// Throws load_error on anything but one of the two spellings.
text_pattern read_pattern(const value& item, const std::string& where);

} // namespace troupe
