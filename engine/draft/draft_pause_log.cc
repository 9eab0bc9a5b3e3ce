// One line a minute. See the header.
#include "engine/draft/draft_pause_log.h"

#include <string>

namespace tensorfold {

void DraftPauseLog::note(uint64_t request, const SequenceDrafting& drafting, int64_t now_us,
                         LogSink& log) {
  if (now_us < next_us_) {
    ++unsaid_;
    return;
  }
  const Acceptance& a = drafting.acceptance;
  std::string line = "drafts of request " + std::to_string(request) +
                     " cost more than they give: " + std::to_string(a.accepted()) + " of " +
                     std::to_string(a.drafted()) + " accepted; off for the next " +
                     std::to_string(drafting.pause.rounds_left()) + " tokens, then tried again";
  if (unsaid_ > 0) line += "; " + std::to_string(unsaid_) + " more times since the last such line";
  log.info(line, {{"TF_EVENT", "drafts_paused"},
                  {"TF_REQUEST", std::to_string(request)},
                  {"TF_DRAFTED", std::to_string(a.drafted())},
                  {"TF_ACCEPTED", std::to_string(a.accepted())}});
  next_us_ = now_us + kDraftPauseLogUs;
  unsaid_ = 0;
}

}  // namespace tensorfold
