// Steps run from recorded launches against steps queued launch by launch: two models do the same
// random steps, sequences of one to six rows each, some rejected, prompts in between, contexts that
// grow past a bucket, drafts after each step. Every logit and every draft must be the same bits.
// In some steps the one with recordings is asked for tokens in place of logits: they must be what
// the host's sampler draws from the other's logits. Over the library it drafts as a device that
// chooses tokens does, the other as one that doesn't.
//
// Runs on the device library that CMake names (graph_host_device.cc) or, with
// TENSORFOLD_TEST_DEVICE, on a GPU. With TENSORFOLD_TEST_FAULT a table is kept with the recorded
// arguments, which the comparison must notice.
#include <algorithm>
#include <boost/test/unit_test.hpp>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <random>

#include "engine/cluster/collective.h"
#include "engine/model/graph_table.h"
#include "engine/model/model.h"
#include "tests/engine/model/drawn_token.h"
#include "tests/engine/model/golden_support.h"

namespace tensorfold::test {
namespace {

constexpr int kSlots = 4;
constexpr int64_t kContext = 2560;  // two buckets
constexpr int kBlocksPerSlot = kContext / kBlockPositions;

struct HostDevice {
  HostDevice() {
    setenv("TENSORFOLD_TEST_SAMPLES", "on", 1);
    if (std::getenv("TENSORFOLD_TEST_DEVICE") == nullptr)
      setenv("TENSORFOLD_CUDA_LIBRARY", TF_GRAPH_DEVICE_LIBRARY, 1);
    else
      test_device();  // skips the program where there is none
  }
};
BOOST_TEST_GLOBAL_FIXTURE(HostDevice);

struct Session {
  std::unique_ptr<Collective> collective = make_single_collective();
  std::unique_ptr<Model> model;

  Session(const char* graphs, int64_t graph_bytes) {
    setenv("TENSORFOLD_CUDA_GRAPHS", graphs, 1);
    ModelOptions options;
    const char* folder = std::getenv("TENSORFOLD_TEST_MODEL");
    options.model_path = folder != nullptr ? folder : golden_path("mini_native");
    options.slots = kSlots;
    options.context = kContext;
    options.rows_max = 640;
    options.threads = 1;
    options.device = "cuda";
    options.graph_bytes = graph_bytes;
    Result<std::unique_ptr<Model>> loaded = Model::load(options, *collective);
    BOOST_REQUIRE_MESSAGE(loaded.ok(), loaded.status().message());
    model = std::move(*loaded);
  }
};

// The same steps on both.
class Pair {
 public:
  explicit Pair(int64_t graph_bytes, uint64_t seed)
      : queued_("off", 0), recorded_("on", graph_bytes), random_(seed) {
    draft_rows_ = std::clamp(queued_.model->config().dspark.block_size, 1, 3);
  }

  const Model& recorded() const { return *recorded_.model; }
  int differing = 0;
  int64_t rows = 0;

  void open(SlotId slot, int prompt) {
    plan_.commands.push_back({CacheCommand::Kind::kOpenSlot, slot, 0, 0});
    for (int b = 0; b < kBlocksPerSlot; ++b)
      plan_.commands.push_back(
          {CacheCommand::Kind::kAppendBlock, slot, slot * kBlocksPerSlot + b, 0});
    length_[slot] = 0;
    while (length_[slot] < prompt) {  // in chunks that the buffers hold
      const int count = static_cast<int>(std::min<int64_t>(512, prompt - length_[slot]));
      add(slot, count, RowClass::kPrompt, 1);
      length_[slot] += count;
      if (length_[slot] < prompt) step();
    }
  }
  void close(SlotId slot) {
    plan_.commands.push_back({CacheCommand::Kind::kCloseSlot, slot, 0, 0});
    length_[slot] = -1;
  }
  int pick(int least, int most) { return std::uniform_int_distribution<int>(least, most)(random_); }

