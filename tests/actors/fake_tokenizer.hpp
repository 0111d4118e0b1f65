// A tokenizer whose tokens are bytes, with one BOS and one EOS behind them.
#pragma once

#include <chrono>
#include <condition_variable>
#include <mutex>
#include <string>
#include <vector>

#include "tests/actors/fake_device.hpp"
#include "tokenizer/tokenizer.hpp"

namespace troupe::test {

class byte_tokenizer final : public tokenizer {
 public:
  explicit byte_tokenizer(bool with_bos = false) : with_bos_(with_bos) {}

  std::vector<token_id> encode(std::string_view text, encode_options options) const override {
    std::unique_lock lock(mutex_);
    ++encoding_;
    changed_.notify_all();
    changed_.wait(lock, [&] { return !closed_; });
    --encoding_;
    std::vector<token_id> tokens;
    if (with_bos_ && options.add_special_tokens) tokens.push_back(kBos);
    for (const char c : text) tokens.push_back(static_cast<unsigned char>(c));
    return tokens;
  }
  std::string token_bytes(token_id token) const override {
    if (token == kBos) return "<s>";
    if (token == kEos) return "</s>";
    return token >= 0 && token < kBos ? std::string(1, static_cast<char>(token)) : std::string();
  }
  std::string decode(std::span<const token_id> tokens, bool skip_special) const override {
    std::string text;
    for (const token_id t : tokens) {
      if (!skip_special || t < kBos) text += token_bytes(t);
    }
    return text;
  }
  std::int32_t vocab_size() const override { return kVocab; }
  bool is_special(token_id token) const override { return token >= kBos; }
  std::optional<token_id> find(std::string_view text) const override {
    if (text == "</s>") return kEos;
    if (text == "<s>") return kBos;
    return std::nullopt;
  }
  std::optional<token_id> bos() const override { return kBos; }
  std::vector<token_id> eos() const override { return {kEos}; }
  bool adds_bos() const override { return with_bos_; }
  const std::vector<std::string>& special_texts() const override { return specials_; }
  bool strips_leading_space() const override { return false; }

  // encode() waits in front of a closed gate.
  void close_gate() const { set_gate(true); }
  void open_gate() const { set_gate(false); }
  void await_encoding(int count) const {
    std::unique_lock lock(mutex_);
    changed_.wait_for(lock, std::chrono::seconds(20), [&] { return encoding_ >= count; });
  }

 private:
  void set_gate(bool closed) const {
    const std::lock_guard lock(mutex_);
    closed_ = closed;
    changed_.notify_all();
  }

  bool with_bos_;
  std::vector<std::string> specials_{"</s>", "<s>"};
  mutable std::mutex mutex_;
  mutable std::condition_variable changed_;
  mutable bool closed_ = false;
  mutable int encoding_ = 0;
};

} // namespace troupe::test
