#include "engine/base/status.h"

#include <cstring>

namespace tensorfold {
namespace {
const std::string kEmpty;
}

std::string_view status_code_name(StatusCode code) {
  switch (code) {
    case StatusCode::kOk:
      return "ok";
    case StatusCode::kInvalidArgument:
      return "invalid argument";
    case StatusCode::kNotFound:
      return "not found";
    case StatusCode::kTooMany:
      return "too many";
    case StatusCode::kUnavailable:
      return "unavailable";
    case StatusCode::kCancelled:
      return "cancelled";
    case StatusCode::kDeadline:
      return "deadline";
    case StatusCode::kDataLoss:
      return "data loss";
    case StatusCode::kIo:
      return "i/o error";
    case StatusCode::kUnsupported:
      return "unsupported";
    case StatusCode::kInternal:
      return "internal error";
  }
  return "unknown";
}

Status::Status(StatusCode code, std::string message, std::string param, std::string reason) {
  TF_CHECK(code != StatusCode::kOk);
  detail_ = std::make_shared<const Detail>(
      Detail{code, std::move(message), std::move(param), std::move(reason)});
}

const std::string& Status::message() const { return detail_ ? detail_->message : kEmpty; }
const std::string& Status::param() const { return detail_ ? detail_->param : kEmpty; }
const std::string& Status::reason() const { return detail_ ? detail_->reason : kEmpty; }

std::string Status::to_string() const {
  if (ok()) return "ok";
  return std::string(status_code_name(code())) + ": " + message();
}

Status Status::with_context(std::string_view where) const {
  if (ok()) return *this;
  return Status(code(), std::string(where) + ": " + message(), param(), reason());
}

Status invalid_argument(std::string message, std::string param, std::string reason) {
  return Status(StatusCode::kInvalidArgument, std::move(message), std::move(param),
                std::move(reason));
}
Status data_loss(std::string message) { return Status(StatusCode::kDataLoss, std::move(message)); }
Status io_error(std::string_view what, int errno_value) {
  return Status(StatusCode::kIo, std::string(what) + ": " + std::strerror(errno_value));
}
Status unsupported(std::string message) {
  return Status(StatusCode::kUnsupported, std::move(message));
}
Status unavailable(std::string message, std::string reason) {
  return Status(StatusCode::kUnavailable, std::move(message), {}, std::move(reason));
}
Status internal_error(std::string message) {
  return Status(StatusCode::kInternal, std::move(message));
}

}  // namespace tensorfold
