// Masks that take long: they are made beside the steps, the streams next to them go on, and every
// reply equals its serial reference bit for bit. Work is counted, not timed. With a planted fault:
// a mask that comes back is another state's. And drafts that a reply's form forces: fewer rounds,
// the same reply.
#include <deque>
#include <random>

#include "engine/constraint_service.h"
#include "engine/grammar/constraint.h"
#include "tests/engine/loop_harness.h"
#include "tests/engine/scripted_vocabulary.h"

using namespace tensorfold;
using namespace tensorfold::scripted;

namespace {

constexpr int64_t kSlowWork = 50'000'000;  // units of one mask of a slow form

std::shared_ptr<const MaskSource> form(const std::string& rules, bool thinking = false) {
  static ConstraintService service(scripted_vocabulary());
  grammar::ConstraintSpec spec;
  spec.kind = grammar::ConstraintKind::kEbnf;
  spec.text = rules;
  const auto made = service.compile(spec, thinking);
  BOOST_REQUIRE_MESSAGE(made.ok(), made.status().message());
  return made->source;
}

const char* const kForms[] = {"root ::= \"{\" (root | [a-c])* \"}\"",
                              "root ::= [G-Z]{2,5} (\"_\" [a-z]+){1,3}",
                              "root ::= (\"ab\" | \"a\" | \"b\"){4,30} \"z\"", "root ::= [a-z]*"};

// Jobs in the order in which they came; run when the test says so.
struct Elsewhere {
  std::deque<std::function<void()>> jobs;
  bool inside = false;  // a job is running

  void run_one() {
    if (jobs.empty()) return;
    const std::function<void()> job = std::move(jobs.front());
    jobs.pop_front();
    inside = true;
    job();
    inside = false;
  }
};

// Every mask of a new state takes kSlowWork; counts where it was spent.
class Slow final : public MaskSource {
 public:
  Slow(std::shared_ptr<const MaskSource> inner, const Elsewhere& elsewhere, bool fault)
      : inner_(std::move(inner)), elsewhere_(elsewhere), fault_(fault) {}
  MaskState start() const override { return inner_->start(); }
  MaskState next(MaskState state, int32_t token) const override {
    BOOST_REQUIRE(waiting_ == 0);  // while a job is out nothing may be asked
    return inner_->next(state, token);
  }
  bool mask(MaskState state, std::span<uint32_t> bits) const override {
    (elsewhere_.inside ? far_ : near_) += kSlowWork;
    waiting_ = 0;
    known_.push_back(state);
    return inner_->mask(state, bits);
  }
  MaskFound mask_within(MaskState state, std::span<uint32_t> bits, int64_t& work) const override {
    BOOST_REQUIRE(waiting_ == 0);
    if (std::find(known_.begin(), known_.end(), state) == known_.end()) {
      near_ += work;
      work = 0;
      ++waiting_;
      return MaskFound::kNotYet;
    }
    --work;
    ++near_;
    const MaskState shown = fault_ && known_.size() > 1 ? known_.front() : state;
    return inner_->mask(shown, bits) ? MaskFound::kSome : MaskFound::kNone;
  }
  int64_t near_work() const { return near_; }
  int64_t far_work() const { return far_; }

