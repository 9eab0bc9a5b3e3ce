// Configurations, masks and what is remembered of them.
#include "engine/grammar/matcher.h"

#include <algorithm>
#include <bitset>
#include <list>
#include <map>
#include <mutex>
#include <unordered_map>

#include "engine/base/check.h"
#include "engine/grammar/frames.h"
#include "engine/grammar/mask_walk.h"

namespace tensorfold::grammar {
namespace {

constexpr MaskState kManyBase = MaskState{1} << 32;  // configurations of several threads
constexpr MaskState kFinished = MaskState{1} << 40;  // an end token was taken
constexpr size_t kSparseIdsMax = 512;                // masks of fewer tokens are kept as lists

struct KeptMask {
  std::vector<uint32_t> dense;
  std::vector<int32_t> sparse;
  bool any = false;
  MaskState state = 0;
  size_t bytes() const { return dense.size() * 4 + sparse.size() * 4 + 96; }
};

class MatcherImpl final : public Matcher {
 public:
  MatcherImpl(std::shared_ptr<const Program> program, std::shared_ptr<const VocabImage> vocab)
      : program_(std::move(program)),
        vocab_(std::move(vocab)),
        frames_(*program_),
        walk_(frames_, *vocab_) {
    start_ = intern(frames_.start());
  }

  MaskState start() const override { return start_; }

  MaskState next(MaskState state, int32_t token) const override {
    const std::lock_guard lock(mutex_);
    if (state < 0 || state == kFinished || token < 0) return kMaskDead;
    FrameSet now = threads(state);
    const VocabSpec& spec = vocab_->spec();
    const auto id = static_cast<size_t>(token);
    if (id < spec.bytes.size() && !spec.bytes[id].empty()) {
      for (const char c : spec.bytes[id]) {
        advance(now, static_cast<uint8_t>(c));
        if (now.empty()) return kMaskDead;
      }
      return intern(std::move(now));
    }
    if (is_end(token))
      return std::find(now.begin(), now.end(), kEndFrame) != now.end() ? kFinished : kMaskDead;
    advance(now, kSymbolBase + static_cast<uint32_t>(token));
    return now.empty() ? kMaskDead : intern(std::move(now));
  }

  bool mask(MaskState state, std::span<uint32_t> bits) const override {
    TF_CHECK_EQ(bits.size(), vocab_->words());
    const std::lock_guard lock(mutex_);
    if (state < 0 || state == kFinished) {
      std::fill(bits.begin(), bits.end(), 0U);
      return false;
    }
    auto it = kept_.find(state);
    if (it == kept_.end()) {
      const MaskState alike = canonical(state);
      if (alike != state) it = kept_.find(alike);
      if (it == kept_.end()) it = keep(alike, bits);
    } else {
      order_.splice(order_.begin(), order_, it->second);
    }
    const KeptMask& kept = *it->second;
    if (!kept.dense.empty()) {
      std::copy(kept.dense.begin(), kept.dense.end(), bits.begin());
    } else {
      std::fill(bits.begin(), bits.end(), 0U);
      for (const int32_t id : kept.sparse) set_token(bits, id);
    }
    return kept.any;
  }

  MaskState next_text(MaskState state, std::string_view text, size_t* refused_at) const override {
    const std::lock_guard lock(mutex_);
    if (refused_at) *refused_at = 0;
    if (state < 0 || state == kFinished) return kMaskDead;
    FrameSet now = threads(state);
    for (size_t i = 0; i < text.size(); ++i) {
      advance(now, static_cast<uint8_t>(text[i]));
      if (refused_at) *refused_at = i;
      if (now.empty()) return kMaskDead;
    }
    return intern(std::move(now));
  }

  bool accepts(MaskState state) const override {
    const std::lock_guard lock(mutex_);
    if (state == kFinished) return true;
    if (state < 0) return false;
    const FrameSet now = threads(state);
    return std::find(now.begin(), now.end(), kEndFrame) != now.end();
  }

