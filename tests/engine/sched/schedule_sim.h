// Random schedules through the engine's loop over a fake device and a clock that moves only when
// told to. A schedule is a function of its seed. What must hold is checked while it runs; the first
// thing that does not is the outcome's `fault`.
//
// - Every request ends exactly once; no slot, block or promise is left.
// - A reply is what an undisturbed one would be: no token missing, none twice, wherever the
//   sequence was set aside, cancelled or cut off.
// - No block is written that another sequence has; no state is used that is not its own.
// - Plans run again from their encoded log give the same results, on a device of its own.
// - While anything waits, something is admitted within the bound of docs/scheduling.md; and a
//   foreground reply that has begun goes on within the bound there, however short the pool is.
#pragma once

#include <functional>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "engine/engine_loop.h"
#include "tests/engine/sched/fake_device.h"
#include "tests/engine/scripted_text.h"

namespace tensorfold::scripted {

// Changes a plan on its way to the device, to show that the checks see it.
using Sabotage = std::function<void(StepPlan&)>;

struct SimSetup {
  PlannerOptions planner;
  PrefixOptions prefix;
  SimRules rules;
  int64_t queue_deadline_us = 0;
  int arrivals = 0;
  int prompt_max = 0;
  int reply_max = 0;
  int clients = 1;
  int documents = 1;  // prompts begin with one of so many texts
  int depth = 0;
  unsigned open_ended = 0;  // of 100 requests: as long as the pool lets them
  unsigned background = 0;  // of 100 requests
  unsigned cancel = 0;      // of 100 turns
  unsigned arrive = 30;     // of 100 turns
  unsigned flush = 0;       // of 1000 turns
};

struct SimOutcome {
  std::string fault;
  std::vector<std::string> digests;
  int ended = 0, whole = 0, cancelled = 0, failed = 0, late = 0, refused = 0;
  uint64_t set_aside = 0, shared_rows = 0;
  int64_t longest_wait = 0;  // steps without an admission while something waited
  int64_t wait_bound = 0;
  int64_t longest_pause = 0;  // steps in which a foreground reply that had begun got nothing
  int64_t pause_bound = 0;
};

inline SimSetup random_setup(std::mt19937_64& rng) {
  SimSetup s;
  s.planner.slots = 1 + static_cast<int>(rng() % 6);
  s.planner.prefill_rows = 8 + static_cast<int>(rng() % 300);
  s.planner.pool_blocks = 2 + static_cast<int64_t>(rng() % 8);
  if (rng() % 40 == 0) {  // as many slots and clients as there can be
    s.planner.slots = kSequencesMax;
    s.planner.pool_blocks = 40 + static_cast<int64_t>(rng() % 40);
  }
  s.planner.decoder_span = kSimWindow + static_cast<int64_t>(rng() % 40);
  s.planner.draft_rows = static_cast<int>(rng() % 6);
  s.rules.prefill_rows = s.planner.prefill_rows;
  s.rules.skill = static_cast<unsigned>(rng() % 101);
  s.rules.eos_weight = static_cast<unsigned>(rng() % 8);
  if (rng() % 25 == 0) s.rules.fail_at_step = 1 + static_cast<int>(rng() % 60);
  s.queue_deadline_us = rng() % 4 == 0 ? 3000 + static_cast<int64_t>(rng() % 80000) : INT64_MAX;
  s.arrivals = 3 + static_cast<int>(rng() % 12);
  if (s.planner.slots == kSequencesMax) s.arrivals = 100;
  s.prompt_max = 20 + static_cast<int>(rng() % 500);
  s.reply_max = 1 + static_cast<int>(rng() % 40);
  s.planner.reply_allowance = static_cast<int64_t>(rng() % 60);
  if (rng() % 4 == 0) s.open_ended = 20 + static_cast<unsigned>(rng() % 60);
  if (s.open_ended > 0) s.rules.eos_weight = std::max(1U, s.rules.eos_weight);
  if (s.open_ended > 0 && s.planner.slots < kSequencesMax && rng() % 8 == 0) {  // to the last block
    s.rules.eos_weight = 0;
    s.planner.pool_blocks = std::min<int64_t>(s.planner.pool_blocks, 5);
    s.arrivals = std::min(s.arrivals, 6);
  }
  s.clients = 1 + static_cast<int>(rng() % 4);
  s.documents = 1 + static_cast<int>(rng() % 4);
  s.depth = static_cast<int>(rng() % 6);
  s.background = static_cast<unsigned>(rng() % 80);
  s.cancel = rng() % 3 == 0 ? 10 : 1;
  s.arrive = 5 + static_cast<unsigned>(rng() % 60);
  s.flush = rng() % 4 == 0 ? 20 : 0;
  s.prefix.exact = rng() % 4 != 0;
  if (!s.prefix.exact) s.planner.decoder_span = kSimWindow;
  s.prefix.window = kSimWindow;
  s.prefix.decoder_span = s.planner.decoder_span;
  s.prefix.reuse_replies = rng() % 3 != 0;
  s.prefix.snapshot_units = rng() % 4 == 0 ? 0 : 2 + static_cast<int64_t>(rng() % 30);
  return s;
}

// Steps until one of the open sequences has ended, when none is admitted meanwhile: all rows that
// may lack, at the least that a step fills, then the longest reply (docs/scheduling.md).
inline int64_t admission_bound_steps(const PlannerOptions& o, int64_t reply_max) {
  const int64_t positions = o.pool_blocks * kBlockPositions;
  const int64_t generated = kGeneratedRowsMax - (o.slots - 1) * (1 + o.draft_rows);
  const int64_t least = std::min<int64_t>(o.prefill_rows / 2, generated);
  return (positions + least - 1) / least + o.slots + reply_max + 1;
}

// Until a sequence that was set aside runs again: the turns of others before it, each of them after
// one admission (docs/scheduling.md).
inline int64_t pause_bound_steps(int64_t wait_bound, const PlannerOptions& o, int clients) {
  return 2 * (clients + o.slots + 1) * wait_bound;
}

// Runs the plans, and the same ones from their encoded form on a second device.
class LoggedDevice final : public StepRunner {
 public:
  LoggedDevice(int64_t blocks, const SimRules& rules, Sabotage sabotage)
      : head(blocks, rules), replay(blocks, rules), sabotage_(std::move(sabotage)) {}

