// Expected failures are values (`error`, `result<T>`); a file that cannot be loaded throws `load_error`.
#pragma once

#include <cstdint>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>
#include <variant>

namespace troupe {

enum class error_kind : std::uint8_t {
  invalid_request, // the client's fault: HTTP 400
  not_found,       // unknown model or route: 404
  overloaded,      // a bounded queue is full: 429, with retry_after_seconds
  unavailable,     // not ready, draining, or the device is gone for good: 503
  timed_out,       // a deadline passed: 408 or 504
  cancelled,       // the client went away
  internal,        // our fault: 500
};

// What a client may be told. `message` never holds raw client bytes; `param` names the field at fault, or is empty.
struct error {
  error_kind kind = error_kind::internal;
  std::string message;
  std::string param;
  std::optional<std::uint32_t> retry_after_seconds;
};

inline error invalid_request(std::string param, std::string message) {
  return {error_kind::invalid_request, std::move(message), std::move(param), std::nullopt};
}

// A value or an error. Accessing the wrong one throws std::bad_variant_access.
template <class T>
class result {
 public:
  result(T value) : state_(std::in_place_index<0>, std::move(value)) {}
  result(error failure) : state_(std::in_place_index<1>, std::move(failure)) {}

  bool has_value() const noexcept { return state_.index() == 0; }
  explicit operator bool() const noexcept { return has_value(); }
  T& value() & { return std::get<0>(state_); }
  const T& value() const& { return std::get<0>(state_); }
  T&& value() && { return std::get<0>(std::move(state_)); }
  T& operator*() & { return value(); }
  const T& operator*() const& { return value(); }
  T* operator->() { return &value(); }
  const T* operator->() const { return &value(); }
  const troupe::error& failure() const { return std::get<1>(state_); }

 private:
  std::variant<T, troupe::error> state_;
};

// A checkpoint, tokenizer or template that cannot be used. what() is one line: file, tensor or key, reason.
class load_error : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// The device can no longer execute steps (lost, out of memory, sticky fault).
class device_error : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

} // namespace troupe
