#include "tests/engine/cache/spill/spill_world.h"

#include <algorithm>
#include <random>
#include <utility>

#include "engine/base/check.h"

namespace tensorfold {
namespace {

class InlineIo final : public SpillIo {
 public:
  InlineIo(FileSystem& files, SpillPlace place, const Clock& clock)
      : files_(files), place_(std::move(place)), clock_(clock) {}
  void submit(SpillJob job) override {
    done_.push_back(run_spill_job(files_, place_, clock_, std::move(job)));
  }
  std::vector<SpillDone> take_done() override { return std::exchange(done_, {}); }
  void drop_writes() override {}
  int64_t waiting() const override { return 0; }

 private:
  FileSystem& files_;
  const SpillPlace place_;
  const Clock& clock_;
  std::vector<SpillDone> done_;
};

std::vector<std::byte> bytes_for(const BlockDigest& name, int64_t count) {
  uint64_t seed = 0;
  for (const uint8_t b : name.bytes) seed = seed * 257 + b;
  std::mt19937_64 random(seed);
  std::vector<std::byte> out(static_cast<size_t>(count));
  for (std::byte& b : out) b = static_cast<std::byte>(random());
  return out;
}

}  // namespace

void KeptLog::write(LogLevel level, std::string_view message, std::initializer_list<LogField>) {
  std::lock_guard lock(mutex_);
  lines_.emplace_back(level, message);
}

std::vector<std::string> KeptLog::warnings() const {
  std::lock_guard lock(mutex_);
  std::vector<std::string> out;
  for (const auto& [level, line] : lines_)
    if (level <= LogLevel::kWarning) out.push_back(line);
  return out;
}

bool KeptLog::said(std::string_view part) const {
  std::lock_guard lock(mutex_);
  return std::any_of(lines_.begin(), lines_.end(),
                     [&](const auto& line) { return line.second.find(part) != std::string::npos; });
}

std::unique_ptr<SpillIo> make_inline_io(FileSystem& files, SpillPlace place, const Clock& clock) {
  return std::make_unique<InlineIo>(files, std::move(place), clock);
}

// ---------------------------------------------------------------- conversations

CacheRecord Conversations::block_record(const Text& text, const BlockDigest& before, int64_t first,
                                        std::vector<ImageSpan> images) {
  CacheRecord r;
  const int64_t end =
      std::min<int64_t>(first + kBlockPositions, static_cast<int64_t>(text.ids.size()));
  r.ids.assign(text.ids.begin() + first, text.ids.begin() + end);
  r.engram_ids = r.ids;
  r.note.before = before;
  r.note.first_position = first;
  r.note.positions = static_cast<int32_t>(end - first);
  r.note.images = std::move(images);
  if (!r.note.images.empty()) {
    r.note.generated.set(3);
    r.engram_ids[0] = -1;
  }
  BlockText t;
  t.first_position = first;
  t.ids = r.ids;
  t.generated = r.note.generated;
  t.images = r.note.images;
  r.note.name = block_digest(before, t);
  r.bytes = bytes_for(r.note.name, kBlockBytes);
  records_[key_of(r.note)] = r;
  return r;
}

CacheRecord Conversations::rings_record(const CacheNote& block, CacheNote::Kind kind) {
  CacheRecord r;
  r.note = block;
  r.note.kind = kind;
  r.note.generated = {};
  r.note.images.clear();
  r.note.cut_low =
      kind == CacheNote::Kind::kFullSnapshot ? std::max<int64_t>(1, r.note.length() - 5) : 0;
  r.bytes = bytes_for(block.name, kRingsBytes + static_cast<int64_t>(kind));
  records_[key_of(r.note)] = r;
  return r;
}

Turn Conversations::turn(int conversation, int64_t tokens, int64_t from, int copy_of) {
  Text& text = texts_[conversation];
  if (copy_of >= 0) text = texts_.at(copy_of);
  if (from >= 0) text.ids.resize(static_cast<size_t>(from));
  std::mt19937 random(static_cast<uint32_t>(conversation * 1000 + static_cast<int>(tokens)));
  const auto begin = static_cast<int64_t>(text.ids.size());
  for (int64_t i = 0; i < tokens; ++i) text.ids.push_back(static_cast<int32_t>(random() % 1000));
  Turn out;
  BlockDigest before = root_digest(text.salt);
  const auto length = static_cast<int64_t>(text.ids.size());
  for (int64_t first = 0; first < length; first += kBlockPositions) {
    CacheRecord r = block_record(text, before, first, {});
    before = r.note.name;
    if (r.note.length() > begin) out.push_back(std::move(r));
  }
  TF_CHECK(!out.empty());
  const CacheNote last = out.back().note;
  if (tokens > 1000) out.push_back(rings_record(last, CacheNote::Kind::kEncoderSnapshot));
  out.push_back(rings_record(last, CacheNote::Kind::kFullSnapshot));
  return out;
}

Turn Conversations::turn_with_images(int conversation) {
  Text text;
  text.salt = "images";
  for (int32_t i = 0; i < 2 * kBlockPositions; ++i) text.ids.push_back(i + conversation);
  const auto images = [&](int32_t count, int64_t first) {
    std::vector<ImageSpan> out;
    for (int32_t i = 0; i < count; ++i)
      out.push_back({first + 2 * i, 2, root_digest("image" + std::to_string(i))});
    return out;
  };
  Turn out;
  out.push_back(block_record(text, root_digest(text.salt), 0, images(2, 0)));
  out.push_back(block_record(text, out[0].note.name, kBlockPositions, images(100, 256)));
  out.push_back(rings_record(out[1].note, CacheNote::Kind::kFullSnapshot));
  return out;
}

const CacheRecord* Conversations::find(const RecordKey& key) const {
  const auto at = records_.find(key);
  return at == records_.end() ? nullptr : &at->second;
}

bool same_record(const CacheRecord& a, const CacheRecord& b) {
  return a.note == b.note && a.ids == b.ids && a.engram_ids == b.engram_ids && a.bytes == b.bytes;
}

// ---------------------------------------------------------------- world

World::World(FileSystem& files, ManualClock& manual, SpillOptions options,
             SpillTier::MakeIo make_io)
    : clock(manual),
      tier(std::make_unique<SpillTier>(std::move(options), files, clock, log, make_io)) {
  for (int i = 0; i < 3; ++i) take();  // list, headers, index
}

void World::take() {
  for (const TierEvent& e : tier->take_events()) {
    const RecordKey key = key_of(e.note);
    if (e.kind == TierEvent::Kind::kGone) {
      stored.erase(key);
    } else {
      stored.insert(key);
      notes[key] = e.note;
    }
  }
}

void World::offer(const Turn& turn) {
  for (const CacheRecord& r : turn) {
    if (!tier->spill(r.note, r.ids, r.engram_ids, r.bytes)) ++refused;
    take();
  }
  clock.advance_us(kSpillGroupWaitUs);
  take();
  take();
}

int64_t World::read_all(const Conversations& conversations) {
  int64_t wrong = 0;
  const KeySet keys = stored;
  for (const RecordKey& key : keys) {
    tier->stage(notes.at(key));
    take();
    take();
    if (tier->staged(key.name, key.kind) != CacheTier::Staged::kReady) {
      ++missing;
      continue;
    }
    ++read;
    const CacheRecord* expected = conversations.find(key);
    const CacheRecord* got = tier->record(key.name, key.kind);
    if (expected == nullptr || got == nullptr || !same_record(*expected, *got)) ++wrong;
    tier->unstage(key.name, key.kind);
  }
  return wrong;
}

SpillOptions small_options(const std::string& root, int64_t bytes_max) {
  SpillOptions o;
  o.root = root;
  o.bytes_max = bytes_max;
  SpillIdentity identity;
  identity.model_fingerprint = "test";
  o.identity = identity.digest();
  return o;
}

}  // namespace tensorfold
