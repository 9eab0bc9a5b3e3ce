// tensorfoldd over the scripted engine: everything of the daemon is real, only the model is not.
// TF_FAKE_LOAD_MS, TF_FAKE_FAIL_LOAD and TF_FAKE_STUCK inject faults.
#include "daemon/process.h"
#include "tests/daemon/fake_engine.h"

int main(int argc, char** argv) {
  using namespace tensorfold;
  return daemon_main(argc, argv, [](EngineOptions options, const Clock& clock, LogSink&) {
    return Result<std::unique_ptr<Engine>>(
        std::make_unique<FakeEngine>(std::move(options), fake_settings_from_environment(), clock));
  });
}
