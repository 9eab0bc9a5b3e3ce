// Engine::create: loads the parts of a real engine (config, tokenizer, weights, model) in the
// engine thread and hands them to EngineCore. Decides sizes; deliberately holds no state.
#include "engine/engine.h"

#include <algorithm>
#include <utility>

#include "engine/cache/cache_layout.h"
#include "engine/cluster/collective.h"
#include "engine/drafting_start.h"
#include "engine/engine_core.h"
#include "engine/model/model.h"
#include "engine/spill_start.h"
#include "engine/weights/weight_source.h"
#include "kernels/device.h"

namespace tensorfold {
namespace {

constexpr int64_t kMib = 1 << 20;

struct OwnedModel {
  std::unique_ptr<Collective> collective;  // this and the tier outlive the model
  std::unique_ptr<SpillTier> tier;
  std::unique_ptr<Model> model;
};

struct Sizes {
  int64_t context = 0;
  int64_t pool_blocks = 0;
};

Result<Sizes> sizes_of(const EngineOptions& options, const ModelConfig& config) {
  Sizes sizes;
  sizes.context = options.context > 0 ? options.context : config.max_positions;
  if (sizes.context > config.max_positions)
    return invalid_argument("engine.context is " + std::to_string(sizes.context) +
                                ", but the model's maximum is " +
                                std::to_string(config.max_positions),
                            "engine.context");
  sizes.pool_blocks = options.pool_tokens > 0 ? blocks_for(options.pool_tokens)
                                              : options.slots * blocks_for(sizes.context);
  if (sizes.pool_blocks > INT32_MAX)
    return invalid_argument("cache.pool_tokens: the pool has too many blocks", "cache.pool_tokens");
  return sizes;
}

struct SourceFacts {
  int64_t parameters = 0;  // values of all weights and Engram tables
  std::string fingerprint;
};

// From the headers.
Result<SourceFacts> source_facts(const EngineOptions& options) {
  WeightSourceOptions source_options;
  source_options.model_path = options.model_path;
  source_options.engram_path = options.engram_path;
  source_options.prepared_path = options.prepared_path;
  source_options.engram_cache_rows = 1;
  TF_ASSIGN_OR_RETURN(const auto source, WeightSource::open(source_options));
  int64_t count = 0;
  for (const WeightInfo& w : source->weights()) count += w.out * w.in;
  const EngramConfig& engram = source->config().engram;
  for (const int64_t rows : engram.table_rows) count += rows * engram.row_width;
  return SourceFacts{count, source->fingerprint()};
}

PlannerOptions planner_options(const EngineOptions& options, const ModelConfig& config,
                               const Sizes& sizes) {
  PlannerOptions planner;
  planner.slots = options.slots;
  planner.prefill_rows = options.prefill_rows;
  planner.pool_blocks = sizes.pool_blocks;
  planner.decoder_span = options.exact_prefill ? config.cone_rows() : config.window;
  if (config.dspark.stages > 0)
    planner.draft_rows = std::min({options.draft_depth, config.dspark.block_size, kDraftRowsMax});
  return planner;
}

Result<CacheLayout> cache_layout(const EngineOptions& options, const ModelConfig& config,
                                 const Sizes& sizes) {
  return make_cache_layout(config, options.slots, sizes.context, sizes.pool_blocks,
                           options.snapshot_mib * kMib);
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

Result<EngineParts> load_parts(const EngineOptions& options,
                               const std::function<void(std::string)>& progress, const Clock& clock,
                               LogSink& log) {
  if (options.model_path.empty())
    return invalid_argument("model.path is not set: a folder with config.json and tokenizer.json",
                            "model.path");
  // Opened again by the model; here for its name, which is part of what is kept on disk.
  TF_ASSIGN_OR_RETURN(const std::shared_ptr<Device> device, open_device(options.device));
  log.write(LogLevel::kInfo, std::string("the model runs on ") + device->name(), {});
  progress("loading: configuration and tokenizer");
  TF_ASSIGN_OR_RETURN(const ModelConfig config,
                      load_model_config(options.model_path + "/config.json"));
  TF_ASSIGN_OR_RETURN(const Sizes sizes, sizes_of(options, config));
  EngineParts parts;
  TF_ASSIGN_OR_RETURN(parts.text, load_text_codec(options.model_path, config.eos_token_id,
                                                  options.allow_control_tokens));
  if (parts.text->vocab_size() > config.vocab_size)
    return data_loss(options.model_path + "/tokenizer.json has " +
                     std::to_string(parts.text->vocab_size()) + " tokens, config.json only " +
                     std::to_string(config.vocab_size));
  TF_ASSIGN_OR_RETURN(auto vocab, parts.text->vocab_image(config.vocab_size));
  parts.constraints = std::make_shared<ConstraintService>(std::move(vocab));
  progress("loading: weights");
  TF_ASSIGN_OR_RETURN(const SourceFacts facts, source_facts(options));
  parts.info.parameters = facts.parameters;
  auto owned = std::make_shared<OwnedModel>();
  owned->collective = make_single_collective();
  parts.loop.planner = planner_options(options, config, sizes);
  TF_ASSIGN_OR_RETURN(const CacheLayout layout, cache_layout(options, config, sizes));
  parts.loop.prefix = prefix_options(options, config, layout);
  progress("loading: index of the disk cache");
  owned->tier = start_spill({options, layout, facts.fingerprint, device->name()}, clock, log);
  parts.loop.tier = owned->tier.get();
  progress("loading: weights");
  ModelOptions model;
  model.model_path = options.model_path;
  model.engram_path = options.engram_path;
  model.prepared_path = options.prepared_path;
  model.slots = options.slots;
  model.context = sizes.context;
  model.pool_blocks = sizes.pool_blocks;
  model.snapshot_bytes = options.snapshot_mib * kMib;
  model.tier = owned->tier.get();
  model.rows_max = options.prefill_rows + options.slots * (1 + parts.loop.planner.draft_rows);
  model.threads = options.threads;
  model.device = options.device;
  TF_ASSIGN_OR_RETURN(owned->model, Model::load(model, *owned->collective));
  parts.runner = std::make_unique<StepExecutor>(*owned->model);
  progress("loading: row costs");
  const MeasureLimits limits = {options.slots, parts.loop.planner.draft_rows, sizes.pool_blocks,
                                sizes.context, options.prefill_rows};
  const DraftingStart drafting = {options, limits, owned->model->fingerprint(), device->name(),
                                  config.vocab_size};
  TF_ASSIGN_OR_RETURN(parts.depth_policy,
                      make_depth_policy(drafting, *parts.runner, *parts.text, clock, log));
  parts.loop.vocab = config.vocab_size;
  parts.loop.queue_deadline_us = options.queue_deadline_us;
  parts.capacity = {sizes.context, sizes.pool_blocks};
  parts.info.fingerprint = owned->model->fingerprint();
  parts.info.architecture = config.architecture;
  parts.info.max_context = sizes.context;
  parts.info.vocab_size = config.vocab_size;
  parts.weight_bytes = owned->model->weight_bytes();
  parts.cache_bytes = owned->model->cache_bytes();
  parts.keep = std::move(owned);
  return parts;
}

}  // namespace

Result<std::unique_ptr<Engine>> Engine::create(EngineOptions options, const Clock& clock,
                                               LogSink& log) {
  return start_engine(std::move(options), clock, log,
                      [&clock, &log](const EngineOptions& o, const auto& progress) {
                        return load_parts(o, progress, clock, log);
                      });
}

}  // namespace tensorfold
