// Runs of the engine's loop over the golden mini model's real forward pass (FP8 and FP4 weights),
// for the exactness suites: random requests, and replies compared bit for bit. Beside its own
// window of 128 rows the model also runs with one of 32: a shorter cone, so that short prompts
// reach it.
#pragma once

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <random>
#include <sstream>

#include "tests/engine/loop_harness.h"
#include "tests/engine/passing_model.h"
#include "tests/temp_folder.h"

namespace tensorfold::scripted {

inline constexpr int kMiniVocab = 1024;
inline constexpr int64_t kMiniContext = 1536;
inline constexpr int kMiniSlots = 4;
inline const char* const kMiniPath = TF_SOURCE_DIR "/tests/data/golden/mini_native";

inline ModelOptions mini_options(const std::string& path = kMiniPath) {
  ModelOptions o;
  o.model_path = path;
  o.slots = kMiniSlots;
  o.context = kMiniContext;
  o.rows_max = 1024 + kMiniSlots * 6;
  o.threads = 1;  // many tests share the machine
  return o;
}

inline std::unique_ptr<Model> load_mini(const std::string& path) {
  static auto collective = make_single_collective();
  auto model = Model::load(mini_options(path), *collective);
  BOOST_REQUIRE_MESSAGE(model.ok(), model.status().message());
  return std::move(model).value();
}

inline Model& mini_model() {
  static const auto model = load_mini(kMiniPath);
  return *model;
}

// The same weights behind a window of 32 rows.
inline Model& narrow_mini_model() {
  static const auto model = [] {
    namespace fs = std::filesystem;
    const TempFolder folder;  // weights end in memory, Engram rows come of files that stay open
    for (const char* file : {"engram_token_map.i32", "model.safetensors"})
      fs::create_symlink(fs::path(kMiniPath) / file, folder.path(file));
    std::ifstream in(std::string(kMiniPath) + "/config.json");
    std::ostringstream text;
    text << in.rdbuf();
    std::string config = text.str();
    const std::string wide = "\"sliding_window\": 128";
    const size_t at = config.find(wide);
    BOOST_REQUIRE(at != std::string::npos);
    config.replace(at, wide.size(), "\"sliding_window\": 32");
    std::ofstream(folder.path("config.json")) << config;
    auto loaded = load_mini(folder.path());
    BOOST_REQUIRE(loaded->config().window == 32);
    return loaded;
  }();
  return *model;
}

// Drafts that are right `skill` times of 100, from replies that are known already.
class KnowingDrafter final : public PassingModel {
 public:
  KnowingDrafter(Model& inner, unsigned skill) : PassingModel(inner), skill_(skill) {}
  // Sequences are told apart by what their ids are: prompt and reply so far.
  void know(std::vector<int32_t> prompt, const std::vector<TokenId>& reply) {
    prompt.insert(prompt.end(), reply.begin(), reply.end());
    known_.push_back(std::move(prompt));
  }
  Status accept(SlotId slot, int64_t length) override {
    seen_[slot].resize(static_cast<size_t>(length));
    return inner_.accept(slot, length);
  }
  Status forward(const StepPlan& plan, std::span<const std::vector<int32_t>> device_tokens,
                 StepLogits& logits, ForwardProbe* probe) override {
    for (size_t i = 0; i < plan.slices.size(); ++i) {
      const Slice& s = plan.slices[i];
      auto& ids = seen_[s.slot];
      ids.resize(static_cast<size_t>(s.first_position));
      const int32_t* from = s.source == TokenSource::kDevice ? device_tokens[i].data()
                                                             : plan.tokens.data() + s.token_offset;
      ids.insert(ids.end(), from, from + s.rows);
    }
    return inner_.forward(plan, device_tokens, logits, probe);
  }
  Status draft(std::span<const DraftRequest> requests, std::vector<DraftResult>& results,
               ForwardProbe* probe) override {
    TF_RETURN_IF_ERROR(inner_.draft(requests, results, probe));
    for (size_t r = 0; r < requests.size(); ++r) {
      std::vector<int32_t> prefix = seen_[requests[r].slot];
      prefix.push_back(requests[r].token);
      for (const auto& known : known_) {
        if (known.size() < prefix.size() ||
            !std::equal(prefix.begin(), prefix.end(), known.begin()))
          continue;
        for (size_t i = 0; i < results[r].tokens.size(); ++i) {
          if (prefix.size() + i < known.size() && rng_() % 100 < skill_)
            results[r].tokens[i] = known[prefix.size() + i];
        }
      }
    }
    return ok_status();
  }

 private:
  const unsigned skill_;
  std::vector<std::vector<int32_t>> known_;
  std::map<SlotId, std::vector<int32_t>> seen_;
  std::mt19937_64 rng_{5};
};

// A planted fault: the last bits of the logits depend on how many rows share the step.
class Leaky final : public Model {
 public:
  explicit Leaky(Model& inner) : inner_(inner) {}
  const ModelConfig& config() const override { return inner_.config(); }
  int64_t weight_bytes() const override { return 0; }
  int64_t cache_bytes() const override { return 0; }
  std::string fingerprint() const override { return ""; }
  Status apply(const StepPlan& plan) override { return inner_.apply(plan); }
  std::span<const int32_t> ids(SlotId slot) const override { return inner_.ids(slot); }
  Status accept(SlotId slot, int64_t length) override { return inner_.accept(slot, length); }
  int64_t length(SlotId slot) const override { return inner_.length(slot); }
  Status draft(std::span<const DraftRequest> r, std::vector<DraftResult>& out,
               ForwardProbe* probe) override {
    return inner_.draft(r, out, probe);
  }
  Status read_entry(SlotId, int, int64_t, std::vector<float>&, std::vector<float>&) const override {
    return unsupported("leaky");
  }
  Status forward(const StepPlan& plan, std::span<const std::vector<int32_t>> device_tokens,
                 StepLogits& logits, ForwardProbe* probe) override {
    TF_RETURN_IF_ERROR(inner_.forward(plan, device_tokens, logits, probe));
    const float leak = 1 + 1e-6F * static_cast<float>(plan.total_rows());
    for (float& v : logits.values) v *= leak;
    return ok_status();
  }