  Status run(const StepPlan& plan, std::vector<SampledTokens>& results) override {
    const std::vector<std::byte> log = encode_step_plan(plan);
    digests.push_back(step_plan_digest(plan));
    auto logged = decode_step_plan(log);
    if (!logged.ok())
      return note("a plan of its own does not decode: " + logged.status().message());
    if (encode_step_plan(*logged) != log) return note("a decoded plan encodes to other bytes");
    if (sabotage_) sabotage_(*logged);
    TF_RETURN_IF_ERROR(head.run(*logged, results));
    std::vector<SampledTokens> again;
    TF_RETURN_IF_ERROR(replay.run(*logged, again));
    for (size_t i = 0; i < results.size(); ++i) {
      if (again[i].accepted != results[i].accepted || again[i].drafts != results[i].drafts ||
          again[i].scores.size() != results[i].scores.size())
        return note("a plan from the log gave other tokens");
    }
    return ok_status();
  }

  FakeDevice head, replay;
  std::string fault;
  std::vector<std::string> digests;

 private:
  Status note(const std::string& what) {
    fault = what;
    return internal_error(what);
  }
  const Sabotage sabotage_;
};

class Schedule {
 public:
  explicit Schedule(uint64_t seed, Sabotage sabotage = nullptr)
      : rng_(seed),
        setup_(random_setup(rng_)),
        capacity_{setup_.planner.pool_blocks * kBlockPositions, setup_.planner.pool_blocks},
        device_(setup_.planner.pool_blocks, setup_.rules, std::move(sabotage)),
        policy_(make_fixed_depth_policy(setup_.depth)),
        loop_(loop_options(), {device_, text_, *policy_, clock_, null_log(), board_}) {
    const int64_t longest = setup_.open_ended > 0 ? capacity_.positions_max() : setup_.reply_max;
    // Every fourth schedule has prompts that are scored. They fill more slowly than the bounds
    // count.
    scored_ = seed % 4 == 3 ? 30 : 0;
    out_.wait_bound = admission_bound_steps(setup_.planner, longest) * (scored_ > 0 ? 64 : 1);
    out_.pause_bound = pause_bound_steps(out_.wait_bound, setup_.planner, setup_.clients);
  }

