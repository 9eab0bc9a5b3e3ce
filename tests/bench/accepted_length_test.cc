// How many drafts the embedded model's drafter gets right, by place, on fixed prompts: not fewer
// than when its traces were recorded. A drafter whose state is wrong still gives right replies,
// only slowly, and nothing else would tell. Planted fault: the drafter starts from the token
// before.
#include <boost/test/unit_test.hpp>
#include <fstream>
#include <memory>
#include <sstream>

#include "tests/bench/sim/record.h"
#include "tests/engine/passing_model.h"

using namespace tensorfold;
using namespace tensorfold::sim;

namespace {

constexpr const char* kModelPath = TF_SOURCE_DIR "/packaging/tiny-model/model";
constexpr size_t kReplies = 2;  // of each kind
constexpr double kShareLeast = 0.97;

// Passes everything on, but drafts behind the token before the last.
class LateDrafter final : public PassingModel {
 public:
  using PassingModel::PassingModel;
  Status draft(std::span<const DraftRequest> requests, std::vector<DraftResult>& results,
               ForwardProbe* probe) override {
    std::vector<DraftRequest> late(requests.begin(), requests.end());
    for (DraftRequest& r : late) r.token = inner_.ids(r.slot).back();
    return inner_.draft(late, results, probe);
  }
};

// Of points: the mean number of right drafts, and the share of rounds in which those up to each
// place are all right.
struct Accepted {
  double drafts = 0;
  std::array<double, kDraftRowsMax> survival = {};
};

Accepted accepted(std::span<const TracePoint> points) {
  Accepted a;
  for (const TracePoint& p : points) {
    a.drafts += p.right;
    for (int32_t i = 0; i < p.right; ++i) a.survival[static_cast<size_t>(i)] += 1;
  }
  const auto n = static_cast<double>(points.size());
  a.drafts /= n;
  for (double& s : a.survival) s /= n;
  return a;
}

std::vector<Trace> recorded_then() {
  std::ifstream in(TF_TEST_DATA "/bench/draft_traces.txt");
  std::ostringstream text;
  text << in.rdbuf();
  auto traces = decode_traces(text.str());
  BOOST_REQUIRE_MESSAGE(traces.ok(), traces.status().message());
  return std::move(*traces);
}

// Of the replies that are recorded now, what was recorded then.
std::span<const TracePoint> first_replies(const Trace& trace) {
  size_t replies = 0;
  size_t end = 0;
  while (end < trace.points.size() && (replies += trace.points[end].begins) <= kReplies) ++end;
  return std::span(trace.points).first(end);
}

// Kinds of text whose drafts are right less often than they were.
int worse(const RecordPart& what) {
  const auto now = record_traces(kModelPath, what);
  BOOST_REQUIRE_MESSAGE(now.ok(), now.status().message());
  BOOST_REQUIRE(now->size() >= 3U);
  const std::vector<Trace> then = recorded_then();
  int fewer = 0;
  for (size_t i = 0; i < now->size(); ++i) {
    BOOST_REQUIRE((*now)[i].name == then[i].name);
    const Accepted is = accepted((*now)[i].points);
    const Accepted was = accepted(first_replies(then[i]));
    BOOST_REQUIRE(was.drafts > 1);
    bool less = is.drafts < kShareLeast * was.drafts;
    for (size_t k = 0; k < is.survival.size(); ++k) {
      less |= is.survival[k] < kShareLeast * was.survival[k];
      BOOST_TEST_MESSAGE(then[i].name << ", place " << k + 1 << ": " << is.survival[k] << ", was "
                                      << was.survival[k]);
    }
    fewer += less;
  }
  return fewer;
}

}  // namespace

BOOST_AUTO_TEST_CASE(drafts_are_right_as_often_as_they_were) {
  BOOST_TEST(worse({kReplies, {}}) == 0);
}

BOOST_AUTO_TEST_CASE(a_drafter_one_token_late_is_noticed) {
  std::unique_ptr<LateDrafter> late;
  const auto view = [&](Model& model) -> Model& {
    late = std::make_unique<LateDrafter>(model);
    return *late;
  };
  BOOST_TEST(worse({kReplies, view}) == 3);
}
