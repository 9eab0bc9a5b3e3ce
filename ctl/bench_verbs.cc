// tfctl bench: options to settings, a server's address to a wire, a report to text or JSON.
#include <sys/types.h>
#include <time.h>
#include <unistd.h>

#include <charconv>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <ostream>
#include <sstream>
#include <utility>

#include "ctl/bench/http_wire.h"
#include "ctl/bench/runs.h"
#include "ctl/control_client.h"
#include "ctl/verbs.h"

namespace tensorfold::ctl {
namespace {

using bench::Report;
using bench::Settings;
using bench::Target;

constexpr std::string_view kDefaultUrl = "http://127.0.0.1:8888";

Status wrong_option(std::string_view name, const std::string& value, const std::string& wanted) {
  return Status(StatusCode::kInvalidArgument, std::string(name) + " '" + value + "': " + wanted,
                std::string(name), "usage");
}

Result<int64_t> to_integer(std::string_view name, const std::string& text, int64_t least,
                           int64_t most) {
  int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc{} || end != text.data() + text.size() || value < least || value > most) {
    return wrong_option(name, text,
                        "a number in " + std::to_string(least) + ".." + std::to_string(most));
  }
  return value;
}

Status take_integer(const Invocation& call, std::string_view name, int64_t least, int64_t most,
                    int64_t& to) {
  if (!call.has(name)) return ok_status();
  TF_ASSIGN_OR_RETURN(to, to_integer(name, call.get(name), least, most));
  return ok_status();
}

Status take_seconds(const Invocation& call, std::string_view name, double least, double& to) {
  if (!call.has(name)) return ok_status();
  const std::string text = call.get(name);
  char* end = nullptr;
  to = std::strtod(text.c_str(), &end);
  if (text.empty() || *end != '\0' || !(to >= least && to <= bench::kBenchWindowSeconds)) {
    return wrong_option(name, text, "seconds, up to 86400");
  }
  return ok_status();
}

Status take_list(const Invocation& call, std::string_view name, int64_t most,
                 std::vector<int64_t>& to) {
  if (!call.has(name)) return ok_status();
  to.clear();
  std::istringstream items(call.get(name) + ",");
  for (std::string item; std::getline(items, item, ',');) {
    TF_ASSIGN_OR_RETURN(const int64_t value, to_integer(name, item, 1, most));
    to.push_back(value);
    if (to.size() > static_cast<size_t>(bench::kBenchListItemsMax)) {
      return wrong_option(name, call.get(name),
                          "at most " + std::to_string(bench::kBenchListItemsMax) + " numbers");
    }
  }
  return ok_status();
}

// The options that any verb may have; the table says which it has. `settings` has its defaults.
Status take_settings(const Invocation& call, Settings& settings) {
  const std::string set = call.get("--set", "a");
  settings.set = bench::prompt_set(set);
  if (settings.set == nullptr) return wrong_option("--set", set, "a or b");
  if (settings.tokens == 0) settings.tokens = settings.set->max_tokens;
  TF_RETURN_IF_ERROR(
      take_integer(call, "--tokens", 1, bench::kBenchReplyTokensMax, settings.tokens));
  TF_RETURN_IF_ERROR(
      take_integer(call, "--reps", 1, bench::kBenchRepetitionsMax, settings.repetitions));
  TF_RETURN_IF_ERROR(
      take_integer(call, "--long-prompt", 1, bench::kBenchPromptTokensMax, settings.fill_tokens));
  TF_RETURN_IF_ERROR(take_list(call, "--streams", bench::kBenchStreamsMax, settings.streams));
  TF_RETURN_IF_ERROR(take_list(call, "--lengths", bench::kBenchPromptTokensMax, settings.lengths));
  if (call.has("--length")) {
    settings.lengths.resize(1);
    TF_RETURN_IF_ERROR(
        take_integer(call, "--length", 1, bench::kBenchPromptTokensMax, settings.lengths[0]));
  }
  auto seed = system_clock().unix_us();
  TF_RETURN_IF_ERROR(take_integer(call, "--seed", 0, INT64_MAX, seed));
  settings.seed = static_cast<uint64_t>(seed);
  TF_RETURN_IF_ERROR(take_seconds(call, "--seconds", 0.001, settings.window_s));
  TF_RETURN_IF_ERROR(take_seconds(call, "--poll", 0.01, settings.poll_s));
  TF_RETURN_IF_ERROR(take_seconds(call, "--wait", 0, settings.wait_s));
  settings.ignore_eos = call.has("--ignore-eos");
  return ok_status();
}

// How long a process has been running: its start in clock ticks since boot (proc(5), field 22).
Result<int64_t> process_age_us(int64_t pid) {
  const std::string path = "/proc/" + std::to_string(pid) + "/stat";
  std::ifstream file(path);
  std::string text;
  if (!std::getline(file, text)) return invalid_argument("--pid: there is no process " + path);
  std::istringstream fields(text.substr(std::min(text.size(), text.rfind(')') + 1)));
  std::string field;
  for (int i = 3; i < 22; ++i) fields >> field;
  long long ticks = 0;
  if (!(fields >> ticks)) return data_loss(path + " has no start time");
  timespec now{};
  clock_gettime(CLOCK_BOOTTIME, &now);
  const int64_t now_us = int64_t{now.tv_sec} * 1'000'000 + now.tv_nsec / 1000;
  return now_us - int64_t{ticks} * 1'000'000 / sysconf(_SC_CLK_TCK);
}

int bench_failure(const Invocation& call, const Status& status) {
  if (status.reason() != "usage") return control_failure(call, status);
  *call.err << "tfctl: " << status.message() << "\n";
  return kExitUsage;
}

Result<std::unique_ptr<bench::Wire>> open_wire(const Invocation& call) {
  const auto url = bench::parse_url(call.get("--url", kDefaultUrl));
  if (!url.ok()) return Status(url.status().code(), url.status().message(), "--url", "usage");
  bench::HttpWireOptions options;
  double idle_s = options.idle_timeout_ms / 1000.0;
  TF_RETURN_IF_ERROR(take_seconds(call, "--idle-timeout", 0.001, idle_s));
  options.idle_timeout_ms = static_cast<int>(idle_s * 1000);
  if (call.has("--key-file")) {
    TF_ASSIGN_OR_RETURN(options.key, bench::read_key_file(call.get("--key-file")));
  }
  return bench::open_http_wire(*url, std::move(options), system_clock());
}

int print_report(const Invocation& call, std::string_view verb, const Target& target,
                 Report report) {
  if (call.json) {
    Json document = Json::object({{"bench", Json::string(std::string(verb))},
                                  {"url", Json::string(call.get("--url", kDefaultUrl))},
                                  {"model", Json::string(target.model)},
                                  {"version", Json::string(TF_VERSION)}});
    for (auto& [name, value] : report.json.as_object()) document.set(name, std::move(value));
    Json::Array failures;
    for (const std::string& failure : report.failures) failures.push_back(Json::string(failure));
    document.set("failures", Json::array(std::move(failures)));
    *call.out << dump_json_compact(document) << "\n";
  } else {
    *call.out << report.text;
  }
  for (const std::string& failure : report.failures) *call.err << "tfctl: " << failure << "\n";
  return report.failures.empty() ? kExitOk : kExitFailed;
}

using Run = Result<Report> (*)(const Target&, const Settings&);

int run_bench(const Invocation& call, std::string_view verb, Settings settings, Run run) {
  if (const Status status = take_settings(call, settings); !status.ok()) {
    return bench_failure(call, status);
  }
  const auto wire = open_wire(call);
  if (!wire.ok()) return bench_failure(call, wire.status());
  Target target{wire->get(), call.get("--model"), call.has("--plain")};
  settings.started_us = target.wire->now_us();
  if (call.has("--pid")) {
    int64_t pid = 0;
    Status status = take_integer(call, "--pid", 1, INT32_MAX, pid);
    const auto age = status.ok() ? process_age_us(pid) : Result<int64_t>(status);
    if (!age.ok()) return bench_failure(call, age.status());
    settings.started_us -= *age;
  }
  if (target.model.empty() && verb != "ready") {
    auto model = bench::first_model(*target.wire);
    if (!model.ok()) return bench_failure(call, model.status());
    target.model = *std::move(model);
  }
  if (!call.json) {
    settings.note = [&](const std::string& text) { *call.err << text << "\n" << std::flush; };
  }
  auto report = run(target, settings);
  if (!report.ok()) return bench_failure(call, report.status());
  return print_report(call, verb, target, *std::move(report));
}

}  // namespace

