// Masks within a budget, forced drafts, and the thread for what takes longer. See the header.
#include "engine/mask_desk.h"

#include <algorithm>
#include <utility>

#include "engine/base/check.h"

namespace tensorfold {
namespace {

constexpr size_t kMaskJobsMax = kSequencesMax;  // a source has one at a time
constexpr int64_t kMaskJobWaitUs = 200'000;     // the thread wakes at least this often

}  // namespace

MaskDesk::MaskDesk(MaskOptions options, int32_t vocab)
    : options_(std::move(options)),
      words_((static_cast<size_t>(vocab) + 31) / 32),
      jobs_(kMaskJobsMax),
      made_(kMaskJobsMax) {}

MaskDesk::~MaskDesk() {
  jobs_.close();
  if (thread_.joinable()) thread_.join();
}

void MaskDesk::begin_step() {
  work_left_ = options_.step_work;
  while (const auto turns = made_.try_pop()) take_back(*turns);
}

void MaskDesk::wait(int64_t most_us) {
  if (busy_.empty()) return;
  if (const auto turns = made_.pop_wait(most_us)) take_back(*turns);
}

void MaskDesk::take_back(const void* turns) {
  const auto at = std::find(busy_.begin(), busy_.end(), turns);
  TF_CHECK(at != busy_.end());
  busy_.erase(at);
}

bool MaskDesk::busy(const MaskSource& source) const {
  return !busy_.empty() && std::find(busy_.begin(), busy_.end(), source.turns()) != busy_.end();
}

bool MaskDesk::catch_up(MaskCursor& cursor) {
  if (busy(*cursor.source)) return false;
  for (const MaskCursor::Token& token : cursor.unread) {
    const MaskState after = cursor.source->next(cursor.state, token.id);
    if (after != kMaskDead || !token.put_in) cursor.state = after;
  }
  cursor.unread.clear();
  return true;
}

void MaskDesk::make_rows(MaskCursor& cursor, const DraftPath& path,
                         const std::function<bool(TokenId)>& ends) {
  cursor.rows = cursor.drafter_rows = 0;
  cursor.bits.clear();
  cursor.path.clear();
  if (!catch_up(cursor)) return;
  bool proposed = true;  // so far the path is the drafter's
  for (MaskState state = cursor.state; state != kMaskDead || cursor.rows == 0;) {
    const auto row = static_cast<size_t>(cursor.rows);
    cursor.bits.resize((row + 1) * words_);
    if (!fill(cursor, state, std::span(cursor.bits).subspan(row * words_, words_))) break;
    ++cursor.rows;
    if (cursor.rows > path.most) break;
    TokenId id = options_.forced_drafts ? cursor.source->forced(state) : -1;
    if (id >= 0 && ends(id)) break;
    const TokenId draft = row < path.drafts.size() ? path.drafts[row] : -1;
    if (id < 0 && proposed) id = draft;
    if (id < 0) break;
    proposed = proposed && id == draft;
    if (!proposed && std::ssize(cursor.path) - cursor.drafter_rows >= cursor.forced_most) break;
    cursor.path.push_back(id);
    cursor.drafter_rows += proposed ? 1 : 0;
    state = cursor.source->next(state, id);
  }
  // A draft counts when there is a mask behind it.
  cursor.path.resize(static_cast<size_t>(std::max(0, cursor.rows - 1)));
  cursor.drafter_rows = std::min(cursor.drafter_rows, std::max(0, cursor.rows - 1));
}

bool MaskDesk::fill(const MaskCursor& cursor, MaskState state, std::span<uint32_t> bits) {
  const int64_t given = std::min(options_.work, work_left_);
  int64_t left = given;
  // With nothing left only what is remembered comes of it.
  const MaskFound found = cursor.source->mask_within(state, bits, left);
  work_left_ -= given - std::max<int64_t>(left, 0);
  most_work_ = std::max(most_work_, options_.step_work - work_left_);
  if (found != MaskFound::kNotYet) return true;
  make_elsewhere(cursor, state);
  return false;
}

void MaskDesk::make_elsewhere(const MaskCursor& cursor, MaskState state) {
  ++put_off_;
  const void* const turns = cursor.source->turns();
  busy_.push_back(turns);
  std::function<void()> job = [this, state, turns, source = cursor.source, words = words_] {
    std::vector<uint32_t> bits(words);
    (void)source->mask(state, bits);  // a dead end shows when it is asked for again
    TF_CHECK(made_.try_push(static_cast<const void*>(turns)));
  };
  if (options_.elsewhere) return options_.elsewhere(std::move(job));
  if (!thread_.joinable()) {
    thread_ = std::thread([this] {
      while (!jobs_.closed()) {
        if (const auto next = jobs_.pop_wait(kMaskJobWaitUs)) (*next)();
      }
    });
  }
  TF_CHECK(jobs_.try_push(std::move(job)));
}

}  // namespace tensorfold