 private:
  const std::shared_ptr<const MaskSource> inner_;
  const Elsewhere& elsewhere_;
  const bool fault_;
  mutable std::vector<MaskState> known_;
  mutable int waiting_ = 0;
  mutable int64_t near_ = 0, far_ = 0;
};

Request random_request(std::mt19937_64& rng) {
  Request r;
  r.prompt.ids.emplace();
  for (uint64_t n = 1 + rng() % 40; n > 0; --n)
    r.prompt.ids->push_back(static_cast<TokenId>(8 + rng() % 50));
  r.sampling.temperature = rng() % 3 == 0 ? 0.0 : 1.0;
  r.sampling.seed = rng();
  r.max_tokens = static_cast<int>(8 + rng() % 40);
  return r;
}

std::shared_ptr<KeepingSink> submit(LoopHarness& h, const Request& request,
                                    std::shared_ptr<const MaskSource> mask) {
  auto sink = std::make_shared<KeepingSink>();
  Submission s;
  s.ticket = h.book.open(sink, SIZE_MAX);
  s.request = request;
  s.prompt = *h.text.encode(s.request.prompt);
  s.price = *price_request(h.capacity, static_cast<int64_t>(s.prompt.ids.size()),
                           s.request.max_tokens, true);
  s.mask = std::move(mask);
  h.loop.take(std::move(s));
  return sink;
}

Reply serial(const Request& request, std::shared_ptr<const MaskSource> mask) {
  LoopScript script;
  script.masks.forced_drafts = false;
  LoopHarness h(script);
  Request alone = request;
  alone.draft = false;
  const auto sink = submit(h, alone, std::move(mask));
  h.run_dry();
  return sink->reply();
}

bool same(const Reply& a, const Reply& b) {
  return a.ids == b.ids && a.status.code() == b.status.code() && a.reason == b.reason;
}

// Turns until all is done; a job that waits elsewhere runs after every `patience` turns.
void run(LoopHarness& h, Elsewhere& elsewhere, int patience,
         const std::function<void(int)>& behind_turn = {}) {
  int turns = 0;
  while (!h.loop.idle() && !h.loop.failed()) {
    h.clock.advance_us(1000);
    h.loop.turn();
    if (behind_turn) behind_turn(turns);
    BOOST_REQUIRE(++turns < 20000);
    if (turns % patience == 0) elsewhere.run_one();
  }
}

struct Outcome {
  bool same = true;      // as the serial references
  int went_on = 0;       // turns with rows of others while the slow form's mask was awaited
  uint64_t put_off = 0;  // masks made elsewhere
};

// A slow form among three streams without one.
Outcome slow_among_others(uint64_t seed, bool fault) {
  std::mt19937_64 rng(seed);
  Elsewhere elsewhere;
  LoopScript script;
  script.fixed_depth = static_cast<int>(rng() % 6);
  script.model.skill = static_cast<unsigned>(rng() % 101);
  script.masks.elsewhere = [&](std::function<void()> job) {
    elsewhere.jobs.push_back(std::move(job));
  };
  LoopHarness h(script);
  const char* const rules = kForms[rng() % std::size(kForms)];
  const auto slow = std::make_shared<Slow>(form(rules), elsewhere, fault);
  const std::vector<std::shared_ptr<const MaskSource>> masks = {slow, nullptr, form(kForms[0]),
                                                                form(kForms[1])};
  std::vector<Request> requests;
  std::vector<std::shared_ptr<KeepingSink>> sinks;
  for (const auto& mask : masks) {
    requests.push_back(random_request(rng));
    sinks.push_back(submit(h, requests.back(), mask));
  }
  Outcome out;
  int64_t before = 0, rows = 0;
  run(h, elsewhere, 7, [&](int) {
    // What one turn spends on the slow form stays within the step's budget.
    BOOST_REQUIRE(slow->near_work() - before <= script.masks.step_work);
    before = slow->near_work();
    if (!elsewhere.jobs.empty() && h.runner.rows > rows) ++out.went_on;
    rows = h.runner.rows;
  });
  BOOST_REQUIRE(slow->far_work() >= kSlowWork);
  for (size_t i = 0; i < requests.size(); ++i)
    out.same =
        out.same && same(sinks[i]->reply(), serial(requests[i], i == 0 ? form(rules) : masks[i]));
  out.put_off = h.board.masks_put_off.load();
  return out;
}

}  // namespace

BOOST_AUTO_TEST_CASE(a_slow_form_holds_up_no_other_stream) {
  int went_on = 0;
  uint64_t put_off = 0;
  for (uint64_t seed = 1; seed <= 40; ++seed) {
    const Outcome out = slow_among_others(seed, false);
    BOOST_REQUIRE(out.same);
    went_on += out.went_on;
    put_off += out.put_off;
  }
  BOOST_TEST(went_on > 400);
  BOOST_TEST(put_off > 100U);
}

