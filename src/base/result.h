#pragma once

#include <string>
#include <utility>
#include <variant>

namespace nvshare {

// What went wrong, in one line that a person can act on. Context is put in front as the error
// travels up: "scenario.toml:3:9: limit: 0 is not a percentage from 1 to 100".
struct Error {
  std::string message;

  [[nodiscard]] Error with_context(const std::string& context) const {
    return Error{context + ": " + message};
  }
};

// A value or the reason why there is none. Asking for the wrong one is a bug of the caller and
// ends the program (std::bad_variant_access); test with `if (result)` first.
template <typename T>
class [[nodiscard]] Result {
 public:
  Result(T value) : state_(std::in_place_index<0>, std::move(value)) {}
  Result(Error error) : state_(std::in_place_index<1>, std::move(error)) {}

  explicit operator bool() const { return state_.index() == 0; }
  T& operator*() & { return std::get<0>(state_); }
  const T& operator*() const& { return std::get<0>(state_); }
  T&& operator*() && { return std::get<0>(std::move(state_)); }
  T* operator->() { return &std::get<0>(state_); }
  const T* operator->() const { return &std::get<0>(state_); }
  const Error& error() const { return std::get<1>(state_); }

 private:
  std::variant<T, Error> state_;
};

template <>
class [[nodiscard]] Result<void> {
 public:
  Result() = default;
  Result(Error error) : state_(std::in_place_index<1>, std::move(error)) {}

  explicit operator bool() const { return state_.index() == 0; }
  const Error& error() const { return std::get<1>(state_); }

 private:
  std::variant<std::monostate, Error> state_;
};

}  // namespace nvshare
