// Measured costs: lookup, the stored form under damage, the file, and the measurement itself on a
// scripted model whose costs are known.
#include "engine/draft/cost_table.h"

#include <boost/test/unit_test.hpp>
#include <filesystem>
#include <fstream>

#include "engine/draft/cost_store.h"
#include "engine/draft/measure_costs.h"
#include "tests/engine/scripted_model.h"
#include "tests/temp_folder.h"

using namespace tensorfold;
namespace fs = std::filesystem;

namespace {

CostKey some_key() { return {"1.0", "abc", "cpu", 2, 4, 5}; }

CostTable some_table() {
  CostTable t;
  t.sequences = {1, 2, 4};
  t.rows = {1, 2, 6};
  t.step_us = {10, 14.25, 22, 16, 22, 38, 24, 36, 70};
  t.draft_us = {3, 4, 6};
  t.prompt_row_us = 0.5;
  return t;
}

class Lines final : public LogSink {
 public:
  void write(LogLevel, std::string_view message, std::initializer_list<LogField>) override {
    lines.emplace_back(message);
  }
  bool says(const std::string& text) const {
    return !lines.empty() && lines.back().find(text) != std::string::npos;
  }
  std::vector<std::string> lines;
};

// Time that passes by a formula of the plan; everything else is the executor's.
class TimedRunner final : public StepRunner {
 public:
  TimedRunner(StepRunner& inner, ManualClock& clock) : inner_(inner), clock_(clock) {}
  Status run(const StepPlan& plan, std::vector<SampledTokens>& results) override {
    ++steps;
    TF_RETURN_IF_ERROR(inner_.run(plan, results));
    if (plan.slices.empty()) return ok_status();
    int64_t us = 1000 + 100 * static_cast<int64_t>(plan.slices.size()) + 50 * plan.total_rows();
    int64_t drafting = 0;
    for (const SampleSpec& s : plan.samples) drafting += s.draft_rows > 0;
    if (drafting > 0) us += 200 + 30 * drafting;
    // Noise only adds, and not to every repetition.
    if (noise && steps % 7 < 3) us += 700;
    if (busy) us += steps * steps * 100;
    clock_.advance_us(us);
    return ok_status();
  }
  int steps = 0;
  bool noise = false;
  bool busy = false;

 private:
  StepRunner& inner_;
  ManualClock& clock_;
};

}  // namespace

BOOST_AUTO_TEST_CASE(lookup_interpolates_and_continues) {
  const CostTable t = some_table();
  BOOST_REQUIRE(t.check().ok());
  BOOST_TEST(t.step(1, 1) == 10);
  BOOST_TEST(t.step(1, 2) == 14.25);
  BOOST_TEST(t.step(2, 12) == 38);
  BOOST_TEST(t.step(1, 4) == 18.125);
  BOOST_TEST(t.step(3, 3) == 20);
  BOOST_TEST(t.step(2, 3) == 19);
  BOOST_TEST(t.step(6, 6) == 32);
  BOOST_TEST(t.draft(0) == 0);
  BOOST_TEST(t.draft(1) == 3);
  BOOST_TEST(t.draft(3) == 5);
  BOOST_TEST(t.draft(8) == 10);
  CostTable single = t;  // one sequence alone was measured: its rows stand for all
  single.sequences = {1};
  single.step_us = {10, 14, 22};
  single.draft_us = {3};
  BOOST_REQUIRE(single.check().ok());
  BOOST_TEST(single.step(1, 4) == 18);
  BOOST_TEST(single.step(3, 4) == 18);
  BOOST_TEST(single.step(4, 24) == 58);
  CostTable one = t;  // a single sequence and row count: constant
  one.sequences = {1};
  one.rows = {1};
  one.step_us = {10};
  one.draft_us = {3};
  BOOST_REQUIRE(one.check().ok());
  BOOST_TEST(one.step(5, 30) == 10);
  BOOST_TEST(one.draft(5) == 3);
  const CostTable line = CostTable::linear(7, 2, 1);
  for (const int n : {1, 2, 5}) {
    for (int r = n; r <= 6 * n; ++r) BOOST_TEST(std::abs(line.step(n, r) - (7 + 2 * r)) < 1e-9);
    BOOST_TEST(line.draft(n) == n);
  }
}

BOOST_AUTO_TEST_CASE(the_stored_form_gives_the_table_back) {
  const auto read = decode_cost_table(encode_cost_table(some_key(), some_table()), some_key());
  BOOST_REQUIRE_MESSAGE(read.ok(), read.status().message());
  BOOST_TEST((read->step_us == some_table().step_us));
  BOOST_TEST((read->rows == some_table().rows));
  BOOST_TEST((read->sequences == some_table().sequences));
  BOOST_TEST((read->draft_us == some_table().draft_us));
  BOOST_TEST(read->prompt_row_us == some_table().prompt_row_us);
}