  size_t memory_bytes() const override {
    const std::lock_guard lock(mutex_);
    size_t total = kept_bytes_ + frames_.bytes() + walk_.bytes();
    for (const FrameSet& set : many_) total += 2 * set.size() * sizeof(FrameId) + 96;
    return total;
  }

 private:
  bool is_end(int32_t token) const {
    const std::vector<int32_t>& ends = vocab_->spec().end_ids;
    return std::find(ends.begin(), ends.end(), token) != ends.end();
  }

  FrameSet threads(MaskState state) const {
    if (state < kManyBase) return {static_cast<FrameId>(state)};
    return many_[static_cast<size_t>(state - kManyBase)];
  }

  void advance(FrameSet& now, uint32_t symbol) const {
    FrameSet after;
    for (const FrameId id : now) frames_.step(id, symbol, after);
    frames_.merge(after);
    now.swap(after);
  }

  MaskState intern(FrameSet set) const {
    if (set.empty()) return kMaskDead;
    if (set.size() == 1) return set[0];
    std::sort(set.begin(), set.end());
    const auto [it, fresh] = many_ids_.emplace(set, static_cast<MaskState>(many_.size()));
    if (fresh) many_.push_back(std::move(set));
    return kManyBase + it->second;
  }

  // A configuration with the same mask: counters far from their bounds do not matter.
  MaskState canonical(MaskState state) const {
    FrameSet set = threads(state);
    for (FrameId& id : set) id = walk_.canonical(id);
    std::sort(set.begin(), set.end());
    set.erase(std::unique(set.begin(), set.end()), set.end());
    return intern(std::move(set));
  }

  using Kept = std::unordered_map<MaskState, std::list<KeptMask>::iterator>;

  Kept::iterator keep(MaskState state, std::span<uint32_t> bits) const {
    std::fill(bits.begin(), bits.end(), 0U);
    for (const FrameId id : threads(state)) walk_.mask(id, bits);
    KeptMask mask;
    mask.state = state;
    size_t count = 0;
    for (const uint32_t w : bits) count += static_cast<size_t>(__builtin_popcount(w));
    mask.any = count > 0;
    if (count <= kSparseIdsMax) {
      for (size_t w = 0; w < bits.size(); ++w) {
        for (uint32_t rest = bits[w]; rest != 0; rest &= rest - 1)
          mask.sparse.push_back(static_cast<int32_t>(w * 32) + __builtin_ctz(rest));
      }
    } else {
      mask.dense.assign(bits.begin(), bits.end());
    }
    kept_bytes_ += mask.bytes();
    while (kept_bytes_ > kMaskCacheBytes && !order_.empty()) {
      kept_bytes_ -= order_.back().bytes();
      kept_.erase(order_.back().state);
      order_.pop_back();
    }
    order_.push_front(std::move(mask));
    return kept_.emplace(state, order_.begin()).first;
  }

  struct SetHash {
    size_t operator()(const FrameSet& v) const {
      uint64_t h = 1469598103934665603U;
      for (const FrameId x : v) h = (h ^ x) * 1099511628211U;
      return static_cast<size_t>(h ^ (h >> 29));
    }
  };

  std::shared_ptr<const Program> program_;
  std::shared_ptr<const VocabImage> vocab_;
  mutable std::mutex mutex_;
  mutable Frames frames_;
  mutable MaskWalk walk_;
  mutable std::vector<FrameSet> many_;
  mutable std::unordered_map<FrameSet, MaskState, SetHash> many_ids_;
  mutable std::list<KeptMask> order_;  // most recently used first
  mutable Kept kept_;
  mutable size_t kept_bytes_ = 0;
  MaskState start_ = kMaskDead;
};

}  // namespace

std::shared_ptr<Matcher> Matcher::create(std::shared_ptr<const Program> program,
                                         std::shared_ptr<const VocabImage> vocab) {
  return std::make_shared<MatcherImpl>(std::move(program), std::move(vocab));
}

}  // namespace tensorfold::grammar
