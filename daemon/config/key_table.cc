#include "daemon/config/key_table.h"

#include <charconv>

#include "engine/base/json.h"

namespace tensorfold::config {
namespace {

using C = Config;
constexpr auto kRestart = Effect::kRestart;
constexpr auto kReload = Effect::kReload;
constexpr auto kReserved = Effect::kReserved;
constexpr double kGib = 1024.0 * 1024 * 1024;

// clang-format off
constexpr Key kKeys[] = {
    // name, target, default, least, most, choices, effect, doc
    {"model.path", &C::model_path, "\"\"", 0, 0, "", kRestart,
     "Model folder (config.json, model*.safetensors, tokenizer.json); empty: the embedded model."},
    {"model.engram_path", &C::model_engram_path, "\"\"", 0, 0, "", kRestart,
     "Folder with the Engram tables; empty: in the model folder."},
    {"model.prepared_path", &C::model_prepared_path, "\"\"", 0, 0, "", kRestart,
     "Folder with the image that 'tfctl model prepare' wrote; empty: none."},
    {"model.name", &C::model_name, "\"\"", 0, 0, "", kRestart,
     "Name that clients ask for; empty: DeepSeek-V4.1-Flash-1017, or tiny for the embedded model."},

    {"http.listen", &C::http_listen, "\"127.0.0.1:8888\"", 0, 0, "", kRestart,
     "Address and port of the API; off loopback only with keys_file."},
    {"http.keys_file", &C::http_keys_file, "\"\"", 0, 0, "", kReload,
     "API keys, one 'label: key' a line, mode 0600; empty: no keys are asked for."},
    {"http.cors", &C::http_cors, "[]", 0, 32, "", kReload,
     "Web origins that may call the API from a browser, or [\"*\"]."},
    {"http.max_body_bytes", &C::http_max_body_bytes, "33554432", 1024, kGib, "", kRestart,
     "Longest request body in bytes."},

    {"engine.device", &C::engine_device, "\"auto\"", 0, 0,
     "auto|cpu|cuda|cuda:0|cuda:1|cuda:2|cuda:3", kRestart,
     "Where the model runs: auto, cpu, cuda or cuda:N, the N-th GPU of 0..3."},
    {"engine.slots", &C::engine_slots, "4", 1, 64, "", kRestart,
     "Replies that are made at the same time."},
    {"engine.context", &C::engine_context, "1048576", 256, 1048576, "", kRestart,
     "Longest prompt and reply together, in tokens; at the default: the model's own maximum."},
    {"engine.prefill", &C::engine_prefill, "\"exact\"", 0, 0, "exact|replay", kRestart,
     "exact, or replay (DeepSeek's bounded replay: faster, slightly different)."},
    {"engine.prefill_rows", &C::engine_prefill_rows, "2048", 256, 8192, "", kRestart,
     "Prompt rows computed in one step."},
    {"engine.drafts", &C::engine_drafts, "\"auto\"", 0, 0, "auto|full|off", kRestart,
     "auto: drafted tokens where they pay; full: as many as there are; off: none."},
    {"engine.memory_gib", &C::engine_memory_gib, "0", 0, 4096, "", kReserved,
     "Memory that may be used, in GiB; 0: from the machine."},
    {"engine.threads", &C::engine_threads, "0", 0, 1024, "", kRestart,
     "Threads of the CPU engine; 0: one per core."},
    {"engine.idle_unload_s", &C::engine_idle_unload_s, "0", 0, 31536000, "", kRestart,
     "Seconds without a request after which the model's memory is given back; 0: never."},

    {"cache.pool_tokens", &C::cache_pool_tokens, "0", 0, 1e9, "", kRestart,
     "Positions in the shared cache pool; 0: what fits."},
    {"cache.snapshot_mib", &C::cache_snapshot_mib, "256", 0, 1048576, "", kRestart,
     "Memory for snapshots of the prefix cache, in MiB; 0: no prefix cache."},
    {"cache.spill_gib", &C::cache_spill_gib, "64", 0, 65536, "", kRestart,
     "Disk for the prefix cache, in GiB; 0: off."},
    {"cache.spill_dir", &C::cache_spill_dir, "\"\"", 0, 0, "", kRestart,
     "Folder of the disk cache; empty: spill in the state directory."},
    {"cache.reuse_replies", &C::cache_reuse_replies, "true", 0, 0, "", kRestart,
     "Continue conversations from the rows of earlier replies."},

    {"text.thinking", &C::text_thinking, "false", 0, 0, "", kReload,
     "Whether requests that say nothing about thinking think."},
    {"text.effort_table", &C::text_effort_table, "\"deepseek\"", 0, 0, "", kReload,
     "Named efforts: deepseek, tiers, or a list such as \"low=30 medium=60 high=80 max=100\"."},
    {"text.loop_guard", &C::text_loop_guard, "false", 0, 0, "", kReload,
     "Whether thinking that goes round in circles is closed, and an answer that does is cut."},
    {"text.schema_in_prompt", &C::text_schema_in_prompt, "false", 0, 0, "", kReload,
     "Whether a JSON form that a request asks for is also written into its prompt."},
    {"text.allow_control_tokens", &C::text_allow_control_tokens, "false", 0, 0, "", kRestart,
     "Whether control tokens written out in a message act as such."},

    {"sampling.temperature", &C::sampling_temperature, "1.0", 0, 2, "", kReload,
     "Default temperature; 0 is greedy."},
    {"sampling.top_p", &C::sampling_top_p, "0.95", 0, 1, "", kReload, "Default top_p."},
    {"sampling.top_k", &C::sampling_top_k, "0", 0, 1048576, "", kReload,
     "Default top_k; 0 is off."},
    {"sampling.min_p", &C::sampling_min_p, "0.0", 0, 1, "", kReload, "Default min_p; 0 is off."},

    {"limits.queue_requests", &C::limits_queue_requests, "64", 1, 65536, "", kRestart,
     "Requests that may wait for a slot; past it: 429."},
    {"limits.queue_wait_s", &C::limits_queue_wait_s, "30", 1, 86400, "", kRestart,
     "Longest wait for a slot in seconds; past it: 503."},
    {"limits.connections", &C::limits_connections, "1024", 1, 65536, "", kRestart,
     "Open API connections; past it: 503 and close."},
    {"limits.stream_backlog_bytes", &C::limits_stream_backlog_bytes, "4194304", 4096, kGib, "",
     kRestart, "Unread bytes of a stream after which its reader is dropped."},
    {"limits.header_s", &C::limits_header_s, "10", 1, 3600, "", kRestart,
     "Seconds for the headers of a request to arrive."},
    {"limits.body_s", &C::limits_body_s, "120", 1, 86400, "", kRestart,
     "Seconds for the body of a request to arrive."},
    {"limits.idle_s", &C::limits_idle_s, "180", 1, 86400, "", kRestart,
     "Seconds that an unused connection is kept open."},
    {"limits.keepalive_s", &C::limits_keepalive_s, "15", 0, 3600, "", kReload,
     "Seconds between comments on a stream that waits, while the engine works; 0: none."},
    {"limits.stall_s", &C::limits_stall_s, "300", 0, 86400, "", kReload,
     "Seconds without a step of the engine after which its replies end with an error; 0: never."},
    {"limits.memory_floor_mib", &C::limits_memory_floor_mib, "0", -1, kGib, "", kReload,
     "Free memory below which nothing new begins; 0: by the machine's memory, -1: none."},
    {"limits.drain_s", &C::limits_drain_s, "30", 0, 86400, "", kReload,
     "Seconds that replies in progress get to finish when the service stops."},

    {"log.level", &C::log_level, "\"info\"", 0, 0, "error|warning|notice|info|debug", kReload,
     "Least important messages that are logged."},

    {"control.path", &C::control_path, "\"\"", 0, 0, "", kRestart,
     "Control socket; empty: control.sock in the runtime directory (/run/tensorfoldd)."},

    {"cluster.role", &C::cluster_role, "\"single\"", 0, 0, "single|head|worker", kRestart,
     "single, head or worker: of a model that several machines share, one is the head."},
    {"cluster.rank", &C::cluster_rank, "0", 0, 15, "", kRestart,
     "This machine's rank: 0 is the head, workers count from 1."},
    {"cluster.world_size", &C::cluster_world_size, "1", 1, 16, "", kRestart,
     "Number of ranks; the same on all of them."},
    {"cluster.head", &C::cluster_head, "\"\"", 0, 0, "", kRestart,
     "Workers: the head's address on the link, numeric."},
    {"cluster.link_address", &C::cluster_link_address, "\"\"", 0, 0, "", kRestart,
     "This machine's address on the link, numeric; nothing else is listened on."},
    {"cluster.link_port", &C::cluster_link_port, "29620", 1, 65535, "", kRestart,
     "Port of the link, the same on all ranks."},
    {"cluster.key_file", &C::cluster_key_file, "\"\"", 0, 0, "", kRestart,
     "File with the key that all ranks share, mode 0600."},
    {"cluster.transport", &C::cluster_transport, "\"auto\"", 0, 0, "auto|nccl|sockets", kRestart,
     "What ranks exchange partial results over; auto: NCCL on GPUs, sockets on CPUs."},
    {"cluster.exchange", &C::cluster_exchange, "\"fp32\"", 0, 0, "fp32|bf16", kRestart,
     "Partial results between ranks: fp32, or bf16: half the bytes, other numbers; equal on all."},
    {"cluster.timer_divisor", &C::cluster_timer_divisor, "1", 1, 100, "", kRestart,
     "Divides every wait of the link; more than 1 is for tests."},
};
// clang-format on

}  // namespace

std::span<const Key> key_table() { return kKeys; }

const Key* find_key(std::string_view name) {
  for (const Key& key : kKeys)
    if (key.name == name) return &key;
  return nullptr;
}

namespace {

void put(std::string& out, const std::string& value) { append_json_string(out, value); }
void put(std::string& out, int64_t value) { out += std::to_string(value); }
void put(std::string& out, bool value) { out += value ? "true" : "false"; }
void put(std::string& out, double value) {
  char text[40];
  out.append(text, std::to_chars(text, text + sizeof text, value).ptr);
  if (out.find_first_of(".en") == std::string::npos) out += ".0";
}
void put(std::string& out, const std::vector<std::string>& values) {
  out += '[';
  for (const std::string& value : values) {
    if (out.size() > 1) out += ", ";
    append_json_string(out, value);
  }
  out += ']';
}

}  // namespace

std::string value_text(const Config& config, const Key& key) {
  std::string out;
  std::visit([&](auto member) { put(out, config.*member); }, key.target);
  return out;
}

void copy_value(const Key& key, const Config& from, Config& to) {
  std::visit([&](auto member) { to.*member = from.*member; }, key.target);
}

}  // namespace tensorfold::config
