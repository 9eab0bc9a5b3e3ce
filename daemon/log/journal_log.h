// The daemon's LogSink. Three forms, chosen once at start:
//   journal   stderr is the journal's stream: sd_journal_sendv with structured fields
//   prefixed  stderr is a file or pipe: "<6>message", which systemd and loggers understand
//   plain     stderr is a terminal: "info: message"
// Prompts and replies are never logged above debug. A storm of equal warnings is thinned out. Any
// thread may write; one line is one write.
#pragma once

#include <atomic>
#include <string>

#include "daemon/log/storm_guard.h"
#include "engine/base/log_sink.h"

namespace tensorfold::log {

enum class Form : unsigned char { kJournal, kPrefixed, kPlain };

inline constexpr size_t kLogLineBytesMax = 8 * 1024;  // longer messages are cut, with "..."

// What stderr is, from $JOURNAL_STREAM and the descriptor.
Form detect_form(int fd, const char* journal_stream);

class JournalLog final : public LogSink {
 public:
  explicit JournalLog(Form form, int fd = 2, const Clock& clock = system_clock())
      : form_(form), fd_(fd), storms_(clock) {}
  ~JournalLog() override;  // the journal has read what was said (journal_barrier.h)

  LogLevel level() const { return level_.load(std::memory_order_relaxed); }
  void set_level(LogLevel level) { level_.store(level, std::memory_order_relaxed); }
  void write(LogLevel level, std::string_view message,
             std::initializer_list<LogField> fields) override;

  // The text of one line in the forms without fields.
  static std::string line(Form form, LogLevel level, std::string_view message);

 private:
  void write_line(LogLevel level, std::string_view message,
                  std::initializer_list<LogField> fields) const;
  const Form form_;
  const int fd_;
  StormGuard storms_;
  std::atomic<LogLevel> level_{LogLevel::kInfo};
};

// "info" -> kInfo; the configuration has checked the name.
LogLevel level_of(std::string_view name);
std::string_view name_of(LogLevel level);

}  // namespace tensorfold::log
