// The Exchange of a Connection: forwards to it while both live.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "daemon/http/message.h"

namespace tensorfold::http {

class Connection;

class ConnectionExchange final : public Exchange {
 public:
  ConnectionExchange(Connection& connection, Request request);

  Request& request() override { return request_; }
  std::string peer() const override { return peer_; }
  const PeerCredentials* credentials() const override {
    return credentials_ ? &*credentials_ : nullptr;
  }
  void respond(Response response) override;
  void begin_stream(Response head) override;
  void write(std::string_view bytes) override;
  void end_stream(std::string_view last) override;
  void abort() override;
  bool gone() const override { return connection_ == nullptr; }
  void on_gone(std::function<void()> callback) override { on_gone_ = std::move(callback); }

  void detach() { connection_ = nullptr; }  // the reply is complete
  void lose();                              // the peer went away first

 private:
  enum class Phase : unsigned char { kOpen, kStreaming, kDone };
  Connection* connection_;
  Request request_;
  std::string peer_;
  std::optional<PeerCredentials> credentials_;
  Phase phase_ = Phase::kOpen;
  std::function<void()> on_gone_;
};

}  // namespace tensorfold::http
