// Configurations, masks and what is remembered of them.
#include "engine/grammar/matcher.h"

#include <algorithm>
#include <atomic>
#include <mutex>
#include <unordered_map>

#include "engine/base/check.h"
#include "engine/grammar/frames.h"
#include "engine/grammar/mask_walk.h"

namespace tensorfold::grammar {
namespace {

constexpr MaskState kManyBase = MaskState{1} << 32;  // configurations of several threads
constexpr MaskState kFinished = MaskState{1} << 40;  // an end token was taken
constexpr size_t kMasksKeptMax = 1U << 16;           // configurations whose pieces are remembered

constexpr size_t kForcedLookedMax = 64;  // allowed tokens among which one is sought

using Piece = MaskWalk::Piece;

class MatcherImpl final : public Matcher {
 public:
  MatcherImpl(std::shared_ptr<const Program> program, std::shared_ptr<const VocabImage> vocab)
      : program_(std::move(program)),
        vocab_(std::move(vocab)),
        frames_(*program_),
        walk_(frames_, *vocab_) {
    program_bytes_ = program_->bytes();
    start_ = intern(frames_.start());
    account();
  }

  MaskState start() const override { return start_; }

  MaskState next(MaskState state, int32_t token) const override {
    const std::lock_guard lock(mutex_);
    if (state < 0 || state == kFinished || token < 0) return kMaskDead;
    const VocabSpec& spec = vocab_->spec();
    const auto id = static_cast<size_t>(token);
    if (id < spec.bytes.size() && !spec.bytes[id].empty()) {
      if (stays(state, token)) return state;
      begin(state);
      for (const char c : spec.bytes[id]) {
        advance(static_cast<uint8_t>(c));
        if (now_.empty()) return kMaskDead;
      }
      return intern(now_);
    }
    begin(state);
    if (is_end(token))
      return std::find(now_.begin(), now_.end(), kEndFrame) != now_.end() ? kFinished : kMaskDead;
    advance(kSymbolBase + static_cast<uint32_t>(token));
    return intern(now_);
  }

  bool mask(MaskState state, std::span<uint32_t> bits) const override {
    TF_CHECK_EQ(bits.size(), vocab_->words());
    const std::lock_guard lock(mutex_);
    if (state < 0 || state == kFinished) {
      std::fill(bits.begin(), bits.end(), 0U);
      return false;
    }
    return put_together(pieces(state), bits);
  }

  MaskFound mask_within(MaskState state, std::span<uint32_t> bits, int64_t& work) const override {
    TF_CHECK_EQ(bits.size(), vocab_->words());
    const std::lock_guard lock(mutex_);
    --work;
    if (state < 0 || state == kFinished) {
      std::fill(bits.begin(), bits.end(), 0U);
      return MaskFound::kNone;
    }
    walk_.set_work(std::max<int64_t>(work, 0));
    try {
      const std::vector<const Piece*>& known = pieces(state);
      work = walk_.work_left();
      walk_.set_work(INT64_MAX);
      return put_together(known, bits) ? MaskFound::kSome : MaskFound::kNone;
    } catch (const MaskWorkSpent&) {
      work = 0;
      walk_.set_work(INT64_MAX);
      account();
      return MaskFound::kNotYet;
    }
  }

  int32_t forced(MaskState state) const override {
    const std::lock_guard lock(mutex_);
    const auto known = kept_.find(state);
    if (known == kept_.end()) return -1;
    std::vector<int32_t> allowed;
    for (const Piece* piece : known->second) {
      if (!few_tokens(*piece, allowed)) return -1;
    }
    const auto bytes = [this](int32_t id) -> std::string_view {
      const std::vector<std::string>& all = vocab_->spec().bytes;
      if (static_cast<size_t>(id) >= all.size()) return {};
      return all[static_cast<size_t>(id)];
    };
    int32_t longest = -1;
    for (const int32_t id : allowed) {
      if (longest < 0 || bytes(id).size() > bytes(longest).size()) longest = id;
    }
    // Tokens without text, the end among them, stand for themselves.
    for (const int32_t id : allowed) {
      const std::string_view b = bytes(id);
      if (id != longest && (b.empty() || bytes(longest).substr(0, b.size()) != b)) return -1;
    }
    return longest;
  }

  MaskState next_text(MaskState state, std::string_view text, size_t* refused_at) const override {
    const std::lock_guard lock(mutex_);
    if (refused_at) *refused_at = 0;
    if (state < 0 || state == kFinished) return kMaskDead;
    begin(state);
    for (size_t i = 0; i < text.size(); ++i) {
      advance(static_cast<uint8_t>(text[i]));
      if (refused_at) *refused_at = i;
      if (now_.empty()) return kMaskDead;
    }
    return intern(now_);
  }

  bool accepts(MaskState state) const override {
    const std::lock_guard lock(mutex_);
    if (state == kFinished) return true;
    if (state < 0) return false;
    const FrameSet now = threads(state);
    return std::find(now.begin(), now.end(), kEndFrame) != now.end();
  }

