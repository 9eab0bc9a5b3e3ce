// Engine::create: loads the parts of a real engine (config, tokenizer, weights, model) in the
// engine thread and hands them to EngineCore, or to a WorkerEngine. Deliberately holds no state.
#include "engine/engine.h"

#include <utility>

#include "engine/canary.h"
#include "engine/cluster_start.h"
#include "engine/cluster_transport.h"
#include "engine/drafting_start.h"
#include "engine/engine_core.h"
#include "engine/rank_load.h"
#include "engine/worker_engine.h"

namespace tensorfold {
namespace {

Status check_model_path(const EngineOptions& options) {
  if (!options.model_path.empty()) return ok_status();
  return invalid_argument("model.path is not set: a folder with config.json and tokenizer.json",
                          "model.path");
}

Status load_text(const EngineOptions& options, const ModelConfig& config, EngineParts& parts) {
  TF_ASSIGN_OR_RETURN(parts.text, load_text_codec(options.model_path, config.eos_token_id,
                                                  options.allow_control_tokens));
  if (parts.text->vocab_size() > config.vocab_size)
    return data_loss(options.model_path + "/tokenizer.json has " +
                     std::to_string(parts.text->vocab_size()) + " tokens, config.json only " +
                     std::to_string(config.vocab_size));
  TF_ASSIGN_OR_RETURN(auto vocab, parts.text->vocab_image(config.vocab_size));
  parts.constraints = std::make_shared<ConstraintService>(std::move(vocab));
  parts.canary = canary_prompt(*parts.text);
  return ok_status();
}

Result<EngineParts> load_parts(const EngineOptions& options,
                               const std::function<void(std::string)>& progress, const Clock& clock,
                               LogSink& log) {
  TF_RETURN_IF_ERROR(check_model_path(options));
  progress("loading: configuration and tokenizer");
  TF_ASSIGN_OR_RETURN(const RankSizes sizes, size_rank(options, log));
  EngineParts parts;
  TF_RETURN_IF_ERROR(load_text(options, sizes.config, parts));
  TF_ASSIGN_OR_RETURN(const std::shared_ptr<LoadedRank> rank,
                      load_rank(options, sizes, progress, clock, log));
  parts.loop.planner = sizes.planner;
  parts.loop.prefix = sizes.prefix;
  parts.loop.tier = rank->tier.get();
  parts.loop.vocab = sizes.config.vocab_size;
  parts.loop.queue_deadline_us = options.queue_deadline_us;
  parts.capacity = {sizes.context, sizes.pool_blocks};
  parts.info.parameters = rank->parameters;
  parts.info.fingerprint = rank->model->fingerprint();
  parts.info.architecture = sizes.config.architecture;
  parts.info.max_context = sizes.context;
  parts.info.vocab_size = sizes.config.vocab_size;
  parts.weight_bytes = rank->model->weight_bytes();
  parts.cache_bytes = rank->model->cache_bytes();
  parts.keep = rank;
  const MeasureLimits limits = {options.slots, sizes.planner.draft_rows, sizes.pool_blocks,
                                sizes.context, options.prefill_rows};
  DraftingStart drafting = {options, limits, rank->model->fingerprint(), sizes.device->name(),
                            sizes.config.vocab_size};
  if (options.cluster.role == ClusterOptions::Role::kHead) {
    TF_RETURN_IF_ERROR(start_head({options, sizes, rank, drafting}, clock, log, parts));
    return parts;
  }
  parts.runner = std::move(rank->executor);
  progress("loading: row costs");
  TF_ASSIGN_OR_RETURN(parts.depth_policy,
                      make_depth_policy(drafting, *parts.runner, *parts.text, clock, log));
  return parts;
}

}  // namespace

Result<std::unique_ptr<Engine>> Engine::create(EngineOptions options, const Clock& clock,
                                               LogSink& log) {
  prepare_transport(options, log);
  if (options.cluster.role == ClusterOptions::Role::kWorker)
    return start_worker_engine(std::move(options), clock, log);
  return start_engine(std::move(options), clock, log,
                      [&clock, &log](const EngineOptions& o, const auto& progress) {
                        return load_parts(o, progress, clock, log);
                      });
}

}  // namespace tensorfold
