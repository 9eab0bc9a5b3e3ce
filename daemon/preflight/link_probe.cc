#include "daemon/preflight/link_probe.h"

#include <sys/random.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <thread>

#include "daemon/preflight/probe_socket.h"
#include "daemon/preflight/text.h"
#include "engine/base/clock.h"
#include "engine/base/program.h"

namespace tensorfold::preflight {
namespace {

constexpr size_t kPortDigits = 5;
constexpr size_t kAnswerWords = 4;
constexpr std::string_view kArrived = "k";
constexpr int64_t kPortMax = 65'535;
constexpr int64_t kFarOutputBytesMax = 4'096;

Result<std::string> new_token() {
  std::array<unsigned char, kProbeTokenBytes / 2> bytes{};
  if (::getrandom(bytes.data(), bytes.size(), 0) != static_cast<ssize_t>(bytes.size())) {
    return io_error("getrandom", errno);
  }
  std::string out;
  for (const unsigned char byte : bytes) {
    out += "0123456789abcdef"[byte >> 4];
    out += "0123456789abcdef"[byte & 15];
  }
  return out;
}

std::string port_text(int64_t port) {
  std::string out = std::to_string(port);
  out.insert(0, kPortDigits - out.size(), '0');
  return out;
}

double rate_since(int64_t start_us) {
  const int64_t spent_us = std::max<int64_t>(1, system_clock().monotonic_us() - start_us);
  return static_cast<double>(kProbeBytes) * 1e6 / static_cast<double>(spent_us);
}

int64_t transfer_end() { return probe_now_ms() + kProbeTransferMs; }

// One way: the bytes, then a word that all have arrived.
Status send_all(const ProbeSocket& socket) {
  const int64_t until_ms = transfer_end();
  TF_RETURN_IF_ERROR(socket.send_filler(kProbeBytes, until_ms));
  return socket.receive_text(kArrived.size(), until_ms).status();
}

Status receive_all(const ProbeSocket& socket) {
  const int64_t until_ms = transfer_end();
  TF_RETURN_IF_ERROR(socket.receive_filler(kProbeBytes, until_ms));
  return socket.send_text(kArrived, until_ms);
}

// A connection that begins with the token; others are dropped.
Result<ProbeSocket> accept_friend(const ProbeSocket& listener, const std::string& token,
                                  int64_t until_ms, const std::function<bool()>& given_up) {
  for (;;) {
    TF_ASSIGN_OR_RETURN(ProbeSocket socket, listener.accept_one(until_ms, given_up));
    const auto said = socket.receive_text(token.size(), probe_now_ms() + kProbeConnectMs);
    if (said.ok() && *said == token) return socket;
  }
}

// The far side, as a program with a thread that waits for its end.
class FarSide {
 public:
  explicit FarSide(std::vector<std::string> argv)
      : thread_([this, words = std::move(argv)] {
          ProgramRun run;
          run.from = ProgramRun::Input::kNothing;
          run.capture = true;
          run.drop_errors = true;
          run.output_bytes_max = kFarOutputBytesMax;
          run.deadline_ms = kProbeAnswerMs + 2 * (kProbeConnectMs + kProbeTransferMs);
          const auto ended = run_program(words, run);
          said_ = ended.ok() ? trim(ended->output) : ended.status().message();
          if (ended.ok() && said_.empty() && ended->exit_status != 0) {
            said_ = words[0] + " ends with exit status " + std::to_string(ended->exit_status);
          }
          over_.store(true, std::memory_order_release);
        }) {}
  ~FarSide() { thread_.join(); }
  FarSide(const FarSide&) = delete;
  FarSide& operator=(const FarSide&) = delete;

  bool over() const { return over_.load(std::memory_order_acquire); }
  // Waits for its end.
  std::string last_words() {
    while (!over()) std::this_thread::sleep_for(std::chrono::milliseconds(10));
    return said_;
  }

