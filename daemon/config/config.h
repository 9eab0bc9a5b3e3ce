// The daemon's settings: one flat struct, filled from a table of keys (key_table.h), a TOML file
// and the command line. Strict: what is not a known key with the right type and a legal value is an
// error that names file, line and column.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "engine/base/status.h"

namespace tensorfold::config {

inline constexpr const char* kConfigFile = "/etc/tensorfoldd/tensorfoldd.toml";

// Member names are the keys with '.' as '_'; their defaults come from the table alone.
struct Config {
  std::string model_path, model_engram_path, model_prepared_path, model_name;
  std::string http_listen, http_keys_file;
  std::vector<std::string> http_cors;
  int64_t http_max_body_bytes = 0;
  std::string engine_device, engine_prefill, engine_drafts;
  int64_t engine_slots = 0, engine_context = 0, engine_prefill_rows = 0, engine_memory_gib = 0,
          engine_threads = 0, engine_idle_unload_s = 0;
  int64_t cache_pool_tokens = 0, cache_snapshot_mib = 0, cache_spill_gib = 0;
  std::string cache_spill_dir;
  bool cache_reuse_replies = false;
  bool text_thinking = false, text_loop_guard = false, text_schema_in_prompt = false,
       text_allow_control_tokens = false;
  std::string text_effort_table;
  double sampling_temperature = 0, sampling_top_p = 0, sampling_min_p = 0;
  int64_t sampling_top_k = 0;
  int64_t limits_queue_requests = 0, limits_queue_wait_s = 0, limits_connections = 0,
          limits_stream_backlog_bytes = 0, limits_header_s = 0, limits_body_s = 0,
          limits_idle_s = 0, limits_keepalive_s = 0, limits_stall_s = 0,
          limits_memory_floor_mib = 0, limits_drain_s = 0;
  std::string log_level;
  std::string control_path;
  std::string cluster_role, cluster_head, cluster_link_address, cluster_key_file, cluster_transport,
      cluster_exchange;
  int64_t cluster_rank = 0, cluster_world_size = 0, cluster_link_port = 0,
          cluster_timer_divisor = 0;
};

struct Loaded {
  Config config;
  std::vector<std::string> warnings;  // keys that are set and have no effect in this version
};

// Every key at its default.
Config default_config();

// Parses TOML text; `file` is only used in messages ("file:line:column: message").
Result<Loaded> parse_config(const std::string& text, const std::string& file);
Result<Loaded> load_config(const std::string& file);

// What holds between keys: an address off loopback needs keys, a head needs a cluster, ...
Status check_config(const Config& config);
Status check_cluster(const Config& config);  // its part for [cluster]

bool is_loopback(const std::string& listen);

// The file that every key, commented, with its default makes: etc/tensorfoldd.toml.
std::string render_default_file();

}  // namespace tensorfold::config
