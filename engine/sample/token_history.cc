// Ids and their counts. Owner: the executor's thread.
#include "engine/sample/token_history.h"

#include "engine/base/check.h"

namespace tensorfold {

void TokenHistory::clear() {
  ids_.clear();
  counts_.clear();
  counted_ = 0;
  reply_position_ = 0;
}

void TokenHistory::truncate(int64_t length) {
  TF_CHECK(length >= 0 && length <= size());
  const auto n = static_cast<size_t>(length);
  for (size_t i = counted_; i > n; --i) {
    const auto it = counts_.find(ids_[i - 1]);
    const bool reply = static_cast<int64_t>(i - 1) >= reply_position_;
    --(reply ? it->second.reply : it->second.prompt);
    if (it->second.reply == 0 && it->second.prompt == 0) counts_.erase(it);
  }
  if (counted_ > n) counted_ = n;
  ids_.resize(n);
}

void TokenHistory::write(int64_t position, std::span<const int32_t> ids) {
  truncate(position);
  ids_.insert(ids_.end(), ids.begin(), ids.end());
}

const std::unordered_map<int32_t, TokenHistory::Counts>& TokenHistory::counts(
    int64_t reply_position) {
  if (reply_position != reply_position_) {
    counts_.clear();
    counted_ = 0;
    reply_position_ = reply_position;
  }
  for (; counted_ < ids_.size(); ++counted_) {
    Counts& c = counts_[ids_[counted_]];
    ++(static_cast<int64_t>(counted_) >= reply_position_ ? c.reply : c.prompt);
  }
  return counts_;
}

}  // namespace tensorfold
