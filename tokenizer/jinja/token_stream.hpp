// The parsers' view of the tokens of a template, and the names seen so far.
#pragma once

#include <algorithm>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "tokenizer/jinja/ast.hpp"
#include "tokenizer/jinja/lexer.hpp"

namespace troupe::jinja {

class token_stream {
 public:
  token_stream(std::vector<token> tokens, std::size_t max_depth) : tokens_(std::move(tokens)), max_depth_(max_depth) {}

  const token& current() const { return tokens_[at_]; }
  const token& ahead() const { return tokens_[std::min(at_ + 1, tokens_.size() - 1)]; }
  token next() { return at_ + 1 < tokens_.size() ? std::move(tokens_[at_++]) : tokens_[at_]; }
  std::uint32_t line() const { return current().line; }

  bool is(token_kind kind) const { return current().kind == kind; }
  bool is_symbol(std::string_view text) const { return is(token_kind::symbol) && current().text == text; }
  bool is_name(std::string_view text) const { return is(token_kind::name) && current().text == text; }
  bool skip_symbol(std::string_view text) { return is_symbol(text) && (++at_, true); }
  bool skip_name(std::string_view text) { return is_name(text) && (++at_, true); }
  void expect_symbol(std::string_view text) {
    if (!skip_symbol(text)) fail("expected '" + std::string(text) + "'" + found());
  }
  void expect_name(std::string_view text) {
    if (!skip_name(text)) fail("expected '" + std::string(text) + "'" + found());
  }
  void expect(token_kind kind, std::string_view what) {
    if (!is(kind)) fail("expected " + std::string(what) + found());
    next();
  }
  std::string expect_identifier(std::string_view what) {
    if (!is(token_kind::name)) fail("expected " + std::string(what) + found());
    return next().text;
  }

  std::string found() const;
  [[noreturn]] void fail(const std::string& reason) const { throw syntax_error(line(), reason); }
  [[noreturn]] static void fail_at(std::uint32_t line, const std::string& reason) { throw syntax_error(line, reason); }

  name_id intern(const std::string& name);
  std::vector<std::string> take_names() { return std::move(names_); }
  std::size_t name_uses(std::string_view name) const; // how often `intern` saw it

  // One level of nesting while it lives.
  class level {
   public:
    explicit level(token_stream& in) : in_(in) {
      if (in_.depth_ >= in_.max_depth_) in_.fail("nested deeper than " + std::to_string(in_.max_depth_) + " levels");
      ++in_.depth_;
    }
    ~level() { --in_.depth_; }
    level(const level&) = delete;
    level& operator=(const level&) = delete;

   private:
    token_stream& in_;
  };

 private:
  std::vector<token> tokens_;
  std::size_t max_depth_;
  std::size_t at_ = 0;
  std::size_t depth_ = 0;
  std::vector<std::string> names_;
  std::vector<std::size_t> uses_; // parallel to names_
  std::unordered_map<std::string, name_id> ids_;
};

} // namespace troupe::jinja
