#include "engine/base/program.h"

#include <fcntl.h>
#include <poll.h>
#include <spawn.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <csignal>
#include <ctime>
#include <utility>

#include "engine/base/clock.h"

extern char** environ;  // NOLINT: what POSIX names it

namespace tensorfold {
namespace {

constexpr int kPollMsMax = 60'000;  // one wait of poll(); it is repeated
constexpr size_t kPieceBytes = 16 * 1024;

int64_t now_ms() { return system_clock().monotonic_us() / 1000; }

void close_end(int& fd) {
  if (fd >= 0) ::close(std::exchange(fd, -1));
}

// Both ends of a pipe, closed when it goes.
struct Pipe {
  int read_end = -1, write_end = -1;
  Pipe() = default;
  Pipe(const Pipe&) = delete;
  Pipe& operator=(const Pipe&) = delete;
  ~Pipe() {
    close_end(read_end);
    close_end(write_end);
  }
  Status open() {
    int ends[2];
    if (::pipe2(ends, O_CLOEXEC) != 0) return io_error("pipe", errno);
    read_end = ends[0];
    write_end = ends[1];
    return ok_status();
  }
};

// A program that ends before it read its input must not end this one: SIGPIPE is held back in this
// thread and taken off again.
class NoBrokenPipe {
 public:
  NoBrokenPipe() {
    sigemptyset(&pipe_);
    sigaddset(&pipe_, SIGPIPE);
    pthread_sigmask(SIG_BLOCK, &pipe_, &before_);
  }
  ~NoBrokenPipe() {
    const timespec at_once{};
    while (sigtimedwait(&pipe_, nullptr, &at_once) >= 0 || errno == EINTR) {
    }
    pthread_sigmask(SIG_SETMASK, &before_, nullptr);
  }
  NoBrokenPipe(const NoBrokenPipe&) = delete;
  NoBrokenPipe& operator=(const NoBrokenPipe&) = delete;
  const sigset_t& before() const { return before_; }

 private:
  sigset_t pipe_{}, before_{};
};

// The program's end as something poll() waits for; -1 where the kernel has no such thing.
int end_of(pid_t pid) { return static_cast<int>(::syscall(SYS_pidfd_open, pid, 0)); }

class Running {
 public:
  Running(const ProgramRun& run, pid_t pid, Pipe& in, Pipe& out)
      : run_(run), pid_(pid), in_(in), out_(out), left_(run.input), ended_(end_of(pid)) {}
  ~Running() { close_end(ended_); }
  Running(const Running&) = delete;
  Running& operator=(const Running&) = delete;

  ProgramEnd finish() {
    const int64_t until = run_.deadline_ms > 0 ? now_ms() + run_.deadline_ms : 0;
    if (in_.write_end >= 0) ::fcntl(in_.write_end, F_SETFL, O_NONBLOCK);
    if (out_.read_end >= 0) ::fcntl(out_.read_end, F_SETFL, O_NONBLOCK);
    while (!over()) {
      const int64_t left_ms = until == 0 ? kPollMsMax : until - now_ms();
      if (left_ms <= 0) {
        end_.timed_out = true;
        ::kill(pid_, SIGKILL);
        break;
      }
      step(static_cast<int>(std::min<int64_t>(left_ms, kPollMsMax)));
    }
    int state = 0;
    while (::waitpid(pid_, &state, 0) < 0 && errno == EINTR) {
    }
    end_.exit_status = WIFEXITED(state) ? WEXITSTATUS(state) : 128 + WTERMSIG(state);
    return std::move(end_);
  }

 private:
  bool over() const {
    if (ended_ >= 0) return gone_;
    return in_.write_end < 0 && out_.read_end < 0;
  }

  void step(int wait_ms) {
    if (left_.empty()) close_end(in_.write_end);
    pollfd items[3] = {
        {in_.write_end, POLLOUT, 0}, {out_.read_end, POLLIN, 0}, {ended_, POLLIN, 0}};
    if (::poll(items, 3, wait_ms) <= 0) return;
    if (items[0].revents != 0) feed();
    // What it said last is in the pipe when it has ended.
    if (items[1].revents != 0) hear();
    if (items[2].revents == 0) return;
    while (out_.read_end >= 0 && hear()) {
    }
    gone_ = true;
  }

  void feed() {
    const ssize_t count = ::write(in_.write_end, left_.data(), left_.size());
    if (count > 0) left_.remove_prefix(static_cast<size_t>(count));
    if (count < 0 && errno != EAGAIN && errno != EINTR) close_end(in_.write_end);
  }

  // Whether there may be more at once.
  bool hear() {
    std::array<char, kPieceBytes> piece;
    const ssize_t count = ::read(out_.read_end, piece.data(), piece.size());
    if (count < 0 && errno == EINTR) return true;
    if (count < 0 && errno == EAGAIN) return false;
    if (count <= 0) {
      close_end(out_.read_end);
      return false;
    }
    const int64_t room = run_.output_bytes_max - static_cast<int64_t>(end_.output.size());
    end_.output.append(piece.data(), static_cast<size_t>(std::min<int64_t>(room, count)));
    return true;
  }

  const ProgramRun& run_;
  const pid_t pid_;
  Pipe &in_, &out_;
  std::string_view left_;  // of the input
  int ended_;              // readable when the program has ended
  bool gone_ = false;
  ProgramEnd end_;
};

Result<pid_t> start(const std::vector<std::string>& argv, const ProgramRun& run, const Pipe& in,
                    const Pipe& out, const sigset_t& signals) {
  std::vector<char*> words;
  words.reserve(argv.size() + 1);
  for (const std::string& word : argv) words.push_back(const_cast<char*>(word.c_str()));
  words.push_back(nullptr);
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  if (run.from == ProgramRun::Input::kText) {
    posix_spawn_file_actions_adddup2(&actions, in.read_end, 0);
  } else if (run.from == ProgramRun::Input::kNothing) {
    posix_spawn_file_actions_addopen(&actions, 0, "/dev/null", O_RDONLY, 0);
  }
  if (run.capture) posix_spawn_file_actions_adddup2(&actions, out.write_end, 1);
  if (run.drop_errors) posix_spawn_file_actions_addopen(&actions, 2, "/dev/null", O_WRONLY, 0);
  posix_spawnattr_t attributes;
  posix_spawnattr_init(&attributes);
  posix_spawnattr_setsigmask(&attributes, &signals);
  posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSIGMASK);
  pid_t pid = -1;
  const int code = ::posix_spawnp(&pid, words[0], &actions, &attributes, words.data(), environ);
  posix_spawnattr_destroy(&attributes);
  posix_spawn_file_actions_destroy(&actions);
  if (code == ENOENT) {
    return Status(StatusCode::kNotFound, argv[0] + ": there is no such program");
  }
  if (code != 0) return io_error(argv[0], code);
  return pid;
}

}  // namespace

Result<ProgramEnd> run_program(const std::vector<std::string>& argv, const ProgramRun& run) {
  TF_CHECK(!argv.empty());
  Pipe in, out;
  if (run.from == ProgramRun::Input::kText) TF_RETURN_IF_ERROR(in.open());
  if (run.capture) TF_RETURN_IF_ERROR(out.open());
  const NoBrokenPipe held;
  TF_ASSIGN_OR_RETURN(const pid_t pid, start(argv, run, in, out, held.before()));
  close_end(in.read_end);
  close_end(out.write_end);
  return Running(run, pid, in, out).finish();
}

}  // namespace tensorfold