  // One step of generated rows of some slots; now and then a prompt in between.
  void random_step() {
    for (SlotId slot = 0; slot < kSlots; ++slot) {
      if (length_[slot] >= 0 && (length_[slot] + 8 > kContext || pick(0, 60) == 0)) close(slot);
      if (length_[slot] < 0) {
        if (pick(0, 2) == 0) open(slot, pick(1, 60));
        continue;
      }
      if (pick(0, 3) == 0) continue;
      const int count = pick(0, 2) == 0 ? 1 : pick(1, 6);
      add(slot, count, RowClass::kGenerated, count);
      accepted_.emplace_back(slot, length_[slot] + pick(1, count));
    }
    step();
    draft();
  }

  void step() {
    StepLogits a, b;
    if (pick(0, 1) == 0) b.ask = some_rows();
    setenv("TENSORFOLD_TEST_SAMPLES", "off", 1);
    const Status queued = queued_.model->forward(plan_, {}, a);
    setenv("TENSORFOLD_TEST_SAMPLES", "on", 1);
    const Status recorded = recorded_.model->forward(plan_, {}, b);
    BOOST_REQUIRE_MESSAGE(queued.ok(), queued.message());
    BOOST_REQUIRE_MESSAGE(recorded.ok(), recorded.message());
    plan_ = {};
    BOOST_REQUIRE_EQUAL(b.chosen, !b.ask.empty());
    if (!b.chosen) BOOST_REQUIRE_EQUAL(a.values.size(), b.values.size());
    const auto vocab = static_cast<size_t>(queued_.model->config().vocab_size);
    for (size_t r = 0; r < a.rows.size(); ++r) {
      ++rows;
      BOOST_REQUIRE(a.rows[r].slot == b.rows[r].slot && a.rows[r].position == b.rows[r].position);
      const std::span<const float> row(&a.values[r * vocab], vocab);
      if (b.chosen)
        differing += b.tokens[r] != drawn_token(row, b.ask[r]) ? 1 : 0;
      else
        differing += std::memcmp(row.data(), &b.values[r * vocab], vocab * 4) != 0 ? 1 : 0;
    }
    for (const auto& [slot, length] : accepted_) {
      BOOST_REQUIRE(queued_.model->accept(slot, length).ok());
      BOOST_REQUIRE(recorded_.model->accept(slot, length).ok());
      length_[slot] = length;
    }
  }

  void draft() {
    std::vector<DraftRequest> requests;
    for (const auto& [slot, length] : accepted_)
      requests.push_back({slot, length - 1, pick(3, 200), draft_rows_});
    accepted_.clear();
    std::vector<DraftResult> a, b;
    setenv("TENSORFOLD_TEST_SAMPLES", "off", 1);
    BOOST_REQUIRE(queued_.model->draft(requests, a).ok());
    setenv("TENSORFOLD_TEST_SAMPLES", "on", 1);
    BOOST_REQUIRE(recorded_.model->draft(requests, b).ok());
    for (size_t i = 0; i < a.size(); ++i) {
      differing += a[i].tokens == b[i].tokens ? 0 : 1;
      differing += std::memcmp(a[i].confidence.data(), b[i].confidence.data(),
                               a[i].confidence.size() * 4) == 0
                       ? 0
                       : 1;
    }
  }

 private:
  // What the plan's rows with logits may ask for.
  std::vector<SampleRow> some_rows() {
    std::vector<SampleRow> ask;
    for (const Slice& s : plan_.slices)
      for (int i = 0; i < s.logits_rows; ++i) {
        SampleRow row;
        row.seed = random_();
        row.position = pick(0, 5000);
        row.choice_index = pick(0, 3);
        row.greedy = pick(0, 2) == 0 ? 1 : 0;
        row.temperature = 0.1f * static_cast<float>(pick(1, 20));
        row.min_p = pick(0, 2) == 0 ? 0.05f : 0.0f;
        ask.push_back(row);
      }
    return ask;
  }
  void add(SlotId slot, int count, RowClass row_class, int logits_rows) {
    Slice s;
    s.row_class = row_class;
    s.slot = slot;
    s.first_position = length_[slot];
    s.rows = s.decoder_rows = count;
    s.token_offset = static_cast<int32_t>(plan_.tokens.size());
    s.logits_rows = logits_rows;
    for (int i = 0; i < count; ++i) plan_.tokens.push_back(pick(3, 200));
    plan_.slices.push_back(s);
  }

