#include "daemon/control/cluster_status.h"

#include "engine/base/utf8.h"

namespace tensorfold::control {
namespace {

constexpr double kMilli = 1000.0;

void put_known(api::JsonOut& json, const char* name, int64_t value) {
  if (value >= 0) json.key(name).number(value);
}

void put_rank(api::JsonOut& json, const RankStats& rank) {
  json.open_object().key("rank").number(rank.rank).key("here").boolean(rank.here);
  json.key("state").string(utf8_lossy(rank.state));  // its own words
  if (!rank.address.empty()) json.key("address").string(rank.address);
  put_known(json, "resident_bytes", rank.resident_bytes);
  put_known(json, "weight_bytes", rank.weight_bytes);
  put_known(json, "cache_bytes", rank.cache_bytes);
  if (rank.temperature_mc >= 0)
    json.key("temperature_c").number(static_cast<double>(rank.temperature_mc) / kMilli);
  put_known(json, "clock_mhz", rank.clock_mhz);
  put_known(json, "heard_ms_ago", rank.heard_ms_ago);
  put_known(json, "rtt_us", rank.rtt_us);
  put_known(json, "exchanges", rank.exchanges);
  put_known(json, "exchange_us", rank.exchange_us);
  put_known(json, "exchange_bytes", rank.exchange_bytes);
  if (rank.exchanges > 0 && rank.exchange_us >= 0)
    json.key("mean_exchange_us")
        .number(static_cast<double>(rank.exchange_us) / static_cast<double>(rank.exchanges));
  json.close_object();
}

}  // namespace

void put_cluster(api::JsonOut& json, const EngineStats& stats) {
  const ClusterStats& c = stats.cluster;
  if (c.role == ClusterOptions::Role::kSingle) return;
  json.key("cluster").open_object();
  json.key("role").string(c.role == ClusterOptions::Role::kHead ? "head" : "worker");
  json.key("world_size").number(c.world_size);
  json.key("together").boolean(c.generation != 0);
  json.key("formed_total").number(c.groups_formed_total);
  json.key("lost_total").number(c.groups_lost_total);
  json.key("last_loss").string(c.last_loss);
  json.key("ranks").open_list();
  for (const RankStats& rank : c.ranks) put_rank(json, rank);
  json.close_list().close_object();
}

}  // namespace tensorfold::control