BOOST_AUTO_TEST_CASE(damage_of_any_byte_is_refused) {
  const std::string good = encode_cost_table(some_key(), some_table());
  for (size_t length = 0; length + 1 < good.size(); ++length)
    BOOST_REQUIRE(!decode_cost_table(good.substr(0, length), some_key()).ok());
  for (size_t i = 0; i + 1 < good.size(); ++i) {
    for (const int bit : {0, 1, 4}) {
      std::string bad = good;
      bad[i] = static_cast<char>(bad[i] ^ (1 << bit));
      const auto read = decode_cost_table(bad, some_key());
      // White space between values is the one thing that may change.
      BOOST_REQUIRE_MESSAGE(!read.ok(), "byte " << i << " bit " << bit);
    }
  }
}

BOOST_AUTO_TEST_CASE(a_table_of_something_else_is_refused_by_name) {
  const std::string text = encode_cost_table(some_key(), some_table());
  const auto refused = [&](CostKey key, const std::string& name) {
    const auto read = decode_cost_table(text, key);
    BOOST_REQUIRE(!read.ok());
    BOOST_TEST(read.status().message().find(name) != std::string::npos);
  };
  CostKey key = some_key();
  key.version = "2";
  refused(key, "version");
  key = some_key();
  key.fingerprint = "b";
  refused(key, "fingerprint");
  key = some_key();
  key.device = "cuda";
  refused(key, "device");
  key = some_key();
  key.threads = 3;
  refused(key, "threads");
  key = some_key();
  key.slots = 5;
  refused(key, "slots");
  key = some_key();
  key.draft_rows = 4;
  refused(key, "draft_rows");
}

BOOST_AUTO_TEST_CASE(values_that_no_measurement_gives_are_refused) {
  // With a right checksum: what is in the file is checked, not only that it is what was written.
  const auto refused = [](const CostTable& t, const std::string& field) {
    const auto read = decode_cost_table(encode_cost_table(some_key(), t), some_key());
    BOOST_REQUIRE_MESSAGE(!read.ok(), field);
    BOOST_TEST(read.status().message().find(field) != std::string::npos);
  };
  CostTable t = some_table();
  t.step_us[4] = -1;
  refused(t, "step_us[4]");
  t = some_table();
  t.step_us[4] = 15;  // less than one sequence fewer, and than one row fewer
  refused(t, "step_us[4]");
  t = some_table();
  t.step_us.pop_back();
  refused(t, "step_us");
  t = some_table();
  t.draft_us[1] = 1e12;
  refused(t, "draft_us[1]");
  t = some_table();
  t.rows = {2, 3, 6};
  refused(t, "rows");
  t = some_table();
  t.sequences = {1, 4, 2};
  refused(t, "sequences");
  t = some_table();
  t.prompt_row_us = 0;
  refused(t, "prompt_row_us");
}

BOOST_AUTO_TEST_CASE(the_file_is_used_replaced_or_done_without) {
  TempFolder folder;
  const std::string state = folder.path();
  const fs::path file = cost_file_path(state);
  int measured = 0;
  bool steady = true;
  const auto measure = [&]() -> Result<MeasuredCosts> {
    ++measured;
    return MeasuredCosts{some_table(), steady};
  };
  Lines log;
  const auto costs = [&](const std::string& dir, const CostKey& key) {
    return stored_or_measured_costs(dir, key, measure, log);
  };
  BOOST_TEST(costs(state, some_key()).ok());
  BOOST_TEST(measured == 1);
  BOOST_TEST(log.says("measured"));
  BOOST_TEST(fs::exists(file));
  BOOST_TEST((costs(state, some_key())->step_us == some_table().step_us));
  BOOST_TEST(measured == 1);
  BOOST_TEST(log.says("row_costs.json"));
  // Another model: measured, replaced, and used from then on.
  CostKey other = some_key();
  other.fingerprint = "other";
  BOOST_TEST(costs(state, other).ok());
  BOOST_TEST(measured == 2);
  BOOST_TEST(log.says("another fingerprint"));
  BOOST_TEST(costs(state, other).ok());
  BOOST_TEST(measured == 2);
  // Torn in the middle.
  fs::resize_file(file, fs::file_size(file) / 2);
  BOOST_TEST(costs(state, other).ok());
  BOOST_TEST(measured == 3);
  BOOST_TEST(log.says("not used"));
  // A busy machine: used, but not kept.
  steady = false;
  fs::remove(file);
  BOOST_TEST((costs(state, other)->step_us == some_table().step_us));
  BOOST_TEST(log.says("busy"));
  BOOST_TEST(!fs::exists(file));
  steady = true;
  measured = 3;
  // Far too long, and a folder in its place.
  std::ofstream(file) << std::string(kCostFileBytesMax + 1, ' ');
  BOOST_TEST(costs(state, other).ok());
  BOOST_TEST(measured == 4);
  BOOST_TEST(costs(state, other).ok());
  BOOST_TEST(measured == 4);
  fs::remove(file);
  fs::create_directory(file);
  const size_t before = log.lines.size();
  BOOST_TEST(costs(state, other).ok());
  BOOST_TEST(measured == 5);
  BOOST_TEST(log.lines.size() == before + 2);
  BOOST_TEST(log.says("not kept"));
  // No state directory, or none that exists: measured each time.
  BOOST_TEST(costs("", other).ok());
  BOOST_TEST(costs(state + "/nowhere", other).ok());
  BOOST_TEST(log.says("not kept"));
  BOOST_TEST(measured == 7);
  // What cannot be measured is the caller's to report.
  const auto failed = stored_or_measured_costs(
      "", other, []() -> Result<MeasuredCosts> { return unavailable("the device is gone"); }, log);
  BOOST_REQUIRE(!failed.ok());
  BOOST_TEST(failed.status().message().find("device is gone") != std::string::npos);
  // Nothing but the folder in the way is left behind.
  BOOST_TEST(std::distance(fs::directory_iterator(folder.path()), fs::directory_iterator()) == 1);
}

