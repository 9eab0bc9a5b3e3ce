// How an engine's disk cache is made (see spill_start.h).
#include "engine/spill_start.h"

#include <utility>

namespace tensorfold {
namespace {

constexpr int64_t kGib = int64_t{1} << 30;
constexpr int64_t kMib = int64_t{1} << 20;

std::string root_of(const SpillStart& start) {
  std::string root = start.options.spill_dir;
  if (root.empty() && !start.options.state_dir.empty()) root = start.options.state_dir + "/spill";
  // Ranks of one machine have folders of their own, and locks.
  if (!root.empty() && start.world_size > 1) root += "-rank" + std::to_string(start.rank);
  return root;
}

}  // namespace

std::string cache_formats(const CacheLayout& layout) {
  std::string text = "main fp4, index keys fp4, rings fp8, pairs fp32";
  const auto number = [&](const char* name, int64_t value) {
    text += std::string(", ") + name + " " + std::to_string(value);
  };
  number("head", layout.head_dim);
  number("index head", layout.index_dim);
  number("layers", layout.layers);
  number("decoder from", layout.decoder_start);
  number("stages", layout.stages);
  number("window", layout.window);
  number("ring rows", layout.ring_rows);
  number("ring bytes", layout.ring_bytes);
  number("pairs", layout.pair_floats);
  number("block positions", kBlockPositions);
  number("block bytes", layout.block_bytes);
  for (const CacheSource& s : layout.sources) {
    number("source", s.layer);
    number("ratio", s.ratio);
    number("main at", s.main_offset);
    number("index at", s.index_offset);
    number("pairs at", s.pair_offset);
  }
  return text;
}

std::unique_ptr<SpillTier> start_spill(const SpillStart& start, const Clock& clock, LogSink& log) {
  const EngineOptions& o = start.options;
  SpillOptions options;
  options.root = root_of(start);
  options.bytes_max = o.spill_gib * kGib;
  options.free_bytes_min = o.spill_free_mib * kMib;
  // Without snapshots in memory nothing could be resumed from.
  if (options.root.empty() || options.bytes_max == 0 || o.snapshot_mib == 0) return nullptr;
  SpillIdentity identity;
  identity.model_fingerprint = start.fingerprint;
  identity.formats = cache_formats(start.layout);
  identity.numeric_revision = numeric_revision_of(start.device);
  identity.device = start.device;
  identity.prefill = o.exact_prefill ? "exact" : "replay";
  identity.reuse_replies = o.reuse_replies;
  if (o.cluster.bf16_exchange) identity.exchange = "bf16";
  identity.world_size = start.world_size;
  identity.rank = start.rank;
  options.identity = identity.digest();
  auto tier = std::make_unique<SpillTier>(std::move(options), disk_file_system(), clock, log);
  if (!tier->wait_for_index(kSpillIndexWaitUs) &&
      tier->stats().state == SpillStats::State::kReadingIndex)
    log.info("disk cache: its index is still being read");
  return tier;
}

}  // namespace tensorfold