  SimOutcome run() {
    constexpr int kTurnsMax = 20000;
    int turns = 0;
    while ((submitted_ < setup_.arrivals || !loop_.idle()) && !loop_.failed()) {
      if (++turns > kTurnsMax) {
        out_.fault = "the schedule does not end";
        break;
      }
      turn();
    }
    close();
    return std::move(out_);
  }

 private:
  struct Asked {
    std::shared_ptr<KeepingSink> sink;
    RequestId id = 0;
    std::vector<TokenId> prompt;
    int64_t most = 0;
    bool background = false, scored = false;
    size_t got = 0;  // tokens and positions that it has been told of
    int64_t still = 0;
  };

  LoopOptions loop_options() const {
    LoopOptions o;
    o.planner = setup_.planner;
    o.prefix = setup_.prefix;
    o.vocab = kVocab;
    o.queue_deadline_us = setup_.queue_deadline_us;
    return o;
  }
  bool chance(unsigned percent) { return rng_() % 100 < percent; }

  void turn() {
    clock_.advance_us(static_cast<int64_t>(rng_() % 3000));
    if (submitted_ < setup_.arrivals && chance(setup_.arrive)) arrive();
    if (!asked_.empty() && chance(setup_.cancel)) book_.cancel(asked_[rng_() % asked_.size()].id);
    if (rng_() % 1000 < setup_.flush) loop_.flush_cache(false);
    const int64_t before = device_.head.admissions;
    const bool waits = waiting() > 0;
    loop_.turn();
    still_ = waits && device_.head.admissions == before ? still_ + 1 : 0;
    out_.longest_wait = std::max(out_.longest_wait, still_);
    if (still_ > out_.wait_bound && out_.fault.empty())
      out_.fault = "something waits for " + std::to_string(still_) + " steps, more than the bound";
    for (Asked& a : asked_) watch(a);
  }

  void watch(Asked& a) {
    const auto [accepted, finished, got] = a.sink->so_far();
    if (!accepted || finished || a.background) return;
    a.still = got == a.got ? a.still + 1 : 0;
    a.got = got;
    out_.longest_pause = std::max(out_.longest_pause, a.still);
    if (a.still > out_.pause_bound && out_.fault.empty())
      out_.fault = "a reply stands still for " + std::to_string(a.still) + " steps";
  }

  int waiting() const {
    int n = 0;
    for (const Asked& a : asked_) {
      const auto [accepted, finished, got] = a.sink->so_far();
      n += !accepted && !finished;
    }
    return n;
  }
  Request make_request() {
    Request r;
    r.prompt.ids.emplace();
    std::mt19937_64 document(rng_() % static_cast<uint64_t>(setup_.documents));
    const auto shared = static_cast<int>(rng_() % static_cast<uint64_t>(setup_.prompt_max));
    for (int i = 0; i < shared; ++i)
      r.prompt.ids->push_back(static_cast<TokenId>(8 + document() % 50));
    for (uint64_t i = 1 + rng_() % 20; i > 0; --i)
      r.prompt.ids->push_back(static_cast<TokenId>(8 + rng_() % 50));
    if (chance(6)) r.prompt.ids->at(rng_() % r.prompt.ids->size()) = kPoison;
    r.max_tokens = static_cast<int>(rng_() % static_cast<uint64_t>(setup_.reply_max + 1));
    if (chance(4)) r.max_tokens = 1 << 20;  // can't ever fit
    if (chance(setup_.open_ended)) r.max_tokens.reset();
    r.background = chance(setup_.background);
    r.label =
        std::string(1, static_cast<char>('a' + rng_() % static_cast<uint64_t>(setup_.clients)));
    if (chance(10)) r.cache_salt = "salt";
    if (scored_ > 0 && chance(scored_)) r.prompt_logprobs = 1;
    if (chance(8)) r.deadline_us = clock_.monotonic_us() + static_cast<int64_t>(rng_() % 60000);
    return r;
  }

