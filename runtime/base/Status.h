// Errors as values. A Status is success or one message that names the place and the remedy.
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <variant>

namespace sheaf {

class [[nodiscard]] Status {
 public:
  Status() = default;
  static Status error(std::string message) {
    Status status;
    status.message_ = std::make_shared<const std::string>(std::move(message));
    return status;
  }
  bool ok() const { return !message_; }
  // The message of an error; empty for success.
  const std::string& message() const {
    static const std::string none;
    return message_ ? *message_ : none;
  }

 private:
  std::shared_ptr<const std::string> message_;
};

// A value or an error.
template <typename T>
class [[nodiscard]] Expected {
 public:
  Expected(T value) : value_(std::move(value)) {}
  Expected(Status error) : value_(std::move(error)) {}
  bool ok() const { return std::holds_alternative<T>(value_); }
  Status status() const { return ok() ? Status() : std::get<Status>(value_); }
  T& operator*() { return std::get<T>(value_); }
  const T& operator*() const { return std::get<T>(value_); }
  T* operator->() { return &std::get<T>(value_); }
  const T* operator->() const { return &std::get<T>(value_); }

 private:
  std::variant<T, Status> value_;
};

#define SHEAF_RETURN_IF_ERROR(expression) \
  if (::sheaf::Status status_ = (expression); !status_.ok()) return status_

}  // namespace sheaf
