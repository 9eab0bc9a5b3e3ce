#include "ctl/model/sync.h"

#include <algorithm>
#include <charconv>
#include <sstream>

#include "ctl/model/disk_room.h"
#include "ctl/model/record.h"
#include "ctl/model/verify.h"
#include "ctl/remote/ssh.h"
#include "engine/base/program.h"

namespace tensorfold::models {
namespace {

constexpr std::string_view kRemotePartFolder = ".tensorfold-sync";

// The number behind `label` in rsync's --stats, which may have separators of thousands.
int64_t stat_after(std::string_view text, std::string_view label) {
  const size_t at = text.find(label);
  if (at == text.npos) return -1;
  int64_t value = -1;
  for (const char c : text.substr(at + label.size())) {
    if (c >= '0' && c <= '9') {
      value = std::max<int64_t>(value, 0) * 10 + (c - '0');
    } else if (value >= 0 ? (c != ',' && c != '.') : c != ' ') {
      break;
    }
  }
  return value;
}

class Sync {
 public:
  Sync(const SyncOptions& options, Progress& progress) : o_(options), progress_(progress) {}

  Result<int> run() {
    TF_RETURN_IF_ERROR(remote::check_host(o_.host));
    if (o_.there.empty() || o_.there.front() != '/') {
      return invalid_argument("the folder on " + o_.host + " must begin with /, not '" + o_.there +
                              "'");
    }
    TF_RETURN_IF_ERROR(take_record());
    TF_ASSIGN_OR_RETURN(const int64_t free, prepare_there());
    TF_RETURN_IF_ERROR(check_there(free));
    TF_RETURN_IF_ERROR(copy());
    return verify_there();
  }

 private:
  // Files must be as the record says: what changed since would be called damage there.
  Status take_record() {
    if (!has_record(o_.folder)) {
      progress_.note(o_.folder + ": no record of hashes; it is made now");
      TF_ASSIGN_OR_RETURN(record_, record_folder(o_.folder, o_.threads, progress_));
    } else {
      TF_ASSIGN_OR_RETURN(record_, load_record(o_.folder));
    }
    for (const RecordFile& file : record_.files) {
      if (file_state(o_.folder + "/" + file.path).bytes != file.bytes) {
        return data_loss(o_.folder + "/" + file.path +
                         ": missing, or of another size than recorded; see 'tfctl model verify'");
      }
      list_ += file.path + '\0';
    }
    list_ += std::string(kRecordName) + '\0';
    return ok_status();
  }

  Result<std::string> ask(const std::vector<std::string>& argv, const std::string& step) {
    ProgramRun run;
    run.capture = true;
    TF_ASSIGN_OR_RETURN(const ProgramEnd ended,
                        run_program(remote::ssh_command(o_.host, argv, false), run));
    if (ended.exit_status == 0) return ended.output;
    if (ended.exit_status == remote::kSshFailed) {
      return unavailable("ssh to " + o_.host + " failed: a login without a password must work");
    }
    return unavailable(o_.host + ": " + step + " failed with exit status " +
                       std::to_string(ended.exit_status));
  }

  // Makes the folder and gives the free bytes there, by df's POSIX form.
  Result<int64_t> prepare_there() {
    TF_RETURN_IF_ERROR(ask({"mkdir", "-p", "--", o_.there}, "making " + o_.there).status());
    TF_ASSIGN_OR_RETURN(const std::string text,
                        ask({"df", "-P", "-k", "--", o_.there}, "df of " + o_.there));
    std::istringstream in(text.substr(std::min(text.find('\n'), text.size())));
    std::string device;
    int64_t blocks = 0, used = 0, free_kib = 0;
    if (!(in >> device >> blocks >> used >> free_kib)) {
      return data_loss(o_.host + ": df of " + o_.there + " says nothing that can be read");
    }
    return free_kib * 1024;
  }

  std::vector<std::string> rsync(const std::vector<std::string>& more) const {
    std::vector<std::string> argv = {"rsync",
                                     "--archive",
                                     "--no-owner",
                                     "--no-group",
                                     "--chmod=D755,F644",
                                     "--from0",
                                     "--files-from=-",
                                     "--partial-dir=" + std::string(kRemotePartFolder),
                                     "-e",
                                     remote::ssh_transport()};
    argv.insert(argv.end(), more.begin(), more.end());
    argv.insert(argv.end(), {"--", o_.folder + "/", o_.host + ":" + o_.there + "/"});
    return argv;
  }

  Result<ProgramEnd> run_rsync(const std::vector<std::string>& more, bool capture) {
    ProgramRun run;
    run.from = ProgramRun::Input::kText;
    run.input = list_;
    run.capture = capture;
    TF_ASSIGN_OR_RETURN(ProgramEnd ended, run_program(rsync(more), run));
    if (ended.exit_status == 0) return ended;
    return unavailable("rsync to " + o_.host + " failed with exit status " +
                       std::to_string(ended.exit_status) + "; what came over stays, run it again");
  }

  Status check_there(int64_t free) {
    TF_ASSIGN_OR_RETURN(const ProgramEnd ended, run_rsync({"--dry-run", "--stats"}, true));
    const int64_t bytes = stat_after(ended.output, "Total transferred file size:");
    if (bytes < 0) return data_loss("rsync --stats has another form here");
    progress_.note(o_.host + ": " + size_text(bytes) + " to copy, room for " + size_text(free));
    if (bytes == 0 || free - kSpareDiskBytes >= bytes) return ok_status();
    return unavailable(o_.host + ":" + o_.there + ": " + size_text(bytes) +
                       " are to be written and " + size_text(kSpareDiskBytes) +
                       " stay free, but the disk has room for " + size_text(free));
  }

  Status copy() {
    std::vector<std::string> more = {o_.terminal ? "--info=progress2" : "--info=name1"};
    if (o_.bytes_per_second > 0) {
      more.push_back("--bwlimit=" +
                     std::to_string(std::max<int64_t>(1, o_.bytes_per_second / 1024)));
    }
    return run_rsync(more, false).status();
  }

  Result<int> verify_there() {
    const std::vector<std::string> argv = {"tfctl", "model", "verify", o_.there};
    TF_ASSIGN_OR_RETURN(const ProgramEnd ended,
                        run_program(remote::ssh_command(o_.host, argv, false)));
    if (ended.exit_status == remote::kNotFound) {
      return unavailable(o_.host + ": tfctl is not installed, so nothing was verified there");
    }
    if (ended.exit_status == remote::kSshFailed) {
      return unavailable("ssh to " + o_.host + " failed after the copy; nothing was verified");
    }
    return ended.exit_status;
  }

  const SyncOptions& o_;
  Progress& progress_;
  Record record_;
  std::string list_;  // paths, each with a NUL behind it
};

}  // namespace

Result<int> sync_model(const SyncOptions& options, Progress& progress) {
  return Sync(options, progress).run();
}

}  // namespace tensorfold::models
