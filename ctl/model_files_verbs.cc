// tfctl model fetch | verify | sync: a model's files from where they are published to this machine
// and the other one. Progress goes to standard error, the outcome to standard output.
#include <unistd.h>

#include <algorithm>
#include <ostream>
#include <thread>

#include "ctl/model/fetch.h"
#include "ctl/model/sync.h"
#include "ctl/model/verify.h"
#include "ctl/option_values.h"
#include "ctl/verbs.h"
#include "engine/base/json.h"

namespace tensorfold::ctl {
namespace {

constexpr int kFilesSchemaVersion = 1;
constexpr const char* kModelFolder = "/var/lib/tensorfoldd/model";
constexpr const char* kBaseUrl = "https://huggingface.co";
constexpr int kStallSecondsMax = 3600;

bool draws(const Invocation& call) { return !call.json && isatty(STDERR_FILENO) == 1; }

// A folder without the slash at its end.
std::string folder_of(std::string folder) {
  while (folder.size() > 1 && folder.back() == '/') folder.pop_back();
  return folder;
}

int threads_of_this_machine() {
  return static_cast<int>(std::clamp(std::thread::hardware_concurrency(), 1U,
                                     static_cast<unsigned>(models::kHashThreadsMax)));
}

// Where to read and who asks; kExitOk, or the exit code after the complaint was written.
int http_options(const Invocation& call, models::HttpOptions& http) {
  http.base_url = folder_of(call.get("--base-url", kBaseUrl));
  http.ca_file = call.get("--ca-file");
  int stall_s = static_cast<int>(http.stall_ms / 1000);
  if (!whole_option(call, "--stall", 1, kStallSecondsMax, stall_s)) return kExitUsage;
  http.stall_ms = int64_t{stall_s} * 1000;
  if (call.has("--token-file")) {
    auto token = models::read_token_file(call.get("--token-file"));
    if (!token.ok()) return fail(call, token.status());
    http.token = std::move(token).value();
  }
  if (const Status status = models::check_http_options(http); !status.ok()) {
    *call.err << "tfctl: " << status.message() << "\n";
    return kExitUsage;
  }
  if (call.has("--revision") && !call.has("--repo")) {
    *call.err << "tfctl: --revision needs --repo: the published model has its own revisions\n";
    return kExitUsage;
  }
  return kExitOk;
}

Json sources_json(const std::vector<models::RecordSource>& sources) {
  Json::Array out;
  for (const models::RecordSource& source : sources) {
    out.push_back(Json::object({{"repository", Json::string(source.repository)},
                                {"revision", Json::string(source.revision)}}));
  }
  return Json::array(std::move(out));
}

void print_fetched(const Invocation& call, const std::string& folder,
                   const models::FetchReport& report) {
  if (call.json) {
    *call.out << dump_json_compact(Json::object(
                     {{"schema_version", Json::integer(kFilesSchemaVersion)},
                      {"folder", Json::string(folder)},
                      {"sources", sources_json(report.sources)},
                      {"files", Json::integer(static_cast<int64_t>(report.files))},
                      {"bytes", Json::integer(report.bytes)},
                      {"fetched_files", Json::integer(static_cast<int64_t>(report.fetched_files))},
                      {"fetched_bytes", Json::integer(report.fetched_bytes)}}))
              << "\n";
    return;
  }
  *call.out << folder << ": " << report.files << " files, " << models::size_text(report.bytes)
            << ", every hash right; " << report.fetched_files << " fetched now ("
            << models::size_text(report.fetched_bytes) << ")\n";
  if (!report.engram) return;
  *call.out << "settings: model.path = \"" << folder << "\", model.engram_path = \"" << folder
            << "/" << models::kEngramFolder << "\"\n";
}

int print_verified(const Invocation& call, const std::string& folder,
                   const models::VerifyReport& report) {
  const bool good = report.problems.empty();
  if (call.json) {
    Json::Array problems, unknown;
    for (const models::VerifyProblem& problem : report.problems) {
      problems.push_back(Json::object(
          {{"path", Json::string(problem.path)}, {"problem", Json::string(problem.what)}}));
    }
    for (const std::string& path : report.unknown) unknown.push_back(Json::string(path));
    *call.out << dump_json_compact(
                     Json::object({{"schema_version", Json::integer(kFilesSchemaVersion)},
                                   {"folder", Json::string(folder)},
                                   {"ok", Json::boolean(good)},
                                   {"files", Json::integer(static_cast<int64_t>(report.files))},
                                   {"bytes", Json::integer(report.bytes)},
                                   {"problems", Json::array(std::move(problems))},
                                   {"unknown", Json::array(std::move(unknown))}}))
              << "\n";
    return good ? kExitOk : kExitFailed;
  }
  for (const models::VerifyProblem& problem : report.problems) {
    *call.out << folder << "/" << problem.path << ": " << problem.what << "\n";
  }
  for (const std::string& path : report.unknown) {
    *call.out << folder << "/" << path << ": nothing is known of it\n";
  }
  *call.out << folder << ": " << report.files << " files, " << models::size_text(report.bytes)
            << " read, "
            << (good ? std::string("all right")
                     : std::to_string(report.problems.size()) + " wrong or missing")
            << "\n";
  return good ? kExitOk : kExitFailed;
}

}  // namespace

int run_model_fetch(const Invocation& call) {
  models::FetchOptions options;
  options.folder = folder_of(call.get("--dir", kModelFolder));
  options.repository = call.get("--repo");
  options.revision = call.get("--revision");
  models::DownloadOptions& download = options.download;
  if (const int code = http_options(call, download.http); code != kExitOk) return code;
  if (!whole_option(call, "--parallel", 1, models::kParallelMax, download.parallel) ||
      !size_option(call, "--limit-rate", download.bytes_per_second)) {
    return kExitUsage;
  }
  models::Progress progress(*call.err, system_clock(), draws(call), "fetching");
  const auto report = models::fetch_model(options, system_clock(), progress);
  if (!report.ok()) return fail(call, report.status());
  print_fetched(call, options.folder, *report);
  return kExitOk;
}

int run_model_verify(const Invocation& call) {
  const std::string folder = folder_of(call.positional[0]);
  int threads = threads_of_this_machine();
  if (!whole_option(call, "--parallel", 1, models::kHashThreadsMax, threads)) return kExitUsage;
  models::Progress progress(*call.err, system_clock(), draws(call), "verifying");
  if (call.has("--record")) {
    if (const auto record = models::record_folder(folder, threads, progress); !record.ok()) {
      return fail(call, record.status());
    }
  }
  models::HttpOptions http;
  if (const int code = http_options(call, http); code != kExitOk) return code;
  std::optional<models::Plan> plan;
  if (call.has("--repo") || call.has("--published")) {
    auto made = models::make_plan(http, call.get("--repo"), call.get("--revision"));
    if (!made.ok()) return fail(call, made.status());
    plan = std::move(made).value();
  }
  const auto report = models::verify_model(folder, plan ? &*plan : nullptr, threads, progress);
  if (!report.ok()) return fail(call, report.status());
  return print_verified(call, folder, *report);
}

int run_model_sync(const Invocation& call) {
  models::SyncOptions options;
  options.host = call.positional[0];
  options.folder = folder_of(call.get("--dir", kModelFolder));
  options.there = folder_of(call.get("--to", options.folder));
  options.threads = threads_of_this_machine();
  options.terminal = isatty(STDOUT_FILENO) == 1;
  if (!size_option(call, "--limit-rate", options.bytes_per_second)) return kExitUsage;
  models::Progress progress(*call.err, system_clock(), draws(call), "hashing");
  const auto status = models::sync_model(options, progress);
  if (!status.ok()) return fail(call, status.status());
  return *status == 0 ? kExitOk : kExitFailed;
}

}  // namespace tensorfold::ctl
