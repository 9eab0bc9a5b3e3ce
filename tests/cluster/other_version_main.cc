// The daemon as another version: its ranks must not get into a group with this one's.
#include <utility>

#include "daemon/process.h"

int main(int argc, char** argv) {
  using namespace tensorfold;
  return daemon_main(argc, argv, [](EngineOptions options, const Clock& clock, LogSink& log) {
    options.cluster.version = "0.0.0-other";
    return Engine::create(std::move(options), clock, log);
  });
}
