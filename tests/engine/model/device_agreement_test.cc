// The embedded model on a GPU beside the same on the CPU: 50 prompts of text, 64 tokens each as the
// CPU chooses them, fed to both. Where the CPU's best token leads by more than twice the largest
// difference of any logit, the GPU must choose the same, and all logits together must lie within
// kBound. Counts and errors are printed.
#include <algorithm>
#include <boost/test/unit_test.hpp>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <memory>

#include "engine/cluster/collective.h"
#include "engine/model/model.h"
#include "engine/text/tokenizer.h"
#include "tests/engine/model/golden_support.h"
#include "tests/log_lines.h"

namespace tensorfold::test {
namespace {

constexpr int kPrompts = 50;
constexpr int kTokens = 64;
constexpr int64_t kContext = 512;
// Relative norm of all logits. EXL3 weights that are read as they are, are not rounded to bf16 as
// the CPU's are (1.7e-3 of a product's size in each of 60 products behind each other).
constexpr double kBound = 0.01, kExl3Bound = 0.03;

const char* const kOpenings[] = {
    "What is the capital of ",   "Write a short story about ",   "Add the numbers 12 and ",
    "Name three animals that ",  "Explain in one sentence why ", "The color of the sky is ",
    "def count(items):\n    ",   "Translate to French: ",        "How many letters are in ",
    "Is it true that water and "};
const char* const kEndings[] = {"Japan?", "a fox and a crow.", "7, please.", "rain falls.",
                                "two birds on a wire\n"};

struct Session {
  std::unique_ptr<Collective> collective = make_single_collective();
  LogLines log;
  std::unique_ptr<Model> model;

  Session(const std::string& folder, const std::string& device) {
    ModelOptions options;
    options.model_path = folder;
    options.slots = 1;
    options.context = kContext;
    options.rows_max = kContext;
    options.device = device;
    options.log = &log;
    Result<std::unique_ptr<Model>> loaded = Model::load(options, *collective);
    BOOST_REQUIRE_MESSAGE(loaded.ok(), loaded.status().message());
    model = std::move(*loaded);
  }

  // Logits of the last of `ids`, at positions from `first` on.
  std::vector<float> run(std::span<const int32_t> ids, int64_t first) {
    StepPlan plan;
    if (first == 0) {
      if (open_) plan.commands.push_back({CacheCommand::Kind::kCloseSlot, 0, 0, 0});
      open_ = true;
      plan.commands.push_back({CacheCommand::Kind::kOpenSlot, 0, 0, 0});
      for (int b = 0; b < kContext / kBlockPositions; ++b)
        plan.commands.push_back({CacheCommand::Kind::kAppendBlock, 0, b, 0});
    }
    Slice s;
    s.first_position = first;
    s.row_class = first == 0 ? RowClass::kPrompt : RowClass::kGenerated;
    s.rows = s.decoder_rows = static_cast<int32_t>(ids.size());
    s.logits_rows = 1;
    plan.tokens.assign(ids.begin(), ids.end());
    plan.slices.push_back(s);
    StepLogits logits;
    const Status status = model->forward(plan, {}, logits);
    BOOST_REQUIRE_MESSAGE(status.ok(), status.message());
    return logits.values;
  }

 private:
  bool open_ = false;
};

struct Row {
  int32_t cpu = 0, gpu = 0;  // best tokens
  float margin = 0;          // of the CPU's best
};

int32_t best_of(const std::vector<float>& v) {
  return static_cast<int32_t>(std::max_element(v.begin(), v.end()) - v.begin());
}

}  // namespace

BOOST_AUTO_TEST_CASE(greedy_tokens_agree_where_the_margin_allows) {
  const std::string device = test_device();
  const std::string folder = std::string(TF_SOURCE_DIR) + "/packaging/tiny-model/model";
  Session cpu(folder, "cpu"), gpu(folder, device);
  auto tokenizer = Tokenizer::load(folder + "/tokenizer.json");
  BOOST_REQUIRE_MESSAGE(tokenizer.ok(), tokenizer.status().message());
  std::vector<Row> rows;
  float largest = 0;
  double difference = 0, norm = 0;
  for (int i = 0; i < kPrompts; ++i) {
    const std::string text = std::string(kOpenings[i % 10]) + kEndings[i / 10];
    std::vector<int32_t> ids = (*tokenizer)->encode(text);
    int64_t at = 0;
    for (int t = 0; t < kTokens; ++t) {
      const std::vector<float> c = cpu.run(ids, at), g = gpu.run(ids, at);
      for (size_t k = 0; k < c.size(); ++k) {
        largest = std::max(largest, std::fabs(c[k] - g[k]));
        difference += double{c[k] - g[k]} * double{c[k] - g[k]};
        norm += double{c[k]} * double{c[k]};
      }
      Row row{best_of(c), best_of(g), 0};
      float second = -INFINITY;
      for (size_t k = 0; k < c.size(); ++k)
        if (static_cast<int32_t>(k) != row.cpu) second = std::max(second, c[k]);
      row.margin = c[static_cast<size_t>(row.cpu)] - second;
      rows.push_back(row);
      at += static_cast<int64_t>(ids.size());
      ids.assign(1, row.cpu);
    }
  }
  int clear = 0, wrong = 0, equal = 0;
  for (const Row& row : rows) {
    equal += row.cpu == row.gpu ? 1 : 0;
    if (row.margin <= 2 * largest) continue;
    ++clear;
    wrong += row.cpu == row.gpu ? 0 : 1;
  }
  std::printf(
      "%s: %zu rows, %d equal; logits differ by %.3g at most, %.3g in norm; %d with a margin "
      "above twice that, %d of them differ\n",
      gpu.model->device().c_str(), rows.size(), equal, static_cast<double>(largest),
      std::sqrt(difference / norm), clear, wrong);
  BOOST_CHECK_EQUAL(wrong, 0);
  BOOST_CHECK_GT(clear, static_cast<int>(rows.size()) / 2);
  BOOST_CHECK_GT(norm, 0);
  const bool exl3 = std::getenv("TENSORFOLD_TEST_EXL3") != nullptr;
  BOOST_CHECK_EQUAL(gpu.log.lines.size(), exl3 ? 2 : 1);
  BOOST_CHECK_LE(std::sqrt(difference / norm), exl3 ? kExl3Bound : kBound);
}

}  // namespace tensorfold::test
