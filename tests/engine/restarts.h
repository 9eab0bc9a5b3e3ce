// Engines that start again over the same files: instances of one real model, a disk in memory that
// fails as told, and "processes" that come and go between them. Nothing but the files connects
// them.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "engine/cache/spill/spill_identity.h"
#include "tests/engine/cache/spill/fault_file_system.h"
#include "tests/engine/cache/spill/spill_world.h"
#include "tests/engine/cache_serving.h"

namespace tensorfold::scripted {

inline const char* const kMiniPath = TF_SOURCE_DIR "/tests/data/golden/mini_native";
inline constexpr int kSmallWindow = 32;
inline constexpr int kReplyTokens = 4;

// The model is told of its tier when it is loaded; processes come and go.
class SwitchTier final : public CacheTier {
 public:
  SpillTier* to = nullptr;
  std::function<void(CacheRecord&)> change;  // to what is read

  bool accepts() const override { return to->accepts(); }
  bool spill(const CacheNote& note, std::span<const int32_t> ids,
             std::span<const int32_t> engram_ids, std::span<const std::byte> bytes) override {
    return to->spill(note, ids, engram_ids, bytes);
  }
  void stage(const CacheNote& note) override { to->stage(note); }
  Staged staged(const BlockDigest& name, CacheNote::Kind kind) const override {
    return to->staged(name, kind);
  }
  const CacheRecord* record(const BlockDigest& name, CacheNote::Kind kind) const override {
    const CacheRecord* r = to->record(name, kind);
    if (r == nullptr || !change) return r;
    changed_ = *r;
    change(changed_);
    return &changed_;
  }
  void unstage(const BlockDigest& name, CacheNote::Kind kind) override { to->unstage(name, kind); }
  std::vector<TierEvent> take_events() override { return to->take_events(); }
  void settle(int64_t wait_us) override { to->settle(wait_us); }
  void forget(const CacheNote& note) override { to->forget(note); }
  void compared(const CacheNote& note, bool equal) override { to->compared(note, equal); }
  void flush() override { to->flush(); }

 private:
  mutable CacheRecord changed_;
};

// One bit of every 64 bytes of a block.
inline void spoil_block(CacheRecord& record) {
  if (record.note.kind != CacheNote::Kind::kBlock) return;
  for (size_t i = 0; i < record.bytes.size(); i += 64) record.bytes[i] ^= std::byte{1};
}

struct Instance {
  explicit Instance(const std::string& folder) : collective(make_single_collective()) {
    ModelOptions o;
    o.model_path = folder;
    o.slots = 3;
    o.context = kServingContext;
    o.pool_blocks = 64;
    o.rows_max = 2048 + 3 * 6;
    o.snapshot_bytes = int64_t{64} << 20;
    o.threads = 1;
    o.tier = &tier;
    auto loaded = Model::load(o, *collective);
    BOOST_REQUIRE_MESSAGE(loaded.ok(), loaded.status().message());
    model = std::move(loaded).value();
  }
  SwitchTier tier;
  std::unique_ptr<Collective> collective;
  std::unique_ptr<Model> model;
};

struct Machines {
  explicit Machines(const std::string& folder) : one(folder), two(folder), cold(folder) {}
  Reply cold_run(const Request& request, const ServingOptions& o) {
    ServingOptions none = o;
    none.snapshot_units = 0;
    none.slots = 1;
    none.pool_blocks = 24;
    none.tier = nullptr;
    return Serving(*cold.model, none).run_one(request);
  }
  int vocab() const { return one.model->config().vocab_size; }
  Instance one, two, cold;
};

inline Machines& machines() {
  static const WindowFolder folder(kMiniPath, kSmallWindow);
  static Machines m(folder.path);
  return m;
}

// A process: a tier over the files and an engine over an instance.
struct Process {
  Process(Instance& instance, ServingOptions o, FileSystem& files, ManualClock& clock,
          StepRunner* runner = nullptr)
      : tier(small_options("/spill/root"), files, clock, log, make_inline_io) {
    instance.tier.to = &tier;
    o.tier = &instance.tier;
    serving = std::make_unique<Serving>(*instance.model, o, runner);
    serving->turns(4);  // the index
  }
  ~Process() {
    serving->turns(4);  // what was written is noted
    serving.reset();
  }
  KeptLog log;
  SpillTier tier;
  std::unique_ptr<Serving> serving;
};

inline std::vector<TokenId> joined(std::vector<TokenId> a, const std::vector<TokenId>& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

}  // namespace tensorfold::scripted
