// Row invariance over many random ragged steps: sequences of a random model come and go, each step
// a random mix of prompt chunks, single rows and verify rows of which some are rejected. Every
// logit row must equal, bit for bit, what the sequence gets alone, one row a step.
//
// Runs on TENSORFOLD_TEST_DEVICE, over the model folder TENSORFOLD_TEST_MODEL or the recorded small
// model. With TENSORFOLD_TEST_FAULT the library under test holds a fault that the comparison must
// notice: more than eight rows are summed in another order, or rows go into the wrong class.
// TENSORFOLD_TEST_EXL3: the device must hold EXL3 weights as they are. TENSORFOLD_TEST_STEPS: how
// many steps, 220 unless said.
#include <boost/test/unit_test.hpp>
#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <random>

#include "engine/cluster/collective.h"
#include "engine/model/model.h"
#include "tests/engine/model/golden_support.h"
#include "tests/log_lines.h"

namespace tensorfold::test {
namespace {

constexpr int kSlots = 6;
constexpr int64_t kContext = 768;
constexpr int kBlocksPerSlot = kContext / kBlockPositions;
constexpr int kSequences = 12;  // distinct texts that the slots draw from

int steps() {
  const char* named = std::getenv("TENSORFOLD_TEST_STEPS");
  return named != nullptr ? std::atoi(named) : 220;
}

using Rows = std::map<int64_t, std::vector<float>>;  // logits by position

struct Session {
  std::unique_ptr<Collective> collective = make_single_collective();
  std::unique_ptr<Model> model;
  StepPlan plan;

  Session() {
    ModelOptions options;
    const char* folder = std::getenv("TENSORFOLD_TEST_MODEL");
    options.model_path = folder != nullptr ? folder : golden_path("mini_native");
    options.slots = kSlots;
    options.context = kContext;
    options.rows_max = 700;
    options.threads = std::getenv("TENSORFOLD_TEST_EXL3") != nullptr ? 1 : 2;
    options.device = test_device();
    LogLines log;
    options.log = &log;
    Result<std::unique_ptr<Model>> loaded = Model::load(options, *collective);
    BOOST_REQUIRE_MESSAGE(loaded.ok(), loaded.status().message());
    model = std::move(*loaded);
    if (std::getenv("TENSORFOLD_TEST_EXL3") == nullptr) return;
    BOOST_REQUIRE_EQUAL(log.lines.size(), 2);
    BOOST_REQUIRE(log.lines[0].starts_with("EXL3 weights: "));
    std::printf("%s\n", log.lines[0].c_str());
  }

  void open(SlotId slot) {
    plan.commands.push_back({CacheCommand::Kind::kOpenSlot, slot, 0, 0});
    for (int b = 0; b < kBlocksPerSlot; ++b)
      plan.commands.push_back(
          {CacheCommand::Kind::kAppendBlock, slot, slot * kBlocksPerSlot + b, 0});
  }
  void close(SlotId slot) { plan.commands.push_back({CacheCommand::Kind::kCloseSlot, slot, 0, 0}); }
  void add(SlotId slot, int64_t first, std::span<const int32_t> ids, int logits_rows,
           RowClass row_class) {
    Slice s;
    s.row_class = row_class;
    s.slot = slot;
    s.first_position = first;
    s.rows = s.decoder_rows = static_cast<int32_t>(ids.size());
    s.token_offset = static_cast<int32_t>(plan.tokens.size());
    s.logits_rows = logits_rows;
    plan.tokens.insert(plan.tokens.end(), ids.begin(), ids.end());
    plan.slices.push_back(s);
  }
  StepLogits step() {
    StepLogits logits;
    const Status status = model->forward(plan, {}, logits);
    BOOST_REQUIRE_MESSAGE(status.ok(), status.message());
    plan = {};
    return logits;
  }
};

// What a text gets alone: the prompt in one step, then a row a step.
Rows alone(Session& session, const std::vector<int32_t>& ids, int prompt) {
  Rows rows;
  const auto vocab = static_cast<size_t>(session.model->config().vocab_size);
  session.open(0);
  for (int at = 0; at < static_cast<int>(ids.size());) {
    const int count = at == 0 ? prompt : 1;
    session.add(0, at, std::span(ids).subspan(static_cast<size_t>(at), static_cast<size_t>(count)),
                1, at == 0 ? RowClass::kPrompt : RowClass::kGenerated);
    const StepLogits logits = session.step();
    rows[logits.rows[0].position].assign(logits.values.begin(),
                                         logits.values.begin() + static_cast<int64_t>(vocab));
    at += count;
  }
  session.close(0);
  session.step();
  return rows;
}

struct Text {
  std::vector<int32_t> ids;
  int prompt = 0;
  Rows rows;
};

struct Slot {
  const Text* text = nullptr;
  int64_t at = 0;
};

class Mix {
 public:
  explicit Mix(uint64_t seed) : random_(seed) {}
  int pick(int least, int most) { return std::uniform_int_distribution<int>(least, most)(random_); }

