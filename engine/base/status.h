// Status and Result: how everything that may fail reports it. No exception crosses a stage.
//
// A Status carries a code, a message for a person (it names the field, file or line), and, where
// a request caused it, the request field (`param`) and a machine-readable `reason`
// (for example "context_length_exceeded"). Cheap to move; an ok Status holds no strings.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <variant>

#include "engine/base/check.h"

namespace tensorfold {

enum class StatusCode : unsigned char {
  kOk,
  kInvalidArgument,  // the caller's input is wrong; retrying does not help       (HTTP 400)
  kNotFound,         // a named thing does not exist                               (HTTP 404)
  kTooMany,          // a queue bound was reached; retry later                     (HTTP 429)
  kUnavailable,      // loading, draining, out of capacity, peer lost; retry later (HTTP 503)
  kCancelled,        // the client went away or an operator cancelled
  kDeadline,         // a time bound passed
  kDataLoss,         // a file or message is damaged; `message` names file and tensor or field
  kIo,               // the operating system refused; errno is in the message
  kUnsupported,      // valid, but this build or model cannot do it
  kInternal,         // a fault of ours that was contained
};

std::string_view status_code_name(StatusCode code);

class [[nodiscard]] Status {
 public:
  Status() = default;
  Status(StatusCode code, std::string message, std::string param = {}, std::string reason = {});

  bool ok() const { return detail_ == nullptr; }
  StatusCode code() const { return detail_ ? detail_->code : StatusCode::kOk; }
  const std::string& message() const;
  const std::string& param() const;   // request field at fault, or empty
  const std::string& reason() const;  // machine-readable code, or empty
  std::string to_string() const;      // "kInvalidArgument: message"

  // The same status with `where: ` put before the message.
  Status with_context(std::string_view where) const;

 private:
  struct Detail {
    StatusCode code;
    std::string message, param, reason;
  };
  std::shared_ptr<const Detail> detail_;
};

inline Status ok_status() { return {}; }
Status invalid_argument(std::string message, std::string param = {}, std::string reason = {});
Status data_loss(std::string message);
Status io_error(std::string_view what, int errno_value);  // "what: No such file or directory"
Status unsupported(std::string message);
Status unavailable(std::string message, std::string reason = {});
Status internal_error(std::string message);

template <typename T>
class [[nodiscard]] Result {
 public:
  Result(T value) : state_(std::in_place_index<0>, std::move(value)) {}        // NOLINT: implicit
  Result(Status status) : state_(std::in_place_index<1>, std::move(status)) {  // NOLINT: implicit
    TF_CHECK(!std::get<1>(state_).ok());
  }

  bool ok() const { return state_.index() == 0; }
  const Status& status() const { return ok() ? ok_ : std::get<1>(state_); }
  T& value() & {
    TF_CHECK(ok());
    return std::get<0>(state_);
  }
  const T& value() const& {
    TF_CHECK(ok());
    return std::get<0>(state_);
  }
  T&& value() && {
    TF_CHECK(ok());
    return std::get<0>(std::move(state_));
  }
  T& operator*() & { return value(); }
  const T& operator*() const& { return value(); }
  T&& operator*() && { return std::move(*this).value(); }
  T* operator->() { return &value(); }
  const T* operator->() const { return &value(); }

 private:
  std::variant<T, Status> state_;
  Status ok_;
};

#define TF_RETURN_IF_ERROR(expr)              \
  do {                                        \
    ::tensorfold::Status tf_status_ = (expr); \
    if (!tf_status_.ok()) return tf_status_;  \
  } while (0)

#define TF_CONCAT_INNER(a, b) a##b
#define TF_CONCAT(a, b) TF_CONCAT_INNER(a, b)
// TF_ASSIGN_OR_RETURN(auto x, make_x());
#define TF_ASSIGN_OR_RETURN(lhs, expr) TF_ASSIGN_IMPL(TF_CONCAT(tf_result_, __LINE__), lhs, expr)
#define TF_ASSIGN_IMPL(tmp, lhs, expr) \
  auto tmp = (expr);                   \
  if (!tmp.ok()) return tmp.status();  \
  lhs = std::move(tmp).value()

}  // namespace tensorfold