 private:
  std::string said_;  // the thread's until over_
  std::atomic<bool> over_{false};
  std::thread thread_;
};

Status measure(const ProbeSocket& listener, const ProbeRequest& request, const FarSide& far,
               LinkProbe& out) {
  TF_ASSIGN_OR_RETURN(const ProbeSocket in,
                      accept_friend(listener, request.token, probe_now_ms() + kProbeAnswerMs,
                                    [&far] { return far.over(); }));
  out.reached_here = true;
  TF_ASSIGN_OR_RETURN(const std::string port,
                      in.receive_text(kPortDigits, probe_now_ms() + kProbeConnectMs));
  const int64_t began_in_us = system_clock().monotonic_us();
  TF_RETURN_IF_ERROR(receive_all(in).with_context(request.there + " to " + request.here));
  out.in_bytes_per_second = rate_since(began_in_us);
  TF_ASSIGN_OR_RETURN(const ProbeSocket there,
                      ProbeSocket::connect_to(request.here, request.there, to_int(port).value_or(0),
                                              probe_now_ms() + kProbeConnectMs));
  TF_RETURN_IF_ERROR(there.send_text(request.token, probe_now_ms() + kProbeConnectMs));
  out.reached_there = true;
  const int64_t began_out_us = system_clock().monotonic_us();
  TF_RETURN_IF_ERROR(send_all(there).with_context(request.here + " to " + request.there));
  out.out_bytes_per_second = rate_since(began_out_us);
  return ok_status();
}

}  // namespace

std::vector<std::string> answer_words(const ProbeRequest& request) {
  return {request.here, std::to_string(request.port), request.there, request.token};
}

Result<ProbeRequest> parse_answer_words(const std::vector<std::string>& words) {
  if (words.size() != kAnswerWords) return invalid_argument("HERE PORT THERE TOKEN are wanted");
  const int64_t port = to_int(words[1]).value_or(0);
  if (port < 1 || port > kPortMax) return invalid_argument("'" + words[1] + "' is no port");
  if (words[3].size() != kProbeTokenBytes) return invalid_argument("the token has another length");
  for (const std::string& address : {words[0], words[2]}) {
    if (!ipv4(address)) return invalid_argument("'" + address + "' is no IPv4 address");
  }
  return ProbeRequest{words[0], words[2], port, words[3]};
}

LinkProbe probe_link(const std::string& here, const std::string& there,
                     const std::vector<std::string>& far_tfctl) {
  LinkProbe out;
  const auto listener = ProbeSocket::listen_at(here);
  const auto token = new_token();
  if (!listener.ok() || !token.ok()) {
    out.problem = (listener.ok() ? token.status() : listener.status()).message();
    return out;
  }
  const ProbeRequest request{here, there, listener->port(), *token};
  std::vector<std::string> argv = far_tfctl;
  argv.insert(argv.end(), {"link", "answer"});
  for (const std::string& word : answer_words(request)) argv.push_back(word);
  FarSide far(std::move(argv));
  const Status status = measure(*listener, request, far, out);
  if (status.ok()) return out;
  out.problem = status.message();
  if (out.reached_here) return out;
  const std::string said = far.last_words();
  if (!said.empty()) out.problem = "from there: " + said;
  return out;
}

Status answer_probe(const ProbeRequest& request) {
  TF_ASSIGN_OR_RETURN(const ProbeSocket listener, ProbeSocket::listen_at(request.there));
  TF_ASSIGN_OR_RETURN(const ProbeSocket back,
                      ProbeSocket::connect_to(request.there, request.here, request.port,
                                              probe_now_ms() + kProbeConnectMs));
  TF_RETURN_IF_ERROR(
      back.send_text(request.token + port_text(listener.port()), probe_now_ms() + kProbeConnectMs));
  TF_RETURN_IF_ERROR(send_all(back));
  TF_ASSIGN_OR_RETURN(
      const ProbeSocket in,
      accept_friend(listener, request.token, probe_now_ms() + 2 * kProbeConnectMs, {}));
  return receive_all(in);
}

}  // namespace tensorfold::preflight