  void make_texts(Session& session) {
    const int vocab = session.model->config().vocab_size;
    texts_.resize(kSequences);
    for (Text& t : texts_) {
      t.prompt = pick(2, 260);
      const int total = t.prompt + pick(20, 70);
      for (int i = 0; i < total; ++i) t.ids.push_back(pick(3, vocab - 4));
      t.rows = alone(session, t.ids, t.prompt);
    }
  }

  // One step; returns how many rows differ from the text's own.
  int step(Session& session) {
    std::vector<std::pair<SlotId, int64_t>> accepted;  // new lengths
    for (SlotId slot = 0; slot < kSlots; ++slot) add_rows(session, slot, accepted);
    const StepLogits logits = session.step();
    const auto vocab = static_cast<size_t>(session.model->config().vocab_size);
    int differing = 0;
    for (size_t i = 0; i < logits.rows.size(); ++i) {
      const StepLogits::Row& row = logits.rows[i];
      const Slot& s = slots_[static_cast<size_t>(row.slot)];
      const auto known = s.text->rows.find(row.position);
      if (known == s.text->rows.end() || row.position >= right_until_[row.slot]) continue;
      ++compared;
      differing +=
          std::memcmp(logits.values.data() + i * vocab, known->second.data(), vocab * 4) == 0 ? 0
                                                                                              : 1;
    }
    for (const auto& [slot, length] : accepted) {
      BOOST_REQUIRE(session.model->accept(slot, length).ok());
      slots_[static_cast<size_t>(slot)].at = length;
    }
    return differing;
  }

  int64_t compared = 0;

 private:
  void add_rows(Session& session, SlotId slot, std::vector<std::pair<SlotId, int64_t>>& accepted) {
    Slot& s = slots_[static_cast<size_t>(slot)];
    if (s.text != nullptr &&
        (s.at == static_cast<int64_t>(s.text->ids.size()) || pick(0, 40) == 0)) {
      session.close(slot);
      s.text = nullptr;
    }
    if (s.text == nullptr) {
      if (pick(0, 3) == 0) return;
      s = {&texts_[static_cast<size_t>(pick(0, kSequences - 1))], 0};
      session.open(slot);
    }
    if (pick(0, 4) == 0) return;  // waits
    const auto total = static_cast<int64_t>(s.text->ids.size());
    const auto rows_at = [&](int64_t count) {
      return std::span(s.text->ids).subspan(static_cast<size_t>(s.at), static_cast<size_t>(count));
    };
    right_until_[slot] = total;
    if (s.at < s.text->prompt) {
      const int64_t count = std::min<int64_t>(pick(1, 120), s.text->prompt - s.at);
      session.add(slot, s.at, rows_at(count), 1, RowClass::kPrompt);
      s.at += count;
      return;
    }
    const int64_t count = std::min<int64_t>(pick(1, 6), total - s.at);
    std::vector<int32_t> ids(rows_at(count).begin(), rows_at(count).end());
    const int right = pick(0, static_cast<int>(count) - 1);  // drafts that are right
    for (size_t i = static_cast<size_t>(right) + 1; i < ids.size(); ++i)
      ids[i] = 3 + (ids[i] + 17) % 200;
    session.add(slot, s.at, ids, static_cast<int>(count), RowClass::kGenerated);
    right_until_[slot] = s.at + right + 1;
    accepted.emplace_back(slot, s.at + right + 1);
  }

  std::mt19937_64 random_;
  std::vector<Text> texts_;
  Slot slots_[kSlots];
  std::map<SlotId, int64_t> right_until_;
};

}  // namespace

BOOST_AUTO_TEST_CASE(random_ragged_steps_equal_each_sequence_alone) {
  Session session;
  Mix mix(20261130);
  mix.make_texts(session);
  int differing = 0;
  const int count = steps();
  for (int i = 0; i < count; ++i) differing += mix.step(session);
  std::printf("%s: %d steps, %lld rows compared, %d differ\n", session.model->device().c_str(),
              count, static_cast<long long>(mix.compared), differing);
  BOOST_CHECK_GT(mix.compared, 2 * count);
  if (std::getenv("TENSORFOLD_TEST_FAULT") != nullptr)
    BOOST_CHECK_MESSAGE(differing > 0, "the planted fault went unnoticed");
  else
    BOOST_CHECK_EQUAL(differing, 0);
}

}  // namespace tensorfold::test