int run_bench_ready(const Invocation& call) {
  return run_bench(call, "ready", {}, [](const Target& target, const Settings& settings) {
    return bench::run_ready(target, settings);
  });
}

int run_bench_decode(const Invocation& call) {
  Settings settings;
  settings.repetitions = 3;
  return run_bench(call, "decode", std::move(settings), bench::run_decode);
}

int run_bench_concurrent(const Invocation& call) {
  Settings settings;
  settings.repetitions = 9;
  settings.tokens = 256;
  settings.streams = {2, 4};
  return run_bench(call, "concurrent", std::move(settings), bench::run_concurrent);
}

int run_bench_sustained(const Invocation& call) {
  Settings settings;
  settings.tokens = 256;
  settings.streams = {4};
  return run_bench(call, "sustained", std::move(settings), bench::run_sustained);
}

int run_bench_prefill(const Invocation& call) {
  Settings settings;
  settings.lengths = {8192, 32768, 131072};
  return run_bench(call, "prefill", std::move(settings), bench::run_prefill);
}

int run_bench_depth(const Invocation& call) {
  Settings settings;
  settings.repetitions = 3;
  settings.tokens = 256;
  settings.lengths = {131072};
  return run_bench(call, "depth", std::move(settings), bench::run_depth);
}

int run_bench_needle(const Invocation& call) {
  Settings settings;
  settings.lengths = {8192, 32768, 131072};
  return run_bench(call, "needle", std::move(settings), bench::run_needle);
}

int run_bench_first_long(const Invocation& call) {
  Settings settings;
  settings.lengths = {32768};
  return run_bench(call, "first-long", std::move(settings), bench::run_first_long);
}

}  // namespace tensorfold::ctl