  void arrive() {
    ++submitted_;
    Submission s;
    s.request = make_request();
    Asked asked;
    asked.sink = std::make_shared<KeepingSink>();
    asked.prompt = *s.request.prompt.ids;
    asked.background = s.request.background;
    asked.scored = s.request.prompt_logprobs >= 0;
    s.ticket = book_.open(asked.sink, SIZE_MAX);
    asked.id = s.ticket->id();
    s.submitted_us = clock_.monotonic_us();
    s.prompt = *text_.encode(s.request.prompt);
    auto price = price_request(capacity_, static_cast<int64_t>(s.prompt.ids.size()),
                               s.request.max_tokens, true);
    if (price.ok()) asked.most = price->reply_tokens;
    asked_.push_back(asked);
    if (!price.ok()) return s.ticket->finish(price.status(), FinishReason::kFailed, {});
    s.price = *price;
    loop_.take(std::move(s));
  }

  void close() {
    for (const std::string& f : {device_.head.fault, device_.replay.fault, device_.fault}) {
      if (out_.fault.empty()) out_.fault = f;
    }
    for (const Asked& a : asked_) check_reply(a);
    out_.digests = std::move(device_.digests);
    out_.set_aside = board_.preemptions.load();
    out_.shared_rows = static_cast<uint64_t>(device_.head.rows_shared);
    if (!out_.fault.empty()) return;
    if (book_.size() != 0) out_.fault = "a request is still open";
    if (loop_.failed()) return;
    const EngineStats stats = board_.snapshot(clock_);
    if (device_.head.open_slots() != 0 || stats.slots_busy != 0) out_.fault = "a slot leaked";
    if (device_.head.blocks_referenced() != 0 || stats.pool_tokens_used != 0)
      out_.fault = "a block leaked";
  }

  void check_reply(const Asked& a) {
    const Reply r = a.sink->reply();
    if (r.finished != 1 && out_.fault.empty()) out_.fault = "a request did not end once";
    ++out_.ended;
    switch (r.status.code()) {
      case StatusCode::kOk:
        ++out_.whole;
        break;
      case StatusCode::kCancelled:
        ++out_.cancelled;
        break;
      case StatusCode::kInvalidArgument:
        ++out_.refused;
        break;
      case StatusCode::kInternal:
        ++out_.failed;
        break;
      default:
        ++out_.late;
    }
    const auto wanted = expected_reply(a.prompt, a.most, setup_.rules);
    const bool begins =
        r.ids.size() <= wanted.size() && std::equal(r.ids.begin(), r.ids.end(), wanted.begin());
    if (!out_.fault.empty()) return;
    if (!begins || (r.status.ok() && r.ids.size() != wanted.size()))
      out_.fault = "a reply is not what it would be alone";
    if (a.scored && r.status.ok() && !scored_whole(a.prompt, r.prompt))
      out_.fault = "a prompt's tokens are not scored as they stand";
    if (r.accepted && r.stats.usage.completion_tokens != static_cast<int>(r.ids.size()))
      out_.fault = "usage counts other tokens than were sent";
  }

  // Each token once, with what follows from those before it.
  static bool scored_whole(const std::vector<TokenId>& prompt,
                           const std::vector<TokenLogprob>& scores) {
    if (scores.size() != prompt.size()) return false;
    uint64_t digest = 1;
    for (size_t i = 0; i < prompt.size(); ++i) {
      const uint64_t said = sim_digest(digest, prompt[i]);
      const float logprob = i == 0 ? 0.0F : -static_cast<float>(said % 1000);
      if (scores[i].id != prompt[i] || scores[i].logprob != logprob) return false;
      digest = said;
    }
    return true;
  }

  std::mt19937_64 rng_;
  const SimSetup setup_;
  const Capacity capacity_;
  ManualClock clock_;
  ScriptedText text_;
  LoggedDevice device_;
  std::unique_ptr<DepthPolicy> policy_;
  StatsBoard board_;
  TicketBook book_;
  EngineLoop loop_;
  std::vector<Asked> asked_;
  int submitted_ = 0;
  unsigned scored_ = 0;  // of 100 requests
  int64_t still_ = 0;
  SimOutcome out_;
};

}  // namespace tensorfold::scripted
