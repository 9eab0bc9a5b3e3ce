#include "ctl/remote/ssh.h"

#include <fcntl.h>
#include <poll.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <cerrno>
#include <csignal>
#include <utility>

extern char** environ;  // NOLINT: what POSIX names it

namespace tensorfold::remote {
namespace {

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
  static void close_end(int& fd) {
    if (fd >= 0) ::close(std::exchange(fd, -1));
  }
};

// Writes the input and reads the output at the same time, so that neither side waits for ever.
void exchange(Pipe& in, Pipe& out, std::string_view input, std::string& output) {
  if (in.write_end >= 0) ::fcntl(in.write_end, F_SETFL, O_NONBLOCK);
  std::array<char, 16384> block;
  while (in.write_end >= 0 || out.read_end >= 0) {
    if (input.empty()) Pipe::close_end(in.write_end);
    pollfd items[2] = {{in.write_end, POLLOUT, 0}, {out.read_end, POLLIN, 0}};
    if (in.write_end < 0 && out.read_end < 0) return;
    if (::poll(items, 2, -1) < 0 && errno != EINTR) return;
    if (items[0].revents != 0) {
      const ssize_t count = ::write(in.write_end, input.data(), input.size());
      if (count > 0) input.remove_prefix(static_cast<size_t>(count));
      if (count < 0 && errno != EAGAIN && errno != EINTR) Pipe::close_end(in.write_end);
    }
    if (items[1].revents != 0) {
      const ssize_t count = ::read(out.read_end, block.data(), block.size());
      if (count == 0 || (count < 0 && errno != EINTR)) Pipe::close_end(out.read_end);
      const size_t room = kProgramOutputBytesMax - output.size();
      if (count > 0) output.append(block.data(), std::min(room, static_cast<size_t>(count)));
    }
  }
}

int wait_for(pid_t pid) {
  int state = 0;
  while (::waitpid(pid, &state, 0) < 0 && errno == EINTR) {
  }
  return WIFEXITED(state) ? WEXITSTATUS(state) : 128 + WTERMSIG(state);
}

}  // namespace

Status check_host(std::string_view host) {
  const auto good = [](char c) {
    return std::isalnum(static_cast<unsigned char>(c)) != 0 ||
           std::string_view("._-@:[]%").find(c) != std::string_view::npos;
  };
  if (!host.empty() && host.size() <= kHostBytesMax && host.front() != '-' &&
      host.find("@-") == host.npos && std::all_of(host.begin(), host.end(), good)) {
    return ok_status();
  }
  return invalid_argument("a host is [USER@]NAME, not '" + std::string(host.substr(0, 80)) + "'");
}

std::string shell_quote(std::string_view word) {
  const auto plain = [](char c) {
    return std::isalnum(static_cast<unsigned char>(c)) != 0 ||
           std::string_view("-_./:=@%+,").find(c) != std::string_view::npos;
  };
  if (!word.empty() && std::all_of(word.begin(), word.end(), plain)) return std::string(word);
  std::string out = "'";
  for (const char c : word) {
    if (c == '\'') {
      out += "'\\''";
    } else {
      out += c;
    }
  }
  return out + "'";
}

std::vector<std::string> ssh_command(const std::string& host, std::span<const std::string> argv,
                                     bool terminal) {
  std::vector<std::string> out = {"ssh", "-o", "BatchMode=yes", "-o",
                                  "ConnectTimeout=" + std::to_string(kSshConnectSeconds)};
  if (terminal) out.emplace_back("-t");
  out.emplace_back("--");
  out.push_back(host);
  std::string command;
  for (const std::string& word : argv) {
    if (!command.empty()) command += ' ';
    command += shell_quote(word);
  }
  out.push_back(std::move(command));
  return out;
}

std::string ssh_transport() {
  return "ssh -o BatchMode=yes -o ConnectTimeout=" + std::to_string(kSshConnectSeconds);
}

Result<Ended> run_program(const std::vector<std::string>& argv, const Run& run) {
  Pipe in, out;
  if (run.feed) TF_RETURN_IF_ERROR(in.open());
  if (run.capture) TF_RETURN_IF_ERROR(out.open());
  std::vector<char*> arguments;
  arguments.reserve(argv.size() + 1);
  for (const std::string& word : argv) arguments.push_back(const_cast<char*>(word.c_str()));
  arguments.push_back(nullptr);
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  if (run.feed) posix_spawn_file_actions_adddup2(&actions, in.read_end, 0);
  if (run.capture) posix_spawn_file_actions_adddup2(&actions, out.write_end, 1);
  pid_t pid = -1;
  const int code = ::posix_spawnp(&pid, arguments[0], &actions, nullptr, arguments.data(), environ);
  posix_spawn_file_actions_destroy(&actions);
  if (code != 0) return io_error(argv[0], code);
  Pipe::close_end(in.read_end);
  Pipe::close_end(out.write_end);
  // A program that ends early must not end this one with it.
  struct sigaction ignore {
  }, before{};
  ignore.sa_handler = SIG_IGN;
  ::sigaction(SIGPIPE, &ignore, &before);
  Ended ended;
  exchange(in, out, run.input, ended.output);
  ended.exit_status = wait_for(pid);
  ::sigaction(SIGPIPE, &before, nullptr);
  return ended;
}

}  // namespace tensorfold::remote
