// Two ranks whose exchanges lie on their devices, queued and recorded with the steps, against two
// ranks that meet through the host's memory: the same random steps, every logit, every chosen token
// and every draft the same bits, on both ranks.
//
// Runs over the device library that CMake names (graph_host_device.cc), where an exchange is work
// of the queue that gathers from the other thread when it is run. TENSORFOLD_TEST_FAULT: "left_out"
// does it once, when it is recorded; "stale" leaves what lies there every third time; "swapped"
// gives the parts in another order. The comparison must notice each.
#include <algorithm>
#include <boost/test/unit_test.hpp>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <random>
#include <string>
#include <thread>

#include "engine/cluster/collective.h"
#include "engine/cluster/device_exchange.h"
#include "engine/model/graph_table.h"
#include "engine/model/model.h"
#include "tests/engine/model/drawn_token.h"
#include "tests/engine/model/golden_support.h"
#include "tests/engine/model/launch_queue.h"

namespace tensorfold::test {
namespace {

constexpr int kRanks = 2;
constexpr int kSlots = 3;
constexpr int64_t kContext = 512;
constexpr int kTimeoutMs = 60'000;

std::string fault() {
  const char* name = std::getenv("TENSORFOLD_TEST_FAULT");
  return name == nullptr ? "" : name;
}

struct HostDevice {
  HostDevice() {
    setenv("TENSORFOLD_CUDA_LIBRARY", TF_GRAPH_DEVICE_LIBRARY, 1);
    setenv("TENSORFOLD_CUDA_GRAPHS", "on", 1);
    setenv("TENSORFOLD_TEST_SAMPLES", "on", 1);
  }
};
BOOST_TEST_GLOBAL_FIXTURE(HostDevice);

// Exchanges on the stand-in's memory: the threads' collective, as work of its queue.
class QueuedExchange final : public Collective, public DeviceExchange {
 public:
  explicit QueuedExchange(Collective& inner) : inner_(inner) {}
  int rank() const override { return inner_.rank(); }
  int world_size() const override { return inner_.world_size(); }
  Status all_gather(std::span<const std::byte> in, std::span<std::byte> out) override {
    ++on_host;
    return inner_.all_gather(in, out);
  }
  DeviceExchange* on_device() override { return apart ? nullptr : this; }
  void begin() override { ++open; }
  Status end() override {
    --open;
    return broken.ok() ? status_ : broken;
  }
  Status gather(const void* in, void* out, size_t bytes, void* queue) override {
    ++gathers;
    const auto work = [this, in, out, bytes] { run(in, out, bytes); };
    if (fault() == "left_out")
      work();
    else
      static_cast<LaunchQueue*>(queue)->launch(work);
    return ok_status();
  }

  bool apart = false;
  Status broken;
  int open = 0, gathers = 0, runs = 0, on_host = 0;

 private:
  void run(const void* in, void* out, size_t bytes) {
    ++runs;
    std::vector<std::byte> all(bytes * static_cast<size_t>(world_size()));
    const Status met = inner_.all_gather({static_cast<const std::byte*>(in), bytes}, all);
    if (!met.ok()) status_ = met;
    if (fault() == "stale" && runs % 3 == 0) return;
    if (fault() == "swapped")
      std::rotate(all.begin(), all.begin() + static_cast<ptrdiff_t>(bytes), all.end());
    std::memcpy(out, all.data(), all.size());
  }
  Collective& inner_;
  Status status_;
};

// What a rank computed.
struct Outcome {
  Status status;
  std::vector<float> logits;
  std::vector<int32_t> tokens;
  std::vector<float> confidence;
  StepGraphStats graphs;
  int gathers = 0, runs = 0, on_host = 0;
  bool operator==(const Outcome& o) const {
    const auto same = [](const std::vector<float>& a, const std::vector<float>& b) {
      return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * 4) == 0;
    };
    return same(logits, o.logits) && tokens == o.tokens && same(confidence, o.confidence);
  }
};

struct Way {
  const char* device = "cuda";
  bool exchanges = true;   // on the device
  int forgets_after = -1;  // steps, then recorded ones are forgotten
  ValueType exchange = ValueType::kF32;
};

// Steps of a seed: equal on every rank and way.
class Story {
 public:
  // chooses: the device is asked for tokens where it can, else they are drawn here.
  Story(Model& model, Outcome& out, bool chooses, uint64_t seed)
      : model_(model), out_(out), chooses_(chooses), random_(seed) {}