BOOST_AUTO_TEST_CASE(measuring_finds_the_costs_of_a_known_model) {
  for (const bool noise : {false, true}) {
    ManualClock clock;
    scripted::ScriptedModel model({});
    StepExecutor executor(model);
    TimedRunner runner(executor, clock);
    runner.noise = noise;
    MeasureLimits limits;
    limits.slots = 4;
    limits.pool_blocks = 64;
    const std::vector<std::vector<int32_t>> prompts = {{10, 11, 12}, {20, 21, 22, 23}};
    const auto costs = measure_costs(runner, limits, prompts, clock);
    BOOST_REQUIRE_MESSAGE(costs.ok(), costs.status().message());
    BOOST_TEST(costs->steady);
    const CostTable* table = &costs->table;
    BOOST_TEST((table->sequences == std::vector<int32_t>{1, 2, 4}));
    BOOST_TEST((table->rows == std::vector<int32_t>{1, 2, 3, 4, 6}));
    double worst = 0;
    for (const int n : {1, 2, 3, 4}) {
      for (int r = n; r <= 6 * n; ++r)
        worst = std::max(worst, std::abs(table->step(n, r) - (1000 + 100 * n + 50 * r)));
      worst = std::max(worst, std::abs(table->draft(n) - (200 + 30 * n)));
    }
    BOOST_TEST(worst < 1e-6);
    BOOST_TEST(table->prompt_row_us <= 50);
    BOOST_TEST(model.open_slots() == 0);
    BOOST_TEST(model.blocks_used() == 0);
    BOOST_TEST(runner.steps < 300);
  }
}

BOOST_AUTO_TEST_CASE(measuring_is_bounded_and_fits_small_pools) {
  for (const int slots : {1, 3, 64}) {
    for (const int64_t pool : {1, 5, 64}) {
      for (const int draft_rows : {1, 4, 5}) {
        ManualClock clock;
        scripted::ScriptedModel model({});
        StepExecutor executor(model);
        TimedRunner runner(executor, clock);
        MeasureLimits limits;
        limits.slots = slots;
        limits.pool_blocks = pool;
        limits.draft_rows = draft_rows;
        limits.positions = 64;
        limits.prefill_rows = 256;
        const std::vector<std::vector<int32_t>> prompts = {{10, 11, 12}};
        const auto costs = measure_costs(runner, limits, prompts, clock);
        BOOST_REQUIRE_MESSAGE(costs.ok(), costs.status().message());
        const CostTable* table = &costs->table;
        BOOST_TEST(table->rows.back() == 1 + draft_rows);
        BOOST_TEST(table->sequences.back() <= std::min<int64_t>(slots, pool));
        BOOST_TEST(model.blocks_used() == 0);
        // One group may run over, by its first two repetitions.
        BOOST_TEST(clock.monotonic_us() < kMeasureCostsHardUs + 800'000);
      }
    }
  }
  // A busy machine is noticed.
  {
    ManualClock clock;
    scripted::ScriptedModel model({});
    StepExecutor executor(model);
    TimedRunner runner(executor, clock);
    runner.busy = true;
    const std::vector<std::vector<int32_t>> prompts = {{10, 11, 12}};
    const auto costs = measure_costs(runner, {}, prompts, clock);
    BOOST_REQUIRE(costs.ok());
    BOOST_TEST(!costs->steady);
  }
  // A device that fails is the caller's to report.
  ManualClock clock;
  scripted::ScriptedModel::Script script;
  script.fail_at_forward = 5;
  scripted::ScriptedModel model(script);
  StepExecutor executor(model);
  TimedRunner runner(executor, clock);
  const std::vector<std::vector<int32_t>> prompts = {{10, 11, 12}};
  BOOST_TEST(!measure_costs(runner, {}, prompts, clock).ok());
}
