// Saved rings (engine/cache/snapshot_store.h).
#include "engine/cache/snapshot_store.h"

#include <algorithm>
#include <cstring>
#include <string>
#include <utility>

namespace tensorfold {
namespace {

Status unknown(int64_t number) {
  return invalid_argument("there is no snapshot " + std::to_string(number));
}

}  // namespace

int64_t SnapshotStore::Snapshot::bytes() const {
  return static_cast<int64_t>(rings.size() + 4 * (pairs.size() + ids.size() + engram_ids.size()));
}

Status RingCopies::save(void* host, const void* from, int64_t bytes) const {
  if (bytes == 0) return ok_status();
  if (stream != nullptr) return device->download(host, from, bytes, *stream);
  std::memcpy(host, from, static_cast<size_t>(bytes));
  return ok_status();
}

void RingCopies::restore(void* to, const void* host, int64_t bytes) const {
  if (bytes == 0) return;
  if (stream != nullptr) return device->upload(to, host, bytes, *stream);
  std::memcpy(to, host, static_cast<size_t>(bytes));
}

Status SnapshotStore::save(const CacheLayout& layout, const SequenceState& state, bool encoder_only,
                           int64_t number, const RingCopies& copies) {
  if (snapshots_.find(number) == snapshots_.end() &&
      snapshots_.size() >= static_cast<size_t>(kSnapshotsMax))
    return unavailable("more than " + std::to_string(kSnapshotsMax) + " snapshots");
  Snapshot s;
  s.encoder_only = encoder_only;
  s.length = state.length_;
  s.ring_low = state.ring_low_;
  s.decoder_low = encoder_only ? state.length_ : state.decoder_low_;
  s.decoder_end = encoder_only ? state.length_ : state.decoder_end_;
  s.draft_low = encoder_only ? state.length_ : state.draft_low_;
  s.draft_end = encoder_only ? state.length_ : state.draft_end_;
  s.ids = state.ids_;
  s.engram_ids = state.engram_ids_;
  const int rings = encoder_only ? layout.decoder_start : layout.rings();
  s.rings.resize(static_cast<size_t>(rings * layout.ring_bytes));
  s.pairs.resize(static_cast<size_t>(layout.pair_floats));
  TF_RETURN_IF_ERROR(copies.save(s.rings.data(), state.rings_.get(), rings * layout.ring_bytes));
  TF_RETURN_IF_ERROR(copies.save(s.pairs.data(), state.pairs_.get(), layout.pair_floats * 4));
  Snapshot& place = snapshots_[number];
  bytes_ += s.bytes() - place.bytes();
  place = std::move(s);
  return ok_status();
}

Status SnapshotStore::restore(const CacheLayout& layout, int64_t number, SequenceState& state,
                              const RingCopies& copies) const {
  const auto found = snapshots_.find(number);
  if (found == snapshots_.end()) return unknown(number);
  const Snapshot& s = found->second;
  const int64_t held = static_cast<int64_t>(state.blocks_.size()) * kBlockPositions;
  if (held < s.length)
    return invalid_argument("snapshot " + std::to_string(number) + " has " +
                            std::to_string(s.length) + " positions, the slot's blocks hold " +
                            std::to_string(held));
  if (s.length > layout.context) return invalid_argument("snapshot past the context");
  state.length_ = s.length;
  state.ring_low_ = s.ring_low;
  state.decoder_low_ = s.decoder_low;
  state.decoder_end_ = s.decoder_end;
  state.draft_low_ = s.draft_low;
  state.draft_end_ = s.draft_end;
  state.ids_ = s.ids;
  state.engram_ids_ = s.engram_ids;
  copies.restore(state.rings_.get(), s.rings.data(), static_cast<int64_t>(s.rings.size()));
  copies.restore(state.pairs_.get(), s.pairs.data(), static_cast<int64_t>(s.pairs.size()) * 4);
  return ok_status();
}

Status SnapshotStore::drop(int64_t number) {
  const auto found = snapshots_.find(number);
  if (found == snapshots_.end()) return unknown(number);
  bytes_ -= found->second.bytes();
  snapshots_.erase(found);
  return ok_status();
}

}  // namespace tensorfold
