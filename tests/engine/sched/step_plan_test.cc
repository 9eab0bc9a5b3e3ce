// StepPlan's binary form: what goes in comes out, equal plans have equal digests, every field is
// in the digest, and no damaged or hostile bytes get through or crash.
#include "engine/sched/step_plan.h"

#include <boost/test/unit_test.hpp>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <limits>
#include <random>
#include <string>
#include <string_view>
#include <utility>

using namespace tensorfold;

namespace {

StepPlan example() {
  StepPlan plan;
  plan.step = 0x1122334455667788ULL;
  plan.commands = {{CacheCommand::Kind::kOpenSlot, 2, 0, 0},
                   {CacheCommand::Kind::kAppendBlock, 2, 17, 0},
                   {CacheCommand::Kind::kTruncate, 0, 0, 129},
                   {CacheCommand::Kind::kSpillBlock, 0, 17, 0}};
  CacheNote note;
  note.name.bytes[3] = 9;
  note.first_position = 512;
  note.positions = 200;
  note.generated.set(77);
  note.images = {{500, 20, {}}};
  plan.notes = {note};
  plan.tokens = {5, 6, 7, 8};
  plan.slices = {
      {2, 0, 4, RowClass::kPrompt, RowKind::kText, TokenSource::kGiven, 0, 3, 1, 3},
      {0, 129, 3, RowClass::kGenerated, RowKind::kText, TokenSource::kDevice, 0, 3, 0, 3}};
  SampleSpec a;
  a.slot = 0;
  a.verify_rows = 3;
  a.position = 130;
  a.reply_position = 100;
  a.seed = 42;
  a.top_p = 0.9F;
  a.mask_slot = 1;
  a.draft_rows = 5;
  a.logit_bias = {{11, -1.5F}, {12, 3.0F}};
  SampleSpec b;
  b.slot = 2;
  b.position = 4;
  b.reply_position = 4;
  b.top_logprobs = 3;
  b.scored_rows = 2;
  b.prompt_logprobs = 4;
  plan.samples = {a, b};
  plan.mask_words = 2;
  plan.masks = {1, 2, 3, 4, 5, 6, 7, 8};
  return plan;
}

std::string refusal(const StepPlan& plan) {
  const auto decoded = decode_step_plan(encode_step_plan(plan));
  return decoded.ok() ? "" : decoded.status().message();
}

}  // namespace

BOOST_AUTO_TEST_CASE(round_trip_is_exact) {
  const StepPlan plan = example();
  const auto bytes = encode_step_plan(plan);
  auto decoded = decode_step_plan(bytes);
  BOOST_REQUIRE_MESSAGE(decoded.ok(), decoded.status().message());
  BOOST_TEST((encode_step_plan(*decoded) == bytes));
  BOOST_TEST(decoded->step == plan.step);
  BOOST_TEST((decoded->notes == plan.notes));
  BOOST_TEST(decoded->slices[0].decoder_floor == 1);
  BOOST_TEST((decoded->slices[1].source == TokenSource::kDevice));
  BOOST_TEST(decoded->samples[0].logit_bias[0].second == -1.5F);
  BOOST_TEST(decoded->samples[1].top_logprobs == 3);
  BOOST_TEST(decoded->masks == plan.masks);
  BOOST_TEST(decoded->total_rows() == 7);
  const auto empty = decode_step_plan(encode_step_plan(StepPlan{}));
  BOOST_REQUIRE(empty.ok());
  BOOST_TEST(empty->slices.empty());
}

BOOST_AUTO_TEST_CASE(form_and_digest_are_pinned) {
  // The stable form: a change of these is a new version of the plan.
  const auto bytes = encode_step_plan(StepPlan{});
  BOOST_TEST(bytes.size() == 4U + 4 + 8 + 5 * 4 + 4 + 4);
  BOOST_TEST(step_plan_digest(StepPlan{}).size() == 32U);
  BOOST_TEST(step_plan_digest(example()) == step_plan_digest(example()));
}

// What the fuzz target starts from must be plans of today's form, or it only sees refusals.
BOOST_AUTO_TEST_CASE(fuzz_seeds_are_of_this_form) {
  const std::pair<const char*, StepPlan> seeds[] = {{"empty", {}}, {"mixed", example()}};
  for (const auto& [name, plan] : seeds) {
    const std::string path = std::string(TF_TEST_DATA "/fuzz/step_plan/") + name;
    const auto bytes = encode_step_plan(plan);
    const std::string_view wanted(reinterpret_cast<const char*>(bytes.data()), bytes.size());
    if (std::getenv("TF_WRITE_DATA") != nullptr)
      std::ofstream(path, std::ios::binary).write(wanted.data(), std::ssize(wanted));
    std::ifstream file(path, std::ios::binary);
    const std::string held((std::istreambuf_iterator<char>(file)), {});
    BOOST_TEST((held == wanted), path << " is of another form: TF_WRITE_DATA=1 writes it anew");
  }
}

BOOST_AUTO_TEST_CASE(every_byte_of_a_plan_is_in_its_digest) {
  const auto bytes = encode_step_plan(example());
  const std::string digest = step_plan_digest(example());
  size_t decoded_others = 0;
  for (size_t i = 0; i < bytes.size(); ++i) {
    for (const unsigned flip : {1U, 0x80U}) {
      auto changed = bytes;
      changed[i] ^= static_cast<std::byte>(flip);
      const auto plan = decode_step_plan(changed);
      if (!plan.ok()) continue;
      ++decoded_others;
      BOOST_REQUIRE_MESSAGE(step_plan_digest(*plan) != digest, "byte " << i << " isn't covered");
      BOOST_REQUIRE((encode_step_plan(*plan) == changed));
    }
  }
  BOOST_TEST(decoded_others > 100U);
}

