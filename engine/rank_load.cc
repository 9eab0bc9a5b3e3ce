// See the header.
#include "engine/rank_load.h"

#include <algorithm>
#include <utility>

#include "engine/memory_plan.h"
#include "engine/spill_start.h"
#include "engine/weights/weight_source.h"

namespace tensorfold {
namespace {

constexpr int64_t kMib = 1 << 20;

struct SourceFacts {
  int64_t parameters = 0;  // values of all weights and Engram tables
  int64_t rank_bytes = 0;  // this rank's weights
  std::string fingerprint;
};

// From the headers.
Result<SourceFacts> source_facts(const EngineOptions& options) {
  WeightSourceOptions source_options;
  source_options.model_path = options.model_path;
  source_options.engram_path = options.engram_path;
  source_options.prepared_path = options.prepared_path;
  source_options.rank = options.cluster.rank;
  source_options.world_size = options.cluster.world_size;
  source_options.engram_cache_rows = 1;
  TF_ASSIGN_OR_RETURN(const auto source, WeightSource::open(source_options));
  int64_t count = 0;
  for (const WeightInfo& w : source->weights()) count += w.out * w.in;
  const EngramConfig& engram = source->config().engram;
  for (const int64_t rows : engram.table_rows) count += rows * engram.row_width;
  return SourceFacts{count, source->rank_bytes(), source->fingerprint()};
}

// Before anything is taken. A GPU with a memory of its own says by itself what does not fit; one
// that shares the machine's would take the machine down.
Status check_memory(const RankSizes& sizes, const SourceFacts& facts, LogSink& log) {
  const MemoryPlan plan = plan_memory(sizes.layout, facts.rank_bytes);
  log.info(plan_text(plan));
  const std::string_view device = sizes.device->name();
  const auto host = host_memory();
  const bool shared = device == "cpu" || device.find("GB10") != device.npos;
  return shared && host ? check_plan(plan, *host) : ok_status();
}

PlannerOptions planner_options(const EngineOptions& options, const ModelConfig& config,
                               int64_t pool_blocks) {
  PlannerOptions planner;
  planner.slots = options.slots;
  planner.prefill_rows = options.prefill_rows;
  planner.pool_blocks = pool_blocks;
  planner.decoder_span = options.exact_prefill ? config.cone_rows() : config.window;
  if (config.dspark.stages > 0)
    planner.draft_rows = std::min({options.draft_depth, config.dspark.block_size, kDraftRowsMax});
  return planner;
}

PrefixOptions prefix_options(const EngineOptions& options, const ModelConfig& config,
                             const CacheLayout& layout) {
  PrefixOptions prefix;
  prefix.window = config.window;
  prefix.decoder_span = options.exact_prefill ? config.cone_rows() : config.window;
  prefix.exact = options.exact_prefill;
  prefix.reuse_replies = options.reuse_replies;
  prefix.snapshot_units = layout.snapshot_units;
  prefix.full_units = layout.full_snapshot_units();
  prefix.unit_bytes = layout.snapshot_unit_bytes();
  return prefix;
}

}  // namespace

Result<RankSizes> size_rank(const EngineOptions& options, LogSink& log) {
  // Opened again by the model; here for its name, which is part of what is kept on disk.
  TF_ASSIGN_OR_RETURN(std::shared_ptr<Device> device, open_device(options.device));
  log.write(LogLevel::kInfo, std::string("the model runs on ") + device->name(), {});
  TF_ASSIGN_OR_RETURN(RankSizes out, size_rank_without_device(options));
  out.device = std::move(device);
  return out;
}

Result<RankSizes> size_rank_without_device(const EngineOptions& options) {
  RankSizes out;
  TF_ASSIGN_OR_RETURN(out.config, load_model_config(options.model_path + "/config.json"));
  const ModelConfig& config = out.config;
  out.context = options.context > 0 ? options.context : config.max_positions;
  if (out.context > config.max_positions)
    return invalid_argument("engine.context is " + std::to_string(out.context) +
                                ", but the model's maximum is " +
                                std::to_string(config.max_positions),
                            "engine.context");
  out.pool_blocks = options.pool_tokens > 0 ? blocks_for(options.pool_tokens)
                                            : options.slots * blocks_for(out.context);
  if (out.pool_blocks > INT32_MAX)
    return invalid_argument("cache.pool_tokens: the pool has too many blocks", "cache.pool_tokens");
  out.planner = planner_options(options, config, out.pool_blocks);
  TF_ASSIGN_OR_RETURN(out.layout, make_cache_layout(config, options.slots, out.context,
                                                    out.pool_blocks, options.snapshot_mib * kMib));
  out.prefix = prefix_options(options, config, out.layout);
  return out;
}

Result<MemoryPlan> plan_rank(const EngineOptions& options, const RankSizes& sizes) {
  TF_ASSIGN_OR_RETURN(const SourceFacts facts, source_facts(options));
  return plan_memory(sizes.layout, facts.rank_bytes);
}

Result<std::shared_ptr<LoadedRank>> load_rank(const EngineOptions& options, const RankSizes& sizes,
                                              const std::function<void(std::string)>& progress,
                                              const Clock& clock, LogSink& log) {
  progress("loading: weights");
  TF_ASSIGN_OR_RETURN(const SourceFacts facts, source_facts(options));
  TF_RETURN_IF_ERROR(check_memory(sizes, facts, log));
  auto out = std::make_shared<LoadedRank>();
  out->parameters = facts.parameters;
  const ClusterOptions& cluster = options.cluster;
  const bool single = cluster.role == ClusterOptions::Role::kSingle;
  if (single) {
    out->collective = make_single_collective();
  } else {
    auto seat = std::make_unique<SeatCollective>(cluster.rank, cluster.world_size);
    out->seat = seat.get();
    out->collective = std::move(seat);
  }
  progress("loading: index of the disk cache");
  const SpillStart spill = {
      options,     sizes.layout, facts.fingerprint, sizes.device->name(), cluster.world_size,
      cluster.rank};
  out->tier = start_spill(spill, clock, log);
  progress("loading: weights");
  ModelOptions model;
  model.model_path = options.model_path;
  model.engram_path = options.engram_path;
  model.prepared_path = options.prepared_path;
  model.slots = options.slots;
  model.context = sizes.context;
  model.pool_blocks = sizes.pool_blocks;
  model.snapshot_bytes = options.snapshot_mib * kMib;
  model.tier = out->tier.get();
  model.rows_max = options.prefill_rows + options.slots * (1 + sizes.planner.draft_rows);
  model.threads = options.threads;
  model.device = options.device;
  model.exchange = cluster.bf16_exchange ? ValueType::kBf16 : ValueType::kF32;
  model.log = &log;
  TF_ASSIGN_OR_RETURN(out->model, Model::load(model, *out->collective));
  if (out->seat != nullptr)
    out->seat->on_leave([model = out->model.get()] { model->forget_recorded(); });
  out->executor = std::make_unique<StepExecutor>(*out->model, single ? nullptr : &out->gate);
  return out;
}

}  // namespace tensorfold
