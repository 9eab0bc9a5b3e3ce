// LogLines: a log sink that keeps its messages.
#pragma once

#include <initializer_list>
#include <string>
#include <string_view>
#include <vector>

#include "engine/base/log_sink.h"

namespace tensorfold::test {

class LogLines final : public LogSink {
 public:
  void write(LogLevel, std::string_view message, std::initializer_list<LogField>) override {
    lines.emplace_back(message);
  }
  std::vector<std::string> lines;
};

}  // namespace tensorfold::test
