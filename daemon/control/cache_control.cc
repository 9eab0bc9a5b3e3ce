// The prefix cache over the control socket: what it holds, and emptying it.
#include "daemon/api/errors.h"
#include "daemon/api/json_out.h"
#include "daemon/control/control.h"
#include "daemon/control/protocol.h"

namespace tensorfold::control {
namespace {

void write_spill(const SpillFigures& f, api::JsonOut& json) {
  static constexpr const char* kStates[] = {"off", "reading_index", "on", "paused"};
  json.key("spill").open_object();
  json.key("state").string(kStates[static_cast<size_t>(f.state)]);
  json.key("files").number(f.files).key("records").number(f.records);
  json.key("bytes").number(f.bytes).key("bytes_max").number(f.bytes_max);
  json.key("written_bytes").number(f.written_bytes_total);
  json.key("read_bytes").number(f.read_bytes_total).key("read_us").number(f.read_us_total);
  json.key("restored").number(f.restored_total);
  json.key("restored_tokens").number(f.restored_tokens_total);
  json.key("proved").number(f.proved_total).key("untrue").number(f.untrue_total);
  json.key("damaged").number(f.damaged_total).key("errors").number(f.errors_total);
  json.key("missed").number(f.missed_total).key("not_taken").number(f.not_taken_total);
  json.key("times_off").number(f.times_off_total).close_object();
}

}  // namespace

void Control::run_cache(const std::shared_ptr<http::Exchange>& exchange) {
  const EngineStats s = engine_.stats();
  http::Response response;
  api::JsonOut json(response.body);
  json.open_object().key("schema_version").number(kSchemaVersion);
  json.key("pool").open_object().key("tokens").number(s.pool_tokens_total);
  json.key("in_use_tokens").number(s.pool_tokens_used);
  json.key("cached_tokens").number(s.pool_tokens_cached).close_object();
  json.key("snapshots").open_object().key("count").number(s.cache_snapshots);
  json.key("bytes").number(s.cache_snapshot_bytes);
  json.key("bytes_max").number(s.cache_snapshot_bytes_max).close_object();
  json.key("blocks").number(s.cache_blocks);
  json.key("totals").open_object().key("lookups").number(s.cache_lookups_total);
  json.key("hits").number(s.cache_hits_total);
  json.key("prompt_tokens").number(s.prompt_tokens_total);
  json.key("saved_tokens").number(s.cached_tokens_total);
  json.key("kept").number(s.cache_kept_total).key("evicted").number(s.cache_evicted_total);
  json.key("flushes").number(s.cache_flushes_total).close_object();
  write_spill(s.spill, json);
  json.close_object();
  exchange->respond(std::move(response));
}

// Answers before it is done: the engine flushes at its next step, and "flushes" of GET /cache
// moves.
void Control::run_cache_flush(const std::shared_ptr<http::Exchange>& exchange) {
  const std::string& query = exchange->request().query;
  if (!query.empty() && query != "spill=1") {
    exchange->respond(api::error_response(
        400, invalid_argument("the only parameter is spill=1, not '" + query.substr(0, 64) + "'",
                              "spill")));
    return;
  }
  const EngineStats before = engine_.stats();
  const bool running =
      before.state == EngineStats::State::kReady || before.state == EngineStats::State::kDraining;
  if (!running) {
    exchange->respond(api::error_response(
        409, unavailable("there is no cache yet: " + before.state_detail, "not_ready")));
    return;
  }
  log_change(*exchange, query.empty() ? "cache flush" : "cache flush with spill");
  engine_.flush_cache(!query.empty());
  http::Response response;
  api::JsonOut json(response.body);
  json.open_object().key("schema_version").number(kSchemaVersion).key("done").string("flush");
  json.key("flushes_before").number(before.cache_flushes_total);
  json.key("snapshots").number(before.cache_snapshots);
  json.key("snapshot_bytes").number(before.cache_snapshot_bytes);
  json.key("cached_tokens").number(before.pool_tokens_cached).close_object();
  exchange->respond(std::move(response));
}

}  // namespace tensorfold::control