 private:
  Model& inner_;
};

struct RunOptions {
  int slots = 1;
  int prefill_rows = 1024;
  int depth = 0;
  bool adaptive = false;  // the expected-gain policy decides, up to `depth`
  bool exact = true;
  uint64_t stagger = 0;  // seed of when requests arrive; 0: all at once
};

// Runs requests over `runner` (by default one executor over `model`) to their ends.
inline std::vector<Reply> run_mini(Model& model, const std::vector<Request>& requests,
                                   const RunOptions& o, StepRunner* runner = nullptr) {
  StepExecutor executor(model);
  LoggingRunner logging(runner ? *runner : executor);
  ScriptedText text;
  ManualClock clock;
  StatsBoard board;
  TicketBook book;
  const auto policy = o.adaptive ? make_expected_gain_policy({}) : make_fixed_depth_policy(o.depth);
  LoopOptions options;
  options.planner.slots = o.slots;
  options.planner.prefill_rows = o.prefill_rows;
  options.planner.pool_blocks = kMiniSlots * blocks_for(kMiniContext);
  options.planner.decoder_span = o.exact ? model.config().cone_rows() : model.config().window;
  options.planner.draft_rows = o.depth;
  options.vocab = kMiniVocab;
  options.queue_deadline_us = INT64_MAX;
  EngineLoop loop(options, {logging, text, *policy, clock, null_log(), board});
  std::mt19937_64 rng(o.stagger);
  std::vector<std::shared_ptr<KeepingSink>> sinks;
  for (const Request& request : requests) {
    Submission s;
    sinks.push_back(std::make_shared<KeepingSink>());
    s.ticket = book.open(sinks.back(), SIZE_MAX);
    s.request = request;
    s.prompt = *text.encode(request.prompt);
    s.price = *price_request({kMiniContext, options.planner.pool_blocks},
                             static_cast<int64_t>(s.prompt.ids.size()), request.max_tokens, true);
    if (!request.allowed_tokens.empty())
      s.mask = make_allow_list(kMiniVocab, request.allowed_tokens);
    loop.take(std::move(s));
    if (o.stagger == 0) continue;
    for (uint64_t turns = rng() % 5; turns > 0; --turns) loop.turn();
  }
  while (!loop.idle()) {
    loop.turn();
    BOOST_REQUIRE(!loop.failed());
  }
  std::vector<Reply> replies;
  for (const auto& sink : sinks) {
    replies.push_back(sink->reply());
    BOOST_REQUIRE(replies.back().finished == 1);
    BOOST_REQUIRE_MESSAGE(replies.back().status.ok(), replies.back().status.message());
  }
  return replies;
}

// Greedy or seeded, with any mixture of penalties, biases, masks, stop strings and
// log-probabilities.
inline Request random_mini_request(std::mt19937_64& rng, int prompt_max) {
  const auto chance = [&](unsigned percent) { return rng() % 100 < percent; };
  Request r;
  r.prompt.ids.emplace();
  for (uint64_t n = 1 + rng() % static_cast<uint64_t>(prompt_max); n > 0; --n)
    r.prompt.ids->push_back(static_cast<TokenId>(6 + rng() % 1000));
  r.max_tokens = 8 + static_cast<int>(rng() % 10);
  r.ignore_eos = true;
  r.top_logprobs = static_cast<int>(rng() % 4);
  if (chance(30)) {
    for (int i = 0; i < 4; ++i) r.stop.emplace_back(1, static_cast<char>(rng() % 256));
  }
  SamplingParams& s = r.sampling;
  s.seed = rng();
  s.temperature = chance(50) ? 0.0 : 0.8;
  s.top_p = chance(50) ? 0.9 : 1.0;
  s.presence_penalty = chance(25) ? 0.7 : 0.0;
  s.frequency_penalty = chance(25) ? 0.4 : 0.0;
  s.repetition_penalty = chance(25) ? 1.2 : 1.0;
  if (chance(20)) s.logit_bias = {{77, 2.0F}, {500, -2.0F}};
  if (chance(25)) {
    for (TokenId id = 0; id < kMiniVocab; ++id) {
      if (rng() % 2) r.allowed_tokens.push_back(id);
    }
  }
  return r;
}

// Ids, ends and log-probabilities, bit for bit.
inline bool same(const Reply& a, const Reply& b) {
  if (a.ids != b.ids || a.reason != b.reason || a.stats.token_sha != b.stats.token_sha ||
      a.logprobs.size() != b.logprobs.size())
    return false;
  for (size_t i = 0; i < a.logprobs.size(); ++i) {
    if (a.logprobs[i].id != b.logprobs[i].id || a.logprobs[i].logprob != b.logprobs[i].logprob ||
        a.logprobs[i].top != b.logprobs[i].top)
      return false;
  }
  return true;
}

}  // namespace tensorfold::scripted
