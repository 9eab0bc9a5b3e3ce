// Where the engine's log lines go. The daemon implements it over the journal; tests collect lines.
// Never a prompt or a reply above kDebug.
#pragma once

#include <initializer_list>
#include <string>
#include <string_view>

namespace tensorfold {

enum class LogLevel : unsigned char {
  kError = 3,
  kWarning = 4,
  kNotice = 5,
  kInfo = 6,
  kDebug = 7
};

struct LogField {
  std::string_view name;  // journal field name: upper case, digits, underscore, "TF_..."
  std::string value;
};

class LogSink {
 public:
  virtual ~LogSink() = default;
  // Callable from any thread; must not block for long.
  virtual void write(LogLevel level, std::string_view message,
                     std::initializer_list<LogField> fields) = 0;

  void error(std::string_view m, std::initializer_list<LogField> f = {}) {
    write(LogLevel::kError, m, f);
  }
  void warning(std::string_view m, std::initializer_list<LogField> f = {}) {
    write(LogLevel::kWarning, m, f);
  }
  void info(std::string_view m, std::initializer_list<LogField> f = {}) {
    write(LogLevel::kInfo, m, f);
  }
  void debug(std::string_view m, std::initializer_list<LogField> f = {}) {
    write(LogLevel::kDebug, m, f);
  }
};

// A sink that drops everything.
LogSink& null_log();

}  // namespace tensorfold
