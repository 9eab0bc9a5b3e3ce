// Saved rings (engine/cache/snapshot_store.h).
//
// A snapshot's bytes, cut into its units: the encoder's rings, the pair rings, then, of a full one,
// the other rings.
#include "engine/cache/snapshot_store.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <string>
#include <utility>

namespace tensorfold {
namespace {

Status unknown(int64_t number) {
  return invalid_argument("there is no snapshot " + std::to_string(number));
}

int64_t pair_bytes(const CacheLayout& layout) { return layout.pair_floats * 4; }

int64_t content_bytes(const CacheLayout& layout, bool encoder_only) {
  return (encoder_only ? layout.decoder_start : layout.rings()) * layout.ring_bytes +
         pair_bytes(layout);
}

// Calls copy(unit, offset into it, offset into the content, bytes) for [first, first + bytes).
template <typename Copy>
Status for_pieces(int64_t unit_bytes, int64_t first, int64_t bytes, const Copy& copy) {
  while (bytes > 0) {
    const int64_t offset = first % unit_bytes;
    const int64_t piece = std::min(bytes, unit_bytes - offset);
    TF_RETURN_IF_ERROR(copy(static_cast<size_t>(first / unit_bytes), offset, piece));
    first += piece;
    bytes -= piece;
  }
  return ok_status();
}

constexpr size_t kRecordFields = 7;

}  // namespace

Status RingCopies::save(void* host, const void* from, int64_t bytes) const {
  if (stream != nullptr) return device->download(host, from, bytes, *stream);
  std::memcpy(host, from, static_cast<size_t>(bytes));
  return ok_status();
}

void RingCopies::restore(void* to, const void* host, int64_t bytes) const {
  if (stream != nullptr) return device->upload(to, host, bytes, *stream);
  std::memcpy(to, host, static_cast<size_t>(bytes));
}

Result<SnapshotStore> SnapshotStore::create(const CacheLayout& layout) {
  SnapshotStore store;
  store.units_ = layout.snapshot_units;
  store.unit_bytes_ = layout.snapshot_unit_bytes();
  store.memory_ = allocate_array<uint8_t>(cpu_device(), store.units_ * store.unit_bytes_);
  if (store.memory_ == nullptr)
    return unavailable("no memory for snapshots of " +
                       std::to_string(store.units_ * store.unit_bytes_) + " bytes");
  for (int64_t n = store.units_; n > 0; --n) store.free_.push_back(static_cast<int32_t>(n - 1));
  return store;
}

Status SnapshotStore::take_units(const CacheLayout& layout, int64_t number, Snapshot& s) {
  const auto old = snapshots_.find(number);
  const size_t had = old == snapshots_.end() ? 0 : old->second.units.size();
  const auto wanted =
      static_cast<size_t>((content_bytes(layout, s.encoder_only) + unit_bytes_ - 1) / unit_bytes_);
  if (free_.size() + had < wanted)
    return unavailable("no room for snapshot " + std::to_string(number) + ": " +
                       std::to_string(units_) + " units of " + std::to_string(unit_bytes_) +
                       " bytes, " + std::to_string(free_.size()) + " free");
  if (had > 0) TF_RETURN_IF_ERROR(drop(number));
  s.units.assign(free_.end() - static_cast<ptrdiff_t>(wanted), free_.end());
  free_.resize(free_.size() - wanted);
  return ok_status();
}

Status SnapshotStore::save(const CacheLayout& layout, const SequenceState& state, bool encoder_only,
                           int64_t number, const RingCopies& copies) {
  Snapshot s;
  s.encoder_only = encoder_only;
  s.length = state.length_;
  s.ring_low = state.ring_low_;
  s.decoder_low = encoder_only ? state.length_ : state.decoder_low_;
  s.decoder_end = encoder_only ? state.length_ : state.decoder_end_;
  s.draft_low = encoder_only ? state.length_ : state.draft_low_;
  s.draft_end = encoder_only ? state.length_ : state.draft_end_;
  TF_RETURN_IF_ERROR(take_units(layout, number, s));
  const auto put = [&](const void* from, int64_t first, int64_t bytes) {
    const auto* at = static_cast<const uint8_t*>(from);
    return for_pieces(unit_bytes_, first, bytes, [&](size_t i, int64_t offset, int64_t n) {
      Status status = copies.save(unit(s.units[i]) + offset, at, n);
      at += n;
      return status;
    });
  };
  const int64_t encoder = layout.decoder_start * layout.ring_bytes;
  const int64_t whole = encoder_only ? encoder : layout.rings() * layout.ring_bytes;
  Status status = put(state.rings_.get(), 0, encoder);
  if (status.ok()) status = put(state.pairs_.get(), encoder, pair_bytes(layout));
  if (status.ok())
    status = put(state.rings_.get() + encoder, encoder + pair_bytes(layout), whole - encoder);
  snapshots_[number] = std::move(s);
  return status;
}

Status SnapshotStore::restore(const CacheLayout& layout, int64_t number, int64_t cut,
                              SequenceState& state, const RingCopies& copies) const {
  const auto found = snapshots_.find(number);
  if (found == snapshots_.end()) return unknown(number);
  const Snapshot& s = found->second;
  const int64_t held = static_cast<int64_t>(state.blocks_.size()) * kBlockPositions;
  const int64_t length = s.length - cut;
  if (cut < 0 || length < 1 ||
      (cut > 0 && std::max<int64_t>(0, length - layout.window + 1) < s.ring_low))
    return invalid_argument("snapshot " + std::to_string(number) + " of " +
                            std::to_string(s.length) + " positions cannot be cut back by " +
                            std::to_string(cut));
  if (held < length)
    return invalid_argument("snapshot " + std::to_string(number) + " has " +
                            std::to_string(length) + " positions, the slot's blocks hold " +
                            std::to_string(held));
  if (length > layout.context) return invalid_argument("snapshot past the context");
  state.length_ = length;
  state.ring_low_ = s.ring_low;
  state.decoder_low_ = s.decoder_low;
  state.decoder_end_ = std::min(s.decoder_end, length);
  state.draft_low_ = s.draft_low;
  state.draft_end_ = std::min(s.draft_end, length);
  const auto get = [&](void* to, int64_t first, int64_t bytes) {
    auto* at = static_cast<uint8_t*>(to);
    return for_pieces(unit_bytes_, first, bytes, [&](size_t i, int64_t offset, int64_t n) {
      copies.restore(at, unit(s.units[i]) + offset, n);
      at += n;
      return ok_status();
    });
  };
  const int64_t encoder = layout.decoder_start * layout.ring_bytes;
  const int64_t whole = s.encoder_only ? encoder : layout.rings() * layout.ring_bytes;
  TF_RETURN_IF_ERROR(get(state.rings_.get(), 0, encoder));
  TF_RETURN_IF_ERROR(get(state.pairs_.get(), encoder, pair_bytes(layout)));
  return get(state.rings_.get() + encoder, encoder + pair_bytes(layout), whole - encoder);
}

Result<bool> SnapshotStore::equal(const CacheLayout& layout, int64_t number,
                                  const SequenceState& state, const RingCopies& copies) const {
  const auto found = snapshots_.find(number);
  if (found == snapshots_.end()) return unknown(number);
  const Snapshot& s = found->second;
  if (s.encoder_only)
    return invalid_argument("snapshot " + std::to_string(number) + " has the encoder's rings only");
  std::vector<uint8_t> piece(static_cast<size_t>(unit_bytes_));
  bool same = true;
  const auto compare = [&](const void* from, int64_t first, int64_t bytes) {
    const auto* at = static_cast<const uint8_t*>(from);
    return for_pieces(unit_bytes_, first, bytes, [&](size_t i, int64_t offset, int64_t n) {
      TF_RETURN_IF_ERROR(copies.save(piece.data(), at, n));
      same =
          same && std::memcmp(piece.data(), unit(s.units[i]) + offset, static_cast<size_t>(n)) == 0;
      at += n;
      return ok_status();
    });
  };
  const int64_t encoder = layout.decoder_start * layout.ring_bytes;
  TF_RETURN_IF_ERROR(compare(state.rings_.get(), 0, encoder));
  TF_RETURN_IF_ERROR(compare(state.pairs_.get(), encoder, pair_bytes(layout)));
  TF_RETURN_IF_ERROR(compare(state.rings_.get() + encoder, encoder + pair_bytes(layout),
                             layout.rings() * layout.ring_bytes - encoder));
  return same;
}

Status SnapshotStore::drop(int64_t number) {
  const auto found = snapshots_.find(number);
  if (found == snapshots_.end()) return unknown(number);
  free_.insert(free_.end(), found->second.units.begin(), found->second.units.end());
  snapshots_.erase(found);
  return ok_status();
}

Status SnapshotStore::export_record(const CacheLayout& layout, int64_t number,
                                    std::vector<std::byte>& out) const {
  const auto found = snapshots_.find(number);
  if (found == snapshots_.end()) return unknown(number);
  const Snapshot& s = found->second;
  const std::array<int64_t, kRecordFields> fields = {s.encoder_only ? 1 : 0,
                                                     s.length,
                                                     s.decoder_low,
                                                     s.decoder_end,
                                                     s.draft_low,
                                                     s.draft_end,
                                                     s.ring_low};
  const int64_t content = content_bytes(layout, s.encoder_only);
  out.clear();
  out.reserve(sizeof(fields) + static_cast<size_t>(content));
  for (const int64_t value : fields) {
    for (int i = 0; i < 8; ++i)
      out.push_back(static_cast<std::byte>(static_cast<uint64_t>(value) >> (8 * i)));
  }
  return for_pieces(unit_bytes_, 0, content, [&](size_t i, int64_t offset, int64_t n) {
    const auto* from = reinterpret_cast<const std::byte*>(unit(s.units[i]) + offset);
    out.insert(out.end(), from, from + n);
    return ok_status();
  });
}

Status SnapshotStore::import_record(const CacheLayout& layout, int64_t number,
                                    std::span<const std::byte> bytes) {
  std::array<int64_t, kRecordFields> fields{};
  if (bytes.size() < sizeof(fields)) return data_loss("a snapshot record is cut short");
  for (size_t f = 0; f < kRecordFields; ++f) {
    uint64_t value = 0;
    for (size_t i = 0; i < 8; ++i) value |= static_cast<uint64_t>(bytes[8 * f + i]) << (8 * i);
    fields[f] = static_cast<int64_t>(value);
  }
  Snapshot s;
  s.encoder_only = fields[0] != 0;
  s.length = fields[1];
  s.decoder_low = fields[2];
  s.decoder_end = fields[3];
  s.draft_low = fields[4];
  s.draft_end = fields[5];
  s.ring_low = fields[6];
  const bool right = std::all_of(fields.begin() + 2, fields.end(),
                                 [&](int64_t v) { return v >= 0 && v <= s.length; });
  if (s.length < 1 || s.length > layout.context || !right || fields[0] > 1)
    return data_loss("a snapshot record has positions that cannot be");
  const int64_t content = content_bytes(layout, s.encoder_only);
  if (static_cast<int64_t>(bytes.size() - sizeof(fields)) != content)
    return data_loss("a snapshot record has " + std::to_string(bytes.size() - sizeof(fields)) +
                     " bytes of rings, not " + std::to_string(content));
  TF_RETURN_IF_ERROR(take_units(layout, number, s));
  const std::byte* at = bytes.data() + sizeof(fields);
  Status status = for_pieces(unit_bytes_, 0, content, [&](size_t i, int64_t offset, int64_t n) {
    std::memcpy(unit(s.units[i]) + offset, at, static_cast<size_t>(n));
    at += n;
    return ok_status();
  });
  snapshots_[number] = std::move(s);
  return status;
}

}  // namespace tensorfold