BOOST_AUTO_TEST_CASE(every_truncation_and_extension_is_refused) {
  const auto bytes = encode_step_plan(example());
  for (size_t n = 0; n < bytes.size(); ++n) {
    const auto cut = decode_step_plan(std::span(bytes).first(n));
    BOOST_REQUIRE_MESSAGE(!cut.ok(), "accepted " << n << " bytes");
    BOOST_REQUIRE((cut.status().code() == StatusCode::kDataLoss));
  }
  auto longer = bytes;
  longer.push_back(std::byte{0});
  BOOST_TEST(decode_step_plan(longer).status().message().find("1 bytes follow") !=
             std::string::npos);
}

BOOST_AUTO_TEST_CASE(hostile_counts_allocate_nothing) {
  auto bytes = encode_step_plan(StepPlan{});
  for (size_t at = 16; at + 4 <= bytes.size(); at += 4) {
    auto hostile = bytes;
    for (size_t i = 0; i < 4; ++i) hostile[at + i] = std::byte{0xFF};
    BOOST_TEST(!decode_step_plan(hostile).ok(), "count at byte " << at);
  }
}

BOOST_AUTO_TEST_CASE(random_bytes_never_crash) {
  std::mt19937_64 rng(7);
  const auto good = encode_step_plan(example());
  for (int round = 0; round < 20000; ++round) {
    auto bytes = good;
    const int edits = 1 + static_cast<int>(rng() % 8);
    for (int e = 0; e < edits; ++e) bytes[rng() % bytes.size()] = static_cast<std::byte>(rng());
    const auto plan = decode_step_plan(bytes);
    if (plan.ok()) BOOST_REQUIRE((encode_step_plan(*plan) == bytes));
  }
}

BOOST_AUTO_TEST_CASE(refusals_name_the_field) {
  const auto expect = [](auto change, const char* field) {
    StepPlan plan = example();
    change(plan);
    const std::string message = refusal(plan);
    BOOST_TEST(message.find(field) != std::string::npos, field << " not in: " << message);
  };
  expect([](StepPlan& p) { p.slices[0].rows = 0; }, "slices[0].rows");
  expect([](StepPlan& p) { p.slices[0].slot = 64; }, "slices[0].slot");
  expect([](StepPlan& p) { p.slices[0].rows = 5; }, "slices[0].token_offset");
  expect([](StepPlan& p) { p.slices[0].decoder_rows = 5; }, "slices[0].decoder_rows");
  expect([](StepPlan& p) { p.slices[0].logits_rows = 4; }, "slices[0].logits_rows");
  expect([](StepPlan& p) { p.slices[0].first_position = -1; }, "slices[0].first_position");
  expect([](StepPlan& p) { p.slices[1].rows = 7; }, "slices[1].rows");
  expect([](StepPlan& p) { p.slices[1].slot = 2; }, "slot 2 has two slices");
  expect([](StepPlan& p) { p.tokens[0] = -4; }, "tokens");
  expect([](StepPlan& p) { p.samples[0].slot = 1; }, "slot 1 has no slice");
  expect([](StepPlan& p) { p.samples[0].verify_rows = 2; }, "samples[0].verify_rows");
  expect([](StepPlan& p) { p.samples[1].verify_rows = 0; }, "samples[1].verify_rows");
  expect([](StepPlan& p) { p.samples[1].scored_rows = 65; }, "samples[1].scored_rows");
  expect([](StepPlan& p) { p.samples[1].prompt_logprobs = 129; }, "samples[1].prompt_logprobs");
  expect([](StepPlan& p) { p.samples[0].scored_rows = 1, p.samples[0].verify_rows = 2; },
         "samples[0].scored_rows are not of prompt rows");
  expect([](StepPlan& p) { p.samples[1].verify_rows = 0, p.samples[1].scored_rows = 3; },
         "samples[1].scored_rows is out of range");  // the id behind the last row is missing
  expect([](StepPlan& p) { p.samples[0].draft_rows = 6; }, "samples[0].draft_rows");
  expect([](StepPlan& p) { p.samples[0].mask_slot = 2; }, "samples[0].mask_slot");
  expect([](StepPlan& p) { p.samples[0].position = 0; }, "samples[0].position");
  expect([](StepPlan& p) { p.samples[0].temperature = std::numeric_limits<float>::quiet_NaN(); },
         "samples[0].temperature");
  expect([](StepPlan& p) { p.samples[1].repetition_penalty = 0; }, "repetition_penalty");
  expect([](StepPlan& p) { p.samples[0].logit_bias[1].first = -1; }, "samples[0].logit_bias");
  expect([](StepPlan& p) { std::swap(p.samples[0], p.samples[1]); }, "ascending");
  expect([](StepPlan& p) { p.masks.pop_back(); }, "masks");
  expect([](StepPlan& p) { p.commands[1].block = -1; }, "commands[1].block");
  expect([](StepPlan& p) { p.commands[0].kind = static_cast<CacheCommand::Kind>(64); },
         "commands[0].kind");
  expect([](StepPlan& p) { p.notes.clear(); }, "commands[3].value");
  expect([](StepPlan& p) { p.notes[0].positions = 257; }, "notes[0].positions");
  expect([](StepPlan& p) { p.notes[0].first_position = 511; }, "notes[0].first_position");
  expect([](StepPlan& p) { p.notes[0].images[0].rows = 0; }, "notes[0].image");
  expect([](StepPlan& p) { p.slices[0].row_class = static_cast<RowClass>(2); }, "row_class");
}