  Session queued_, recorded_;
  std::mt19937_64 random_;
  int32_t draft_rows_ = 1;
  StepPlan plan_;
  int64_t length_[kSlots] = {-1, -1, -1, -1};
  std::vector<std::pair<SlotId, int64_t>> accepted_;  // new lengths
};

int64_t bytes_of_a_step = 0;  // as the first case saw it

bool faulty() { return std::getenv("TENSORFOLD_TEST_FAULT") != nullptr; }

void check_differing(const Pair& pair) {
  if (faulty())
    BOOST_CHECK_MESSAGE(pair.differing > 0, "the planted fault went unnoticed");
  else
    BOOST_CHECK_EQUAL(pair.differing, 0);
}

}  // namespace

BOOST_AUTO_TEST_CASE(recorded_steps_equal_queued_ones) {
  Pair pair(kGraphBytesMax, 20261201);
  if (!faulty()) {
    pair.open(0, 2030);  // grows past the first bucket
    pair.step();
  }
  for (int i = 0; i < (faulty() ? 40 : 90); ++i) pair.random_step();
  check_differing(pair);
  if (faulty()) return;
  const StepGraphStats s = pair.recorded().graphs();
  std::printf("%lld rows: %lld steps queued, %lld run from %lld recordings, %lld bytes\n",
              static_cast<long long>(pair.rows), static_cast<long long>(s.queued),
              static_cast<long long>(s.runs), static_cast<long long>(s.recorded),
              static_cast<long long>(s.bytes));
  BOOST_CHECK_GE(s.runs, 30);
  BOOST_CHECK_GE(s.recorded, 8);
  BOOST_CHECK_EQUAL(s.refused, 0);
  BOOST_CHECK_EQUAL(s.graphs, s.recorded);
  bytes_of_a_step = s.bytes / std::max<int64_t>(s.recorded, 1);
}

// A model takes all its memory when it is loaded: prompts, generated rows, drafts and recordings
// come by with what is there.
BOOST_AUTO_TEST_CASE(steps_take_no_device_memory) {
  if (faulty() || std::getenv("TENSORFOLD_TEST_DEVICE") != nullptr) return;
  Pair pair(kGraphBytesMax, 11);
  setenv("TENSORFOLD_TEST_MEMORY", "none", 1);
  pair.open(0, 600);
  pair.step();
  for (int i = 0; i < 25; ++i) pair.random_step();
  unsetenv("TENSORFOLD_TEST_MEMORY");
  check_differing(pair);
  BOOST_CHECK_GE(pair.recorded().graphs().runs, 5);
}

// Room for a few steps only: they make way for each other all the time.
BOOST_AUTO_TEST_CASE(steps_make_way_for_each_other) {
  if (faulty()) return;
  const int64_t room = bytes_of_a_step * 5 / 2;
  Pair pair(room, 7);
  for (int i = 0; i < 35; ++i) pair.random_step();
  check_differing(pair);
  const StepGraphStats s = pair.recorded().graphs();
  BOOST_CHECK_GE(s.evicted, 3);
  BOOST_CHECK_LE(s.bytes, room);
}

BOOST_AUTO_TEST_CASE(what_cannot_be_recorded_is_queued) {
  if (faulty() || std::getenv("TENSORFOLD_TEST_DEVICE") != nullptr) return;
  setenv("TENSORFOLD_TEST_GRAPHS", "refuse", 1);
  Pair pair(kGraphBytesMax, 9);
  for (int i = 0; i < 30; ++i) pair.random_step();
  unsetenv("TENSORFOLD_TEST_GRAPHS");
  check_differing(pair);
  const StepGraphStats s = pair.recorded().graphs();
  BOOST_CHECK_GE(s.refused, 3);
  BOOST_CHECK_EQUAL(s.runs, 0);
}

}  // namespace tensorfold::test
