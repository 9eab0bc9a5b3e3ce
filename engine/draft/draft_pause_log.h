// DraftPauseLog: the journal's line when drafting is turned off for a sequence, at most one a
// minute for the whole engine. Owned by the engine thread.
#pragma once

#include <cstdint>

#include "engine/base/log_sink.h"
#include "engine/draft/sequence_drafting.h"

namespace tensorfold {

inline constexpr int64_t kDraftPauseLogUs = 60'000'000;  // between two lines

class DraftPauseLog {
 public:
  void note(uint64_t request, const SequenceDrafting& drafting, int64_t now_us, LogSink& log);

 private:
  int64_t next_us_ = 0;
  int64_t unsaid_ = 0;  // pauses since the last line that have none
};

}  // namespace tensorfold
