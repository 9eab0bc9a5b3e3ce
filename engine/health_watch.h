// HealthWatch: whether the engine still says what it said when it was well. Decides, does nothing:
// the engine's loop tells it what happens and carries out what it decides (engine_loop_health.cc).
// Owned by the engine thread; outlives the loop, so that it knows what came before a new start.
//
// The canary is a fixed prompt, answered greedily by the same way as every request, from nothing.
// What it says at the first start is what it must say ever after: rows depend on nothing that
// shares a step with them, so another token is a fault of memory, device or state, whatever the
// text.
//
// Two signs of a sick engine are no proof of it. Few right drafts: so few for a minute happens to
// sound texts, too. Empty answers in a row: clients may ask for such. Either makes the canary be
// asked; both at once, or a wrong canary, raise the alarm: nothing is drafted for a while. When the
// canary is wrong without drafts, too, the engine begins anew; when that did not help often enough,
// it fails. Drafts are tried again later.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "engine/engine.h"

namespace tensorfold {

inline constexpr int64_t kSignWindowUs = 60'000'000;  // that few right drafts must last for
inline constexpr int kSignBuckets = 6;                // of which the window is made
inline constexpr int64_t kSignOutcomesMin = 32;       // of drafts, for a share to mean anything
inline constexpr double kSignShareMin = 0.03;         // of them right
inline constexpr int kSignEmptyAnswers = 8;           // in a row
inline constexpr int kCanaryTokens = 8;               // of its reply
inline constexpr int kCanaryPromptTokensMax = 256;
inline constexpr int64_t kCanaryEveryUs = 300'000'000;  // while others are answered
inline constexpr int64_t kCanaryAgainUs = 60'000'000;   // on a sign, since the last time
inline constexpr int64_t kCanaryRetryUs = 1'000'000;    // when it could not be answered
inline constexpr int64_t kAlarmUs = 600'000'000;        // without drafts
inline constexpr int kNewStartsMax = 3;                 // in kNewStartsWindowUs, then it fails
inline constexpr int64_t kNewStartsWindowUs = 3'600'000'000;

struct HealthFigures {
  uint64_t canaries = 0, canaries_wrong = 0;
  uint64_t alarms = 0, new_starts = 0;
  bool alarm = false;  // nothing is drafted
};

class HealthWatch {
 public:
  enum class Action : uint8_t {
    kNone = 0,
    kAskCanary = 1,  // canary_began() or canary_failed() must follow
    kAlarm = 2,      // raised now: reason() says why
    kAllClear = 3,   // drafts are tried again
    kNewStart = 4,   // load the model again
    kFail = 5,       // new starts did not help
  };

  // `prompt`: of the canary; empty: there is none, and nothing is ever decided.
  void set_canary(std::vector<TokenId> prompt) { prompt_ = std::move(prompt); }
  const std::vector<TokenId>& canary() const { return prompt_; }

  // Of a sequence's round: so many of its drafts have an outcome, so many of those were right.
  void drafts(int64_t now_us, int64_t known, int64_t right);
  void answered(bool empty);

  // What is to be done now; every turn, until kNone.
  Action next(int64_t now_us);
  void canary_began();
  // It could not be answered: that says nothing. Its time comes again.
  void canary_failed(int64_t now_us);
  void canary_said(int64_t now_us, const std::vector<TokenId>& tokens);

  bool asking() const { return asking_; }
  bool alarm() const { return figures_.alarm; }  // nothing is to be drafted
  bool begins_anew() const { return anew_ && !gave_up_; }
  void began_anew(int64_t now_us);  // the new start is done
  const std::string& reason() const { return reason_; }
  HealthFigures figures() const { return figures_; }

 private:
  struct Bucket {
    int64_t number = -1;
    int64_t known = 0, right = 0;
  };
  static constexpr int64_t kBucketUs = kSignWindowUs / kSignBuckets;

  bool few_right(int64_t now_us) const;
  bool many_empty() const { return empty_answers_ >= kSignEmptyAnswers; }
  Action raise(int64_t now_us, std::string reason);
  bool due(int64_t now_us) const;

  std::vector<TokenId> prompt_;
  std::optional<std::vector<TokenId>> known_;     // what it said when the engine was well
  std::array<Bucket, kSignBuckets + 1> buckets_;  // the newest is not whole
  int64_t first_bucket_ = -1;
  int empty_answers_ = 0;
  bool worked_ = false;  // something was answered since the last canary
  bool asking_ = false;
  bool failed_ = false;   // the last one could not be answered
  bool wrong_ = false;    // the last one was
  bool want_ = false;     // another one, at once
  int64_t asked_us_ = 0;  // when the last one ended
  int64_t alarm_until_us_ = 0;
  bool anew_ = false;  // a new start is wanted, or under way
  bool told_anew_ = false, gave_up_ = false;
  std::vector<int64_t> new_starts_us_;
  std::string reason_;
  HealthFigures figures_;
};

}  // namespace tensorfold
