// See spill_figures.h.
#include "engine/spill_figures.h"

namespace tensorfold {

SpillFigures spill_figures(const CacheTier* tier, const SpilledStats& index) {
  SpillFigures out;
  if (tier == nullptr) return out;
  const TierFigures f = tier->figures();
  out.state = static_cast<SpillFigures::State>(f.state);
  out.files = f.files;
  out.records = f.records;
  out.bytes = f.bytes;
  out.bytes_max = f.bytes_max;
  out.written_bytes_total = f.written_bytes;
  out.read_bytes_total = f.read_bytes;
  out.read_us_total = f.read_us;
  out.restored_total = static_cast<int64_t>(index.restored);
  out.restored_tokens_total = static_cast<int64_t>(index.restored_positions);
  out.damaged_total = f.damaged;
  out.proved_total = f.proved;
  out.untrue_total = f.untrue;
  out.errors_total = f.errors;
  out.missed_total = f.missed;
  out.not_taken_total = f.not_taken;
  out.times_off_total = f.times_off;
  return out;
}

}  // namespace tensorfold
