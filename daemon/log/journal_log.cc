#include "daemon/log/journal_log.h"

#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

#define SD_JOURNAL_SUPPRESS_LOCATION  // the message says where; a source line helps nobody
#include <systemd/sd-journal.h>

#include <cstdio>
#include <vector>

#include "daemon/log/events.h"
#include "daemon/log/journal_barrier.h"
#include "engine/base/utf8.h"

namespace tensorfold::log {
namespace {

std::string_view level_word(LogLevel level) {
  switch (level) {
    case LogLevel::kError:
      return "error";
    case LogLevel::kWarning:
      return "warning";
    case LogLevel::kNotice:
      return "notice";
    case LogLevel::kInfo:
      return "info";
    case LogLevel::kDebug:
      break;
  }
  return "debug";
}

// One entry is one line: what a client sent must not be able to forge another.
std::string one_line(std::string_view message) {
  return shown_text(message, kLogLineBytesMax, ' ');
}

}  // namespace

Form detect_form(int fd, const char* journal_stream) {
  struct stat info {};
  if (journal_stream != nullptr && fstat(fd, &info) == 0) {
    unsigned long long device = 0, inode = 0;
    if (std::sscanf(journal_stream, "%llu:%llu", &device, &inode) == 2 && device == info.st_dev &&
        inode == info.st_ino) {
      return Form::kJournal;
    }
  }
  return isatty(fd) != 0 ? Form::kPlain : Form::kPrefixed;
}

JournalLog::~JournalLog() {
  if (form_ == Form::kJournal) (void)wait_for_journal();
}

std::string JournalLog::line(Form form, LogLevel level, std::string_view message) {
  std::string out;
  if (form == Form::kPlain) {
    out = level == LogLevel::kInfo ? "" : std::string(level_word(level)) + ": ";
  } else {
    out = "<" + std::to_string(static_cast<int>(level)) + ">";
  }
  return out + one_line(message) + "\n";
}

void JournalLog::write(LogLevel level, std::string_view message,
                       std::initializer_list<LogField> fields) {
  if (level > level_.load(std::memory_order_relaxed)) return;
  if (level > LogLevel::kWarning) return write_line(level, message, fields);
  std::string_view event;
  for (const LogField& field : fields)
    if (field.name == "TF_EVENT") event = field.value;
  const StormGuard::Verdict verdict = storms_.admit(event, message);
  if (!verdict.write) return;
  if (verdict.left_out == 0) return write_line(level, message, fields);
  write_line(level,
             std::string(message) + " (and " + std::to_string(verdict.left_out) +
                 " more lines of this kind, left out)",
             fields);
}

void JournalLog::write_line(LogLevel level, std::string_view message,
                            std::initializer_list<LogField> fields) const {
  if (form_ != Form::kJournal) {
    const std::string text = line(form_, level, message);
    [[maybe_unused]] const ssize_t written = ::write(fd_, text.data(), text.size());
    return;
  }
  std::vector<std::string> texts;
  texts.reserve(fields.size() + 4);
  texts.push_back("MESSAGE=" + one_line(message));
  texts.push_back("PRIORITY=" + std::to_string(static_cast<int>(level)));
  texts.push_back("SYSLOG_IDENTIFIER=tensorfoldd");
  for (const LogField& field : fields) {
    texts.push_back(std::string(field.name) + "=" + field.value);
    if (field.name != "TF_EVENT") continue;
    const std::string_view id = message_id_of(field.value);
    if (!id.empty()) texts.push_back("MESSAGE_ID=" + std::string(id));
  }
  std::vector<iovec> parts;
  parts.reserve(texts.size());
  for (std::string& text : texts) parts.push_back({text.data(), text.size()});
  sd_journal_sendv(parts.data(), static_cast<int>(parts.size()));
}

LogLevel level_of(std::string_view name) {
  for (const LogLevel level :
       {LogLevel::kError, LogLevel::kWarning, LogLevel::kNotice, LogLevel::kInfo}) {
    if (level_word(level) == name) return level;
  }
  return LogLevel::kDebug;
}

std::string_view name_of(LogLevel level) { return level_word(level); }

}  // namespace tensorfold::log
