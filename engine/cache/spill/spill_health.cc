// On, off and on again (see spill_health.h).
#include "engine/cache/spill/spill_health.h"

#include <algorithm>

namespace tensorfold {

void SpillHealth::turn_off(const std::string& reason, int64_t now_us) {
  const bool was_well = reason_.empty();
  wait_us_ = was_well ? kSpillRetryFirstUs : std::min(2 * wait_us_, kSpillRetryMostUs);
  retry_us_ = now_us + wait_us_;
  on_ = false;
  reason_ = reason;
  if (!was_well) return;
  ++times_off_;
  log_.warning("the disk cache is off: " + reason + "; it is tried again in " +
                   std::to_string(wait_us_ / 1'000'000) + " s",
               {{"TF_EVENT", "spill_off"}});
}

void SpillHealth::turn_off_for_good(const std::string& reason) {
  on_ = false;
  for_good_ = true;
  reason_ = reason;
  ++times_off_;
  log_.warning("the disk cache is off: " + reason, {{"TF_EVENT", "spill_off"}});
}

void SpillHealth::turn_on_again() {
  on_ = true;
  for_good_ = false;
  succeeded();
}

void SpillHealth::succeeded() {
  if (!trying()) return;
  reason_.clear();
  log_.write(LogLevel::kNotice, "the disk cache is on again", {{"TF_EVENT", "spill_on"}});
}

}  // namespace tensorfold
