#include "engine/base/log_sink.h"

namespace tensorfold {
namespace {
class NullLog final : public LogSink {
 public:
  void write(LogLevel, std::string_view, std::initializer_list<LogField>) override {}
};
}  // namespace

LogSink& null_log() {
  static NullLog log;
  return log;
}

}  // namespace tensorfold
