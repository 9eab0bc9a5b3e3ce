// See the header.
#include "engine/cluster_start.h"

#include <random>
#include <utility>

#include "engine/cache/spill/spill_identity.h"
#include "engine/cluster/link_key.h"
#include "engine/cluster_transport.h"
#include "engine/group/group_runner.h"
#include "engine/spill_start.h"

namespace tensorfold {
namespace {

// Everything that the head's runner stands on, and the runner; the last goes first.
struct HeadGroup {
  std::shared_ptr<ClusterLink> link;
  std::unique_ptr<GroupTier> tier;
  std::unique_ptr<RankReport> report;
  std::unique_ptr<Forming> forming;
  std::unique_ptr<GroupRunner> group;
};

// The engine owns its runner; the group outlives it with the other parts.
class BorrowedRunner final : public StepRunner {
 public:
  explicit BorrowedRunner(StepRunner& runner) : runner_(runner) {}
  Status run(const StepPlan& plan, std::vector<SampledTokens>& results) override {
    return runner_.run(plan, results);
  }

 private:
  StepRunner& runner_;
};

// Two ranks of one machine have each a GPU of its own: "cuda:1 NVIDIA ..." is "cuda NVIDIA ...".
std::string device_kind(const std::string& name) {
  const size_t colon = name.find(':');
  const size_t space = name.find(' ');
  if (colon == std::string::npos || space == std::string::npos || space < colon) return name;
  return name.substr(0, colon) + name.substr(space);
}

// The ranks come together for the first time, and their steps are measured together. A rank that is
// lost meanwhile is waited for again.
Status begin_head(HeadGroup& head, const DraftingStart& drafting, EngineParts& parts,
                  const EngineParts::WaitsFor& waits_for, const Clock& clock, LogSink& log) {
  for (std::string waiting = "the group is forming";;) {
    if (!waits_for(waiting)) return unavailable("the server is stopping", "stopping");
    const auto regained = head.group->regain(waiting);
    if (!regained) continue;
    const Status resumed = head.group->resume({}, *regained);
    if (!resumed.ok()) continue;
    if (!waits_for("measuring row costs")) return unavailable("the server is stopping", "stopping");
    auto policy = make_depth_policy(drafting, *parts.runner, *parts.text, clock, log);
    if (policy.ok()) {
      parts.depth_policy = std::move(policy).value();
      return ok_status();
    }
    if (head.group->check().ok()) return policy.status();
    waiting = policy.status().message();
  }
}

}  // namespace

LinkFields cluster_fingerprint(const EngineOptions& options, const RankSizes& sizes,
                               const Model& model) {
  const auto number = [](int64_t value) { return std::to_string(value); };
  const auto flag = [](bool value) { return std::string(value ? "on" : "off"); };
  const std::string& version = options.cluster.version;
  const bool disk = options.spill_gib > 0 && options.snapshot_mib > 0;
  return {
      {"version", version.empty() ? TF_VERSION : version},
      {"model", model.fingerprint()},
      {"device", device_kind(sizes.device->name())},
      {"numeric revision", number(numeric_revision_of(sizes.device->name()))},
      {"cache formats", cache_formats(sizes.layout)},
      {"engine.slots", number(options.slots)},
      {"engine.context", number(sizes.context)},
      {"engine.prefill", options.exact_prefill ? "exact" : "replay"},
      {"engine.prefill_rows", number(options.prefill_rows)},
      {"engine.drafts", number(sizes.planner.draft_rows)},
      {"cache.pool_tokens", number(sizes.pool_blocks * kBlockPositions)},
      {"cache.snapshot_mib", number(options.snapshot_mib)},
      {"cache.reuse_replies", flag(options.reuse_replies)},
      {"cluster.exchange", options.cluster.bf16_exchange ? "bf16" : "fp32"},
      {"recorded steps", flag(sizes.device->records_graphs())},
      {"disk cache", flag(disk)},
  };
}

Result<GroupOptions> group_options(const EngineOptions& options, LinkFields fingerprint) {
  const ClusterOptions& c = options.cluster;
  GroupOptions out;
  out.rank = c.rank;
  out.world_size = c.world_size;
  out.link_address = c.link_address;
  out.link_port = c.link_port;
  out.head_address = c.head_address;
  out.head_port = c.link_port;
  auto key = read_link_key(c.key_file);
  if (!key.ok()) return key.status().with_context("cluster.key_file");
  out.key = std::move(key).value();
  out.fingerprint = std::move(fingerprint);
  if (c.timer_divisor > 1) out.timers = out.timers.divided(c.timer_divisor);
  return out;
}

uint64_t random_process_id() {
  std::random_device device;
  const uint64_t high = device();
  return (high << 32 | device()) | 1;
}

Result<std::shared_ptr<ClusterLink>> open_link(const EngineOptions& options, const RankSizes& sizes,
                                               std::shared_ptr<LoadedRank> rank, const Clock& clock,
                                               LogSink& log) {
  auto link = std::make_shared<ClusterLink>();
  link->device = sizes.device;
  TF_ASSIGN_OR_RETURN(TransportChoice choice, choose_transport(options, *link->device));
  link->transport = std::move(choice.transport);
  LinkFields fingerprint = cluster_fingerprint(options, sizes, *rank->model);
  fingerprint.insert(fingerprint.end(), choice.fingerprint.begin(), choice.fingerprint.end());
  TF_ASSIGN_OR_RETURN(GroupOptions group, group_options(options, std::move(fingerprint)));
  link->rank = std::move(rank);
  TF_ASSIGN_OR_RETURN(link->former,
                      GroupFormer::create(std::move(group), *link->transport, log, clock));
  return link;
}

Status start_head(const HeadStart& start, const Clock& clock, LogSink& log, EngineParts& parts) {
  const ClusterOptions& cluster = start.options.cluster;
  auto head = std::make_shared<HeadGroup>();
  TF_ASSIGN_OR_RETURN(head->link, open_link(start.options, start.sizes, start.rank, clock, log));
  LoadedRank& rank = *start.rank;
  if (rank.tier) head->tier = std::make_unique<GroupTier>(*rank.tier, cluster.world_size);
  parts.loop.tier = head->tier.get();
  parts.stop = head->link->stop;
  DraftingStart drafting = start.drafting;
  drafting.device += " x" + std::to_string(cluster.world_size);
  const int64_t sync_ms = kSyncMs / std::max(1, cluster.timer_divisor);
  parts.begin = [=, &clock, &log, options = start.options, rank = start.rank,
                 shape = RankShape{start.options.slots, start.sizes.layout.snapshot_units}](
                    EngineParts& p, StatsBoard& board, const EngineParts::WaitsFor& waits_for) {
    ClusterStats stats;
    stats.role = cluster.role;
    stats.world_size = cluster.world_size;
    head->report = std::make_unique<RankReport>(stats, 0, &board.cluster, clock);
    head->report->set_memory(p.weight_bytes, p.cache_bytes);
    GroupFormer& former = *head->link->former;
    head->forming = std::make_unique<Forming>(
        [&former](const StopFlag& stop, const auto& progress) {
          return former.form(stop, progress);
        },
        *head->link->stop, log);
    const GroupRunnerParts runner = {*rank->executor,  rank->gate,    *rank->seat, *head->forming,
                                     head->tier.get(), *head->report, clock,       log};
    head->group = std::make_unique<GroupRunner>(runner, shape, cluster.world_size,
                                                random_process_id(), sync_ms);
    p.runner = std::make_unique<BorrowedRunner>(*head->group);
    p.loop.group = head->group.get();
    DraftingStart here = {options, drafting.limits, drafting.fingerprint, drafting.device,
                          drafting.vocab};
    return begin_head(*head, here, p, waits_for, clock, log);
  };
  parts.keep = head;
  return ok_status();
}

}  // namespace tensorfold
