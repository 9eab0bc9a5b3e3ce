#include "engine/text/bpe.h"

#include <algorithm>
#include <bit>

#include "engine/base/check.h"

namespace tensorfold {
namespace {

// Up to here a scan per merge costs less than a heap, and stays under the bound of n log n steps.
constexpr size_t kShortPieceMaxBytes = 24;
constexpr size_t kPieceMaxBytes = size_t{1} << 31;  // positions are 32 bits

uint64_t pair_key(TokenId left, TokenId right) {
  return (static_cast<uint64_t>(static_cast<uint32_t>(left)) << 32) | static_cast<uint32_t>(right);
}

uint64_t mix(uint64_t key) {
  key *= 0x9E3779B97F4A7C15ull;
  return key ^ (key >> 29);
}

struct Candidate {
  uint32_t rank;
  uint32_t at;  // position of the left part
  TokenId left, right;
};

struct Part {
  TokenId id;
  uint32_t previous, next;  // positions; kNone at the ends
};
constexpr uint32_t kNone = UINT32_MAX;

}  // namespace

Bpe::Bpe(const std::array<TokenId, 256>& byte_tokens, const std::vector<BpeMerge>& merges)
    : byte_tokens_(byte_tokens) {
  slots_.resize(std::bit_ceil(merges.size() * 2 + 2));
  mask_ = slots_.size() - 1;
  for (size_t rank = 0; rank < merges.size(); ++rank) {
    const uint64_t key = pair_key(merges[rank].left, merges[rank].right);
    uint64_t at = mix(key) & mask_;
    while (slots_[at].key != kEmpty && slots_[at].key != key) at = (at + 1) & mask_;
    slots_[at] = {key, {static_cast<uint32_t>(rank), merges[rank].result}};
  }
}

Bpe::Found Bpe::find(TokenId left, TokenId right) const {
  const uint64_t key = pair_key(left, right);
  for (uint64_t at = mix(key) & mask_;; at = (at + 1) & mask_) {
    if (slots_[at].key == key) return slots_[at].found;
    if (slots_[at].key == kEmpty) return {};
  }
}

void Bpe::encode(std::string_view piece, std::vector<TokenId>& out, uint64_t* steps) const {
  TF_CHECK(piece.size() < kPieceMaxBytes);
  if (piece.empty()) return;
  if (piece.size() <= kShortPieceMaxBytes) {
    encode_short(piece, out, steps);
  } else {
    encode_long(piece, out, steps);
  }
}

void Bpe::encode_short(std::string_view piece, std::vector<TokenId>& out, uint64_t* steps) const {
  std::array<TokenId, kShortPieceMaxBytes> ids;
  std::array<Found, kShortPieceMaxBytes> pairs;  // pairs[i]: of ids[i] and ids[i + 1]
  size_t n = piece.size();
  for (size_t i = 0; i < n; ++i) ids[i] = byte_tokens_[static_cast<unsigned char>(piece[i])];
  for (size_t i = 0; i + 1 < n; ++i) pairs[i] = find(ids[i], ids[i + 1]);
  *steps += n;
  while (n > 1) {
    size_t best = 0;
    for (size_t i = 1; i + 1 < n; ++i) {
      if (pairs[i].rank < pairs[best].rank) best = i;
    }
    *steps += n;
    if (pairs[best].rank == kNoRank) break;
    ids[best] = pairs[best].result;
    for (size_t i = best + 1; i + 1 < n; ++i) {
      ids[i] = ids[i + 1];
      pairs[i] = pairs[i + 1];
    }
    --n;
    if (best > 0) pairs[best - 1] = find(ids[best - 1], ids[best]);
    if (best + 1 < n) pairs[best] = find(ids[best], ids[best + 1]);
  }
  out.insert(out.end(), ids.begin(), ids.begin() + static_cast<std::ptrdiff_t>(n));
}

void Bpe::encode_long(std::string_view piece, std::vector<TokenId>& out, uint64_t* steps) const {
  const auto n = static_cast<uint32_t>(piece.size());
  std::vector<Part> parts(n);
  for (uint32_t i = 0; i < n; ++i) {
    parts[i] = {byte_tokens_[static_cast<unsigned char>(piece[i])], i == 0 ? kNone : i - 1,
                i + 1 == n ? kNone : i + 1};
  }
  const auto later = [steps](const Candidate& a, const Candidate& b) {
    ++*steps;
    return a.rank != b.rank ? a.rank > b.rank : a.at > b.at;
  };
  std::vector<Candidate> heap;
  heap.reserve(n);
  const auto candidate_at = [&](uint32_t at) {
    ++*steps;
    const uint32_t next = parts[at].next;
    const Found found = find(parts[at].id, parts[next].id);
    return Candidate{found.rank, at, parts[at].id, parts[next].id};
  };
  for (uint32_t i = 0; i + 1 < n; ++i) {
    const Candidate c = candidate_at(i);
    if (c.rank != kNoRank) heap.push_back(c);
  }
  std::make_heap(heap.begin(), heap.end(), later);
  const auto push = [&](uint32_t at) {
    const Candidate c = candidate_at(at);
    if (c.rank == kNoRank) return;
    heap.push_back(c);
    std::push_heap(heap.begin(), heap.end(), later);
  };
  while (!heap.empty()) {
    std::pop_heap(heap.begin(), heap.end(), later);
    const Candidate top = heap.back();
    heap.pop_back();
    Part& left = parts[top.at];
    // Outdated when either part was merged away or grew since (a dead part has no id).
    if (left.id != top.left || left.next == kNone || parts[left.next].id != top.right) continue;
    Part& right = parts[left.next];
    left.id = find(top.left, top.right).result;
    right.id = -1;
    left.next = right.next;
    if (left.next != kNone) parts[left.next].previous = top.at;
    if (left.previous != kNone) push(left.previous);
    if (left.next != kNone) push(top.at);
  }
  for (uint32_t i = 0; i != kNone; i = parts[i].next) out.push_back(parts[i].id);
}

}  // namespace tensorfold
