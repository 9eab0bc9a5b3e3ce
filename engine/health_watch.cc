// See the header.
#include "engine/health_watch.h"

#include <algorithm>
#include <utility>

namespace tensorfold {

void HealthWatch::drafts(int64_t now_us, int64_t known, int64_t right) {
  if (known == 0) return;
  const int64_t number = now_us / kBucketUs;
  if (first_bucket_ < 0) first_bucket_ = number;
  Bucket& b = buckets_[static_cast<size_t>(number % std::ssize(buckets_))];
  if (b.number != number) b = {number, 0, 0};
  b.known += known;
  b.right += right;
}

void HealthWatch::answered(bool empty) {
  worked_ = true;
  empty_answers_ = empty ? std::min(empty_answers_ + 1, kSignEmptyAnswers) : 0;
}

// Over the window, once there has been as much since the first bucket, which was not whole.
bool HealthWatch::few_right(int64_t now_us) const {
  const int64_t number = now_us / kBucketUs;
  if (first_bucket_ < 0 || number - first_bucket_ <= kSignBuckets) return false;
  int64_t known = 0;
  int64_t right = 0;
  for (const Bucket& b : buckets_) {
    if (b.number < number - kSignBuckets) continue;
    known += b.known;
    right += b.right;
  }
  return known >= kSignOutcomesMin &&
         static_cast<double>(right) < kSignShareMin * static_cast<double>(known);
}

bool HealthWatch::due(int64_t now_us) const {
  const int64_t since = now_us - asked_us_;
  if (!known_ || want_) return !failed_ || since >= kCanaryRetryUs;
  if (since >= kCanaryAgainUs && (few_right(now_us) || many_empty())) return true;
  return worked_ && since >= kCanaryEveryUs;
}

HealthWatch::Action HealthWatch::raise(int64_t now_us, std::string reason) {
  figures_.alarm = true;
  ++figures_.alarms;
  alarm_until_us_ = now_us + kAlarmUs;
  reason_ = std::move(reason);
  want_ = true;  // without drafts now
  return Action::kAlarm;
}

HealthWatch::Action HealthWatch::next(int64_t now_us) {
  if (prompt_.empty() || asking_) return Action::kNone;
  if (anew_) {
    if (std::exchange(told_anew_, true)) return Action::kNone;
    const auto old = [&](int64_t t) { return now_us - t > kNewStartsWindowUs; };
    std::erase_if(new_starts_us_, old);
    gave_up_ = std::ssize(new_starts_us_) >= kNewStartsMax;
    return gave_up_ ? Action::kFail : Action::kNewStart;
  }
  if (wrong_ && !alarm()) return raise(now_us, "the canary's answer is not what it was");
  if (wrong_ && !want_) {
    anew_ = true;
    told_anew_ = false;
    return next(now_us);
  }
  if (!alarm() && few_right(now_us) && many_empty())
    return raise(now_us, "less than 3% of the drafts were right for a minute and " +
                             std::to_string(kSignEmptyAnswers) + " answers in a row were empty");
  if (alarm() && !wrong_ && !want_ && now_us >= alarm_until_us_) {
    figures_.alarm = false;
    buckets_ = {};
    first_bucket_ = -1;
    empty_answers_ = 0;
    return Action::kAllClear;
  }
  return due(now_us) ? Action::kAskCanary : Action::kNone;
}

void HealthWatch::canary_began() {
  asking_ = true;
  want_ = false;
}

void HealthWatch::canary_failed(int64_t now_us) {
  asking_ = worked_ = false;
  failed_ = true;
  want_ = wrong_;
  asked_us_ = now_us;
}

void HealthWatch::canary_said(int64_t now_us, const std::vector<TokenId>& tokens) {
  asking_ = worked_ = failed_ = false;
  asked_us_ = now_us;
  ++figures_.canaries;
  if (!known_) known_ = tokens;
  wrong_ = tokens != *known_;
  if (!wrong_) {
    empty_answers_ = 0;  // they were asked for
    return;
  }
  ++figures_.canaries_wrong;
}

void HealthWatch::began_anew(int64_t now_us) {
  new_starts_us_.push_back(now_us);
  ++figures_.new_starts;
  anew_ = told_anew_ = wrong_ = false;
  figures_.alarm = false;
  buckets_ = {};
  first_bucket_ = -1;
  empty_answers_ = 0;
  want_ = true;
}

}  // namespace tensorfold
