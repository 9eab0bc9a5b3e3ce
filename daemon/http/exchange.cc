#include "daemon/http/exchange.h"

#include <utility>

#include "daemon/http/connection.h"
#include "engine/base/check.h"

namespace tensorfold::http {

ConnectionExchange::ConnectionExchange(Connection& connection, Request request)
    : connection_(&connection),
      request_(std::move(request)),
      peer_(connection.peer()),
      credentials_(connection.credentials()) {}

void ConnectionExchange::respond(Response response) {
  TF_CHECK_MSG(phase_ == Phase::kOpen, "a request is answered once");
  phase_ = Phase::kDone;
  if (connection_ == nullptr) return;
  connection_->decorate(request_, response);
  connection_->respond(response);
}

void ConnectionExchange::begin_stream(Response head) {
  TF_CHECK_MSG(phase_ == Phase::kOpen, "a request is answered once");
  phase_ = Phase::kStreaming;
  if (connection_ == nullptr) return;
  connection_->decorate(request_, head);
  connection_->begin_stream(head);
}

void ConnectionExchange::write(std::string_view bytes) {
  TF_CHECK_MSG(phase_ == Phase::kStreaming, "write() needs begin_stream()");
  if (connection_ != nullptr) connection_->write_stream(bytes);
}

void ConnectionExchange::end_stream(std::string_view last) {
  TF_CHECK_MSG(phase_ == Phase::kStreaming, "end_stream() needs begin_stream()");
  phase_ = Phase::kDone;
  if (connection_ != nullptr) connection_->end_stream(last);
}

void ConnectionExchange::abort() {
  phase_ = Phase::kDone;
  if (connection_ != nullptr) connection_->close();
}

void ConnectionExchange::lose() {
  connection_ = nullptr;
  if (phase_ == Phase::kDone) return;
  if (auto callback = std::exchange(on_gone_, nullptr)) callback();
}

}  // namespace tensorfold::http
