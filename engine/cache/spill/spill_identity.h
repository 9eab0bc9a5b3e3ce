// SpillIdentity: whose bits a file on disk holds. Two engines may share files exactly when every
// field is equal; the digest of all fields is in each file's header and names its folder.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "engine/cache/block_digest.h"

namespace tensorfold {

// Bumped by hand whenever a kernel change moves any bit of cached state. The CPU's: the test
// engine/numeric_revision fails when the bits moved and this did not. The GPU's: nothing but a GPU
// can tell, so whoever changes a sum there bumps it.
inline constexpr uint32_t kNumericRevision = 1;
inline constexpr uint32_t kNumericRevisionCuda = 2;
// By the device's name (Device::name).
constexpr uint32_t numeric_revision_of(std::string_view device) {
  return device.starts_with("cuda") ? kNumericRevisionCuda : kNumericRevision;
}

struct SpillIdentity {
  std::string model_fingerprint;  // weights and configuration
  std::string formats;            // of blocks and rings, with their sizes
  uint32_t numeric_revision = kNumericRevision;
  std::string device;         // "cpu", "sm_121"
  std::string prefill;        // "exact", "replay"
  bool reuse_replies = true;  // whether rows of replies may stand in for prompt rows
  std::string index_scores;   // precision, empty: the default
  std::string exchange;       // of partial results between ranks, empty: fp32
  int32_t world_size = 1;
  int32_t rank = 0;

  // SHA-256 over type-tagged, length-prefixed fields.
  BlockDigest digest() const;
};

}  // namespace tensorfold
