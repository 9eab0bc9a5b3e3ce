// MaskDesk: token masks for the engine's loop, so that no form holds up the streams beside it.
//
// A mask is made on the engine's thread within a budget of work (counted, not timed). One that
// needs more goes to a thread of the desk's own, and its sequence sits out steps until it is there:
// its rows come later, their bits are the same. Meanwhile nothing else is asked of that source, nor
// of those that take turns with it: the reply's tokens are kept and read once it is free.
//
// Where a form leaves one way to go on, the tokens on it are drafts that need no drafter: they are
// put behind what the drafter proposed as far as both agree, verified like any draft, and change
// nothing but the pace.
//
// Owned by the engine thread. Jobs touch a MaskSource and two queues, nothing else.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <thread>
#include <vector>

#include "engine/base/bounded_queue.h"
#include "engine/engine.h"
#include "engine/grammar/mask_source.h"
#include "engine/sched/step_plan.h"

namespace tensorfold {

inline constexpr int64_t kMaskWorkMax = 40'000;       // units of one mask on the engine's thread
inline constexpr int64_t kMaskStepWorkMax = 200'000;  // units of all masks of one step
inline constexpr int64_t kMaskWaitUs = 1'000;         // while no sequence at all can take a step

struct MaskOptions {
  int64_t work = kMaskWorkMax, step_work = kMaskStepWorkMax;
  bool forced_drafts = true;
  // Where jobs run; empty: a thread of the desk's own.
  std::function<void(std::function<void()>)> elsewhere;
};

// Where a reply stands in its form, and the mask rows of the next step.
struct MaskCursor {
  struct Token {
    TokenId id = 0;
    bool put_in = false;  // it needs no permission: where the form knows it not, it is passed over
  };
  std::shared_ptr<const MaskSource> source;  // null: any text
  MaskState state = 0;                       // behind all tokens but the unread ones
  std::vector<Token> unread;
  std::vector<uint32_t> bits;  // [rows, words]
  std::vector<TokenId> path;   // [rows - 1] drafts that the rows stand behind
  int32_t rows = 0;
  int32_t drafter_rows = 0;  // drafts at the beginning of path that are the drafter's
  // Forced drafts in one step: text that is decided may still be written in other tokens, so their
  // number follows how many were right.
  int32_t forced_most = kDraftRowsMax;
};

// What may be verified behind a cursor.
struct DraftPath {
  std::span<const TokenId> drafts;  // the drafter's, as many as were chosen
  int32_t most = 0;                 // drafts of any kind; 0: none are wanted
};

class MaskDesk {
 public:
  MaskDesk(MaskOptions options, int32_t vocab);
  ~MaskDesk();
  MaskDesk(const MaskDesk&) = delete;
  MaskDesk& operator=(const MaskDesk&) = delete;

  // A new budget; takes back the sources whose masks are made.
  void begin_step();
  // Reads the unread tokens; false: the source is at work elsewhere.
  bool catch_up(MaskCursor& cursor);
  // Makes rows, as many as can be made now: 0, the sequence sits out this step. `ends`: the token
  // ends a reply, so nothing is to be drafted behind it.
  void make_rows(MaskCursor& cursor, const DraftPath& path,
                 const std::function<bool(TokenId)>& ends);
  // Until a mask is made, or `most_us` have passed.
  void wait(int64_t most_us);

  uint64_t put_off() const { return put_off_; }     // masks made elsewhere
  int64_t most_work() const { return most_work_; }  // units of the dearest step so far

 private:
  bool busy(const MaskSource& source) const;
  bool fill(const MaskCursor& cursor, MaskState state, std::span<uint32_t> bits);
  void make_elsewhere(const MaskCursor& cursor, MaskState state);
  void take_back(const void* turns);

  const MaskOptions options_;
  const size_t words_;
  int64_t work_left_ = 0, most_work_ = 0;
  uint64_t put_off_ = 0;
  std::vector<const void*> busy_;  // MaskSource::turns() of the jobs
  BoundedQueue<std::function<void()>> jobs_;
  BoundedQueue<const void*> made_;
  std::thread thread_;  // once there was a job
};

}  // namespace tensorfold