  size_t memory_bytes() const override { return bytes_.load(std::memory_order_relaxed); }

 private:
  bool is_end(int32_t token) const {
    const std::vector<int32_t>& ends = vocab_->spec().end_ids;
    return std::find(ends.begin(), ends.end(), token) != ends.end();
  }

  FrameSet threads(MaskState state) const {
    if (state < kManyBase) return {static_cast<FrameId>(state)};
    return many_[static_cast<size_t>(state - kManyBase)];
  }

  void begin(MaskState state) const {
    now_.clear();
    if (state < kManyBase) {
      now_.push_back(static_cast<FrameId>(state));
    } else {
      now_ = many_[static_cast<size_t>(state - kManyBase)];
    }
  }

  void advance(uint32_t symbol) const {
    after_.clear();
    for (const FrameId id : now_) frames_.step(id, symbol, after_);
    frames_.merge(after_);
    now_.swap(after_);
  }

  // Plain text without bounds inside a string: nothing changes.
  bool stays(MaskState state, int32_t token) const {
    if (state >= kManyBase || !vocab_->is_safe(token)) return false;
    const Frame& f = frames_.at(static_cast<FrameId>(state));
    if (f.kind != Frame::Kind::kText || f.d != 0 || f.e != 0) return false;
    const TextSpec& spec = program_->texts[f.a];
    return !spec.raw && spec.dfa->universal && static_cast<int32_t>(f.b) == spec.dfa->start &&
           spec.max == kNoMax && f.c >= spec.min;
  }

  MaskState intern(const FrameSet& now) const {
    if (now.empty()) return kMaskDead;
    if (now.size() == 1) return now[0];
    FrameSet set = now;
    std::sort(set.begin(), set.end());
    const auto [it, fresh] = many_ids_.emplace(set, static_cast<MaskState>(many_.size()));
    if (fresh) many_.push_back(std::move(set));
    return kManyBase + it->second;
  }

  // The pieces of the state's mask, remembered.
  const std::vector<const Piece*>& pieces(MaskState state) const {
    const auto known = kept_.find(state);
    if (known != kept_.end()) return known->second;
    if (walk_.trim() || kept_.size() >= kMasksKeptMax) kept_.clear();
    std::vector<const Piece*> made;
    for (const FrameId id : threads(state)) walk_.mask(id, made);
    std::sort(made.begin(), made.end());
    made.erase(std::unique(made.begin(), made.end()), made.end());
    made.shrink_to_fit();
    account();
    return kept_.emplace(state, std::move(made)).first->second;
  }

  // Adds the tokens of a piece; false when they are more than are looked at.
  static bool few_tokens(const Piece& piece, std::vector<int32_t>& out) {
    if (piece.base != nullptr) return false;
    out.insert(out.end(), piece.sparse.begin(), piece.sparse.end());
    for (size_t w = 0; w < piece.dense.size() && out.size() <= kForcedLookedMax; ++w) {
      for (uint32_t rest = piece.dense[w]; rest != 0; rest &= rest - 1)
        out.push_back(static_cast<int32_t>(w * 32) + __builtin_ctz(rest));
    }
    return out.size() <= kForcedLookedMax;
  }

  static bool put_together(const std::vector<const Piece*>& pieces, std::span<uint32_t> bits) {
    const auto or_bits = [&](const std::vector<uint32_t>& more, bool first) {
      if (first) {
        std::copy(more.begin(), more.end(), bits.begin());
      } else {
        for (size_t i = 0; i < bits.size(); ++i) bits[i] |= more[i];
      }
    };
    bool any = false, written = false;
    const std::vector<uint32_t>* last = nullptr;  // alternatives often share theirs
    for (const Piece* piece : pieces) {
      any = any || !piece->none();
      if (piece->base != nullptr && piece->base != last) {
        or_bits(*piece->base, !written);
        written = true;
        last = piece->base;
      }
      if (!piece->dense.empty()) {
        or_bits(piece->dense, !written);
        written = true;
      }
    }
    if (!written) std::fill(bits.begin(), bits.end(), 0U);
    for (const Piece* piece : pieces) {
      for (const int32_t id : piece->sparse) set_token(bits, id);
    }
    return any;
  }

  void account() const {
    size_t total = program_bytes_ + frames_.bytes() + walk_.bytes() + kept_.size() * 96;
    total += many_.size() * 128;
    bytes_.store(total, std::memory_order_relaxed);
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
  mutable std::unordered_map<MaskState, std::vector<const Piece*>> kept_;
  mutable FrameSet now_, after_;  // scratch
  size_t program_bytes_ = 0;
  mutable std::atomic<size_t> bytes_{0};
  MaskState start_ = kMaskDead;
};

}  // namespace

std::shared_ptr<Matcher> Matcher::create(std::shared_ptr<const Program> program,
                                         std::shared_ptr<const VocabImage> vocab) {
  return std::make_shared<MatcherImpl>(std::move(program), std::move(vocab));
}

}  // namespace tensorfold::grammar