  Status open(SlotId slot, int prompt) {
    plan_.commands.push_back({CacheCommand::Kind::kOpenSlot, slot, 0, 0});
    for (int b = 0; b < kContext / kBlockPositions; ++b)
      plan_.commands.push_back({CacheCommand::Kind::kAppendBlock, slot,
                                slot * static_cast<int>(kContext / kBlockPositions) + b, 0});
    length_[slot] = 0;
    add(slot, prompt, RowClass::kPrompt, 1);
    return step();
  }
  Status random_step() {
    for (SlotId slot = 0; slot < kSlots; ++slot)
      if (slot == 0 || pick(0, 2) > 0) add(slot, pick(1, 3), RowClass::kGenerated, 1);
    TF_RETURN_IF_ERROR(step());
    std::vector<DraftRequest> requests;
    for (SlotId slot = 0; slot < kSlots; ++slot) requests.push_back(draft_of(slot));
    std::vector<DraftResult> drafts;
    TF_RETURN_IF_ERROR(model_.draft(requests, drafts));
    for (const DraftResult& d : drafts) {
      out_.tokens.insert(out_.tokens.end(), d.tokens.begin(), d.tokens.end());
      out_.confidence.insert(out_.confidence.end(), d.confidence.begin(), d.confidence.end());
    }
    return ok_status();
  }

 private:
  int pick(int least, int most) { return std::uniform_int_distribution<int>(least, most)(random_); }
  DraftRequest draft_of(SlotId slot) {
    return {slot, length_[slot] - 1, pick(3, 200), model_.config().dspark.block_size};
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
    length_[slot] += count;
  }
  Status step() {
    StepLogits logits;
    const bool asks = pick(0, 1) == 0;
    std::vector<SampleRow> rows(asks ? plan_.slices.size() : 0);
    for (SampleRow& row : rows) {
      row.seed = random_();
      row.position = pick(0, 5000);
      row.greedy = pick(0, 2) == 0 ? 1 : 0;
      row.temperature = 0.1f * static_cast<float>(pick(1, 20));
    }
    if (chooses_) logits.ask = rows;
    TF_RETURN_IF_ERROR(model_.forward(plan_, {}, logits));
    plan_ = {};
    if (logits.chosen != (asks && chooses_)) return internal_error("tokens where logits were due");
    const auto vocab = static_cast<size_t>(model_.config().vocab_size);
    if (logits.chosen)
      out_.tokens.insert(out_.tokens.end(), logits.tokens.begin(), logits.tokens.end());
    else if (asks)
      for (size_t r = 0; r < rows.size(); ++r)
        out_.tokens.push_back(
            drawn_token(std::span(logits.values).subspan(r * vocab, vocab), rows[r]));
    else
      out_.logits.insert(out_.logits.end(), logits.values.begin(), logits.values.end());
    return ok_status();
  }

