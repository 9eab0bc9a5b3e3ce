#include "daemon/start.h"

#include <sys/stat.h>
#include <unistd.h>
#include <algorithm>

#include <cerrno>
#include <cstdlib>

#include "daemon/control/protocol.h"
#include "daemon/role.h"

namespace tensorfold {
namespace {

constexpr std::string_view kModelName = "DeepSeek-V4.1-Flash-1017";
constexpr std::string_view kEmbeddedName = "tiny";
constexpr std::string_view kInstalledModel = "/usr/share/tensorfoldd/tiny";
constexpr std::string_view kBuiltModel = TF_TREE_DIR "/packaging/tiny-model/model";
constexpr int64_t kSecondUs = 1'000'000;

bool has_config(const std::string& folder) {
  return access((folder + "/config.json").c_str(), R_OK) == 0;
}

Status check_model_folder(const std::string& folder) {
  struct stat info {};
  if (stat(folder.c_str(), &info) != 0) return io_error("model.path " + folder, errno);
  if (!S_ISDIR(info.st_mode)) return invalid_argument("model.path " + folder + " is no folder");
  if (!has_config(folder)) {
    return invalid_argument("model.path " + folder + " holds no readable config.json");
  }
  return ok_status();
}

// The service manager's folder, unless the command line names one. A program started by hand keeps
// nothing: it must not write into the service's folder.
std::string state_dir_of(const CommandLine& line) {
  if (!line.state_dir.empty()) return line.state_dir;
  const char* given = std::getenv("STATE_DIRECTORY");
  if (given == nullptr || *given != '/') return "";
  const std::string folders = given;  // systemd separates several by colons
  return folders.substr(0, folders.find(':'));
}

EngineOptions engine_options_of(const config::Config& config) {
  EngineOptions out;
  out.engram_path = config.model_engram_path;
  out.prepared_path = config.model_prepared_path;
  out.device = config.engine_device;
  out.slots = static_cast<int>(config.engine_slots);
  // The default means "the model's own window".
  const int64_t default_context = config::default_config().engine_context;
  out.context = config.engine_context == default_context ? 0 : config.engine_context;
  out.prefill_rows = static_cast<int>(config.engine_prefill_rows);
  out.exact_prefill = config.engine_prefill == "exact";
  out.draft_full = config.engine_drafts == "full";
  if (config.engine_drafts == "off") out.draft_depth = 0;
  out.pool_tokens = config.cache_pool_tokens;
  out.snapshot_mib = config.cache_snapshot_mib;
  out.reuse_replies = config.cache_reuse_replies;
  out.spill_gib = config.cache_spill_gib;
  out.spill_dir = config.cache_spill_dir;
  out.queue_requests = static_cast<int>(config.limits_queue_requests);
  out.queue_deadline_us = config.limits_queue_wait_s * kSecondUs;
  out.allow_control_tokens = config.text_allow_control_tokens;
  out.threads = static_cast<int>(config.engine_threads);
  return out;
}

http::Limits limits_of(const config::Config& config) {
  http::Limits out;
  out.body_bytes = static_cast<size_t>(config.http_max_body_bytes);
  out.bodies_bytes = std::max(out.bodies_bytes, out.body_bytes);
  out.connections = static_cast<size_t>(config.limits_connections);
  out.write_backlog_bytes = static_cast<size_t>(config.limits_stream_backlog_bytes);
  out.header_ms = config.limits_header_s * 1000;
  out.body_ms = config.limits_body_s * 1000;
  out.idle_ms = config.limits_idle_s * 1000;
  return out;
}

}  // namespace

Result<std::string> embedded_model_path() {
  for (const std::string_view folder : {kInstalledModel, kBuiltModel}) {
    if (has_config(std::string(folder))) return std::string(folder);
  }
  return invalid_argument("model.path is not set, and the embedded model is neither in " +
                          std::string(kInstalledModel) + " nor in " + std::string(kBuiltModel));
}

Result<api::ApiOptions> api_options_of(const config::Config& config,
                                       const std::string& model_name) {
  api::ApiOptions out;
  out.chat.served_name = model_name;
  out.chat.keepalive_us = config.limits_keepalive_s * kSecondUs;
  out.chat.stall_us = config.limits_stall_s * kSecondUs;
  out.chat.queue_wait_us = config.limits_queue_wait_s * kSecondUs;
  api::ChatDefaults& defaults = out.chat.defaults;
  defaults.temperature = config.sampling_temperature;
  defaults.top_p = config.sampling_top_p;
  defaults.top_k = static_cast<int>(config.sampling_top_k);
  defaults.min_p = config.sampling_min_p;
  defaults.thinking = config.text_thinking;
  defaults.loop_guard = config.text_loop_guard;
  defaults.schema_in_prompt = config.text_schema_in_prompt;
  TF_ASSIGN_OR_RETURN(defaults.efforts, api::EffortTable::parse(config.text_effort_table));
  out.cors_origins = config.http_cors;
  if (!config.http_keys_file.empty()) {
    auto keys = api::ApiKeys::load(config.http_keys_file);
    if (!keys.ok()) return keys.status().with_context("http.keys_file");
    out.keys = std::move(keys).value();
  }
  return out;
}

Result<Start> prepare_start(const CommandLine& line, const config::Config& config) {
  Start out;
  out.config = config;
  out.line = line;
  if (line.config_file.empty() && access(config::kConfigFile, F_OK) == 0) {
    out.line.config_file = config::kConfigFile;
  }
  out.model_path = config.model_path;
  if (out.model_path.empty()) {
    TF_ASSIGN_OR_RETURN(out.model_path, embedded_model_path());
    out.model_name = kEmbeddedName;
  } else {
    TF_RETURN_IF_ERROR(check_model_folder(out.model_path));
    out.model_name = kModelName;
  }
  if (!config.model_name.empty()) out.model_name = config.model_name;
  out.control_path =
      config.control_path.empty() ? control::default_socket_path() : config.control_path;
  out.engine = engine_options_of(config);
  out.engine.model_path = out.model_path;
  out.engine.state_dir = state_dir_of(line);
  out.limits = limits_of(config);
  out.engine.cluster = cluster_options_of(config);
  TF_ASSIGN_OR_RETURN(out.api, api_options_of(config, out.model_name));
  return out;
}

}  // namespace tensorfold