BOOST_AUTO_TEST_CASE(a_planted_fault_of_what_comes_back_is_seen) {
  int seen = 0;
  for (uint64_t seed = 1; seed <= 20; ++seed) seen += slow_among_others(seed, true).same ? 0 : 1;
  BOOST_TEST(seen > 3);
}

// The matcher's own budget: so small that most masks are put off, some made on a thread.
BOOST_AUTO_TEST_CASE(masks_past_their_budget_are_the_same_masks) {
  for (const bool thread : {false, true}) {
    std::mt19937_64 rng(21);
    uint64_t put_off = 0;
    for (int round = 0; round < 25; ++round) {
      Elsewhere elsewhere;
      LoopScript script;
      script.fixed_depth = static_cast<int>(rng() % 6);
      script.model.skill = static_cast<unsigned>(rng() % 101);
      script.masks.work = static_cast<int64_t>(1 + rng() % 400);
      if (!thread) {
        script.masks.elsewhere = [&](std::function<void()> job) {
          elsewhere.jobs.push_back(std::move(job));
        };
      }
      LoopHarness h(script);
      // A service of their own: nothing is remembered from the round before.
      ConstraintService service(scripted_vocabulary());
      std::vector<Request> requests;
      std::vector<std::shared_ptr<const MaskSource>> masks;
      std::vector<std::shared_ptr<KeepingSink>> sinks;
      for (const char* rules : {kForms[0], kForms[0], kForms[1], kForms[2]}) {
        grammar::ConstraintSpec spec;
        spec.kind = grammar::ConstraintKind::kEbnf;
        spec.text = rules;
        masks.push_back(service.compile(spec, false)->source);
        requests.push_back(random_request(rng));
        sinks.push_back(submit(h, requests.back(), masks.back()));
      }
      run(h, elsewhere, 2);
      put_off += h.board.masks_put_off.load();
      for (size_t i = 0; i < requests.size(); ++i)
        BOOST_REQUIRE(same(sinks[i]->reply(), serial(requests[i], masks[i])));
    }
    BOOST_TEST(put_off > 50U);
  }
}

BOOST_AUTO_TEST_CASE(what_the_form_forces_needs_no_drafter) {
  const char* const rules =
      "root ::= \"name_\" [a-c] \"_description_\" [a-z]{2,4} \"_status_\" (\"ab\" | \"z\") "
      "\"_end\"";
  std::mt19937_64 rng(31);
  int with = 0, without = 0, serial_rounds = 0;
  uint64_t drafted = 0, accepted = 0;
  for (int round = 0; round < 40; ++round) {
    Request request = random_request(rng);
    request.max_tokens = 60;
    Reply replies[2];
    for (const bool forced : {false, true}) {
      LoopScript script;
      script.fixed_depth = static_cast<int>(rng() % 3);
      script.model.skill = 10;
      script.masks.forced_drafts = forced;
      LoopHarness h(script);
      const auto sink = submit(h, request, form(rules));
      h.run_dry();
      replies[forced ? 1 : 0] = sink->reply();
      (forced ? with : without) += sink->reply().stats.rounds;
      if (!forced) BOOST_REQUIRE(h.board.forced_drafted.load() == 0U);
      drafted += h.board.forced_drafted.load();
      accepted += h.board.forced_accepted.load();
      BOOST_REQUIRE(h.board.accepted.load() >= h.board.forced_accepted.load());
      // One way only: without a drafter's drafts before them they cannot be wrong.
      if (script.fixed_depth == 0)
        BOOST_REQUIRE(h.board.forced_accepted.load() == h.board.forced_drafted.load());
    }
    const Reply alone = serial(request, form(rules));
    BOOST_REQUIRE(same(replies[0], alone));
    BOOST_REQUIRE(same(replies[1], alone));
    serial_rounds += alone.stats.rounds;
  }
  BOOST_TEST_MESSAGE("rounds: serial " << serial_rounds << ", drafter " << without
                                       << ", forced as well " << with);
  BOOST_TEST(with * 2 < without);
  BOOST_TEST(drafted > 500U);
  BOOST_TEST(accepted * 3 > drafted);
}
