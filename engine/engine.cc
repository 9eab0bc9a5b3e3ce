// Engine::create: picks the parts of a real engine and starts it.
#include "engine/engine.h"

namespace tensorfold {
namespace {

// Until the model loader is there: an engine that says so.
class NoEngine final : public Engine {
 public:
  Result<RequestId> submit(Request, std::shared_ptr<RequestSink>) override {
    return unavailable("no model is loaded: model loading is not there yet");
  }
  void cancel(RequestId) override {}
  void drain() override {}
  void resume() override {}
  EngineStats stats() const override {
    EngineStats s;
    s.state = EngineStats::State::kFailed;
    s.state_detail = "model loading is not there yet";
    return s;
  }
  ModelInfo model() const override { return {}; }
  std::unique_ptr<OutputStream> output_stream(const OutputOptions&) const override {
    return nullptr;
  }
  std::string token_text(TokenId) const override { return {}; }
};

}  // namespace

Result<std::unique_ptr<Engine>> Engine::create(EngineOptions, const Clock&, LogSink&) {
  return std::unique_ptr<Engine>(std::make_unique<NoEngine>());
}

}  // namespace tensorfold
