// See the header.
#include "engine/group/step_gate.h"

#include <xxhash.h>

#include <algorithm>
#include <string>

#include "engine/cluster/agreement.h"

namespace tensorfold {
namespace {

constexpr uint64_t kCodeShift = 56;  // of the status code in the second word
constexpr uint64_t kPastMask = (uint64_t{1} << kCodeShift) - 1;
constexpr size_t kRowBytes = 8;  // of after(): code, accepted tokens, 48 bits over them

Status out_of_step(const std::string& what) { return unavailable(what, kReasonOutOfStep); }

uint64_t hash_of(const void* data, size_t bytes, uint64_t seed) {
  return XXH3_64bits_withSeed(data, bytes, seed);
}

template <typename T>
uint64_t hash_of(const std::vector<T>& values, uint64_t seed) {
  return hash_of(values.data(), values.size() * sizeof(T), seed);
}

uint8_t byte_of(const std::vector<std::byte>& bytes, size_t at) {
  return std::to_integer<uint8_t>(bytes[at]);
}

}  // namespace

void StepGate::join(Collective& collective, uint64_t generation) {
  collective_ = &collective;
  past_ = generation;
}

void StepGate::expect(uint64_t digest) {
  digest_ = digest;
  commands_done_ = false;
}

void StepGate::note(const std::vector<SampledTokens>& results) {
  for (const SampledTokens& r : results) {
    past_ = hash_of(&r.slot, sizeof r.slot, past_ + r.accepted.size());
    past_ = hash_of(r.accepted, past_);
    past_ = hash_of(r.drafts, past_);
    past_ = hash_of(r.draft_confidence, past_);
  }
}

Status StepGate::before(const StepPlan& plan, const Status& status) {
  commands_done_ = status.ok();
  if (collective_ == nullptr) return status;
  const auto code = static_cast<uint64_t>(status.code());
  TF_ASSIGN_OR_RETURN(
      const std::vector<AgreementWords> all,
      gather_words(*collective_, {digest_, code << kCodeShift | (past_ & kPastMask)}));
  TF_RETURN_IF_ERROR(status);
  const std::string where = "step " + std::to_string(plan.step) + ": ";
  for (size_t r = 0; r < all.size(); ++r) {
    const std::string rank = "rank " + std::to_string(r);
    if (all[r][1] >> kCodeShift != 0) return out_of_step(where + rank + " could not take the plan");
    if (all[r][0] != digest_) return out_of_step(where + rank + " has another plan");
    if ((all[r][1] & kPastMask) != (past_ & kPastMask))
      return out_of_step(where + rank + " differs in what earlier steps left");
  }
  return ok_status();
}

// Ranks that saw the same failure keep its tokens and its words; else nothing of the row counts.
void StepGate::fail_row(SampledTokens& result, size_t row, size_t rows) const {
  const size_t stride = rows * kRowBytes;
  bool same = true;
  size_t failed = all_.size();
  for (size_t r = 0; r * stride < all_.size(); ++r) {
    const auto at = all_.begin() + static_cast<ptrdiff_t>(r * stride + row * kRowBytes);
    const auto first = all_.begin() + static_cast<ptrdiff_t>(row * kRowBytes);
    same = same && std::equal(at, at + kRowBytes, first);
    if (*at != std::byte{0} && failed == all_.size()) failed = r;
  }
  if (same) return;
  result.accepted.clear();
  result.logprobs.clear();
  result.drafts.clear();
  if (result.status.ok())
    result.status = Status(StatusCode::kInternal,
                           "rank " + std::to_string(failed) + " could not compute this request");
}

Status StepGate::after(const StepPlan& plan, std::vector<SampledTokens>& results) {
  if (collective_ == nullptr || results.empty()) return ok_status();
  mine_.clear();
  for (const SampledTokens& r : results) {
    mine_.push_back(static_cast<std::byte>(r.status.code()));
    mine_.push_back(static_cast<std::byte>(r.accepted.size()));
    const uint64_t hash = hash_of(r.accepted, 0);
    for (size_t i = 0; i + 2 < kRowBytes; ++i)
      mine_.push_back(static_cast<std::byte>(hash >> 8 * i));
  }
  const auto world = static_cast<size_t>(collective_->world_size());
  all_.resize(mine_.size() * world);
  TF_RETURN_IF_ERROR(collective_->all_gather(mine_, all_));
  for (size_t i = 0; i < results.size(); ++i) {
    bool failed = false;
    bool same = true;
    for (size_t r = 0; r < world; ++r) {
      const size_t at = r * mine_.size() + i * kRowBytes;
      failed = failed || byte_of(all_, at) != 0;
      same = same && std::equal(all_.begin() + static_cast<ptrdiff_t>(at),
                                all_.begin() + static_cast<ptrdiff_t>(at + kRowBytes),
                                all_.begin() + static_cast<ptrdiff_t>(i * kRowBytes));
    }
    if (failed) {
      fail_row(results[i], i, results.size());
    } else if (!same) {
      return out_of_step("step " + std::to_string(plan.step) + ", slot " +
                         std::to_string(results[i].slot) + ": ranks sampled different tokens");
    }
  }
  return ok_status();
}

}  // namespace tensorfold