  Model& model_;
  Outcome& out_;
  const bool chooses_;
  std::mt19937_64 random_;
  StepPlan plan_;
  int64_t length_[kSlots] = {};
};

void run_rank(Collective& threads, const Way& way, Outcome& out) {
  QueuedExchange exchange(threads);
  exchange.apart = !way.exchanges;
  ModelOptions options;
  options.model_path = golden_path("mini_native");
  options.slots = kSlots;
  options.context = kContext;
  options.rows_max = 64;
  options.threads = 1;
  options.device = way.device;
  options.exchange = way.exchange;
  Result<std::unique_ptr<Model>> model = Model::load(options, exchange);
  out.status = model.status();
  if (!model.ok()) return;
  Story story(**model, out, way.exchanges, 20261201);
  for (SlotId slot = 0; slot < kSlots && out.status.ok(); ++slot)
    out.status = story.open(slot, 20 + 7 * slot);
  for (int i = 0; i < 40 && out.status.ok(); ++i) {
    if (i == way.forgets_after) {
      (*model)->forget_recorded();
      out.status = (*model)->graphs().graphs == 0 ? ok_status() : internal_error("graphs are left");
    }
    if (out.status.ok()) out.status = story.random_step();
  }
  out.graphs = (*model)->graphs();
  out.gathers = exchange.gathers;
  out.runs = exchange.runs;
  out.on_host = exchange.on_host;
  BOOST_TEST(exchange.open == 0);
}

std::vector<Outcome> run(const Way& way) {
  const auto collectives = make_thread_collectives(kRanks, kTimeoutMs);
  std::vector<Outcome> out(kRanks);
  std::vector<std::thread> threads;
  for (size_t r = 0; r < out.size(); ++r)
    threads.emplace_back([&, r] { run_rank(*collectives[r], way, out[r]); });
  for (std::thread& t : threads) t.join();
  for (const Outcome& o : out) BOOST_REQUIRE_MESSAGE(o.status.ok(), o.status.message());
  return out;
}

}  // namespace

BOOST_AUTO_TEST_CASE(exchanges_of_devices_equal_those_of_hosts) {
  const std::vector<Outcome> host = run({"cpu", false, -1});
  BOOST_CHECK(host[0] == host[1]);
  const std::vector<Outcome> device = run({"cuda", true, -1});
  const bool same = device[0] == host[0] && device[1] == host[0];
  if (!fault().empty()) {
    BOOST_CHECK_MESSAGE(!same, "the planted fault went unnoticed");
    return;
  }
  BOOST_CHECK(same);
  for (const Outcome& o : device) {
    BOOST_CHECK_GE(o.graphs.runs, 20);
    BOOST_CHECK_EQUAL(o.graphs.refused, 0);
    BOOST_CHECK_GT(2 * o.runs, 3 * o.gathers);  // recorded ones run without a call
    BOOST_CHECK_LT(o.on_host, o.gathers);       // Engram's rows alone
  }
  // The same device where ranks meet through the host's memory: nothing is recorded.
  const std::vector<Outcome> apart = run({"cuda", false, -1});
  BOOST_CHECK(apart[0] == host[0] && apart[1] == host[0]);
  BOOST_CHECK_EQUAL(apart[0].graphs.recorded, 0);
  BOOST_CHECK_EQUAL(apart[0].gathers, 0);
}

// Partial results as bf16: the same bits wherever ranks meet, and others than those of fp32.
BOOST_AUTO_TEST_CASE(narrow_exchanges_of_devices_equal_those_of_hosts) {
  if (!fault().empty()) return;
  const std::vector<Outcome> host = run({"cpu", false, -1, ValueType::kBf16});
  const std::vector<Outcome> device = run({"cuda", true, -1, ValueType::kBf16});
  const std::vector<Outcome> wide = run({"cpu", false, -1});
  BOOST_CHECK(host[0] == host[1]);
  BOOST_CHECK(device[0] == host[0] && device[1] == host[0]);
  BOOST_CHECK(!(wide[0] == host[0]));
  BOOST_REQUIRE_EQUAL(wide[0].logits.size(), host[0].logits.size());
  double diff = 0, norm = 0;
  for (size_t i = 0; i < wide[0].logits.size(); ++i) {
    const double a = wide[0].logits[i], b = host[0].logits[i];
    diff += (a - b) * (a - b);
    norm += a * a;
  }
  BOOST_CHECK_LT(std::sqrt(diff / norm), 0.1);
}

BOOST_AUTO_TEST_CASE(recorded_steps_are_forgotten_and_made_anew) {
  if (!fault().empty()) return;
  const std::vector<Outcome> host = run({"cpu", false, -1});
  const std::vector<Outcome> device = run({"cuda", true, 25});
  BOOST_CHECK(device[0] == host[0] && device[1] == host[0]);
  BOOST_CHECK_GT(device[0].graphs.recorded, device[0].graphs.graphs);
}

}  // namespace tensorfold::test
