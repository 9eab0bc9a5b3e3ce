// A JSON reply of the embedded model: drafts that its schema forces save rounds and change nothing.
#include <memory>

#include "engine/constraint_service.h"
#include "engine/text_codec.h"
#include "tests/engine/loop_harness.h"

using namespace tensorfold;
using namespace tensorfold::scripted;

namespace {

const char* const kModelPath = TF_SOURCE_DIR "/packaging/tiny-model/model";
constexpr int64_t kContextTokens = 1024;
const char* const kSchema =
    R"({"type":"object","properties":{"temperature":{"type":"integer"},
        "conditions":{"enum":["sunny","cloudy"]},"recommendation":{"type":"string","maxLength":8}},
        "required":["temperature","conditions","recommendation"],"additionalProperties":false})";

struct Counted {
  std::vector<TokenId> ids;
  int rounds = 0;
  uint64_t drafted = 0, accepted = 0;
};

Counted reply(Model& model, const TextCodec& text, const MaskSource& mask, bool draft, bool forced,
              int depth, double temperature) {
  StepExecutor executor(model);
  LoggingRunner runner(executor);
  ManualClock clock;
  StatsBoard board;
  TicketBook book;
  const auto policy = make_fixed_depth_policy(depth);
  LoopOptions options;
  options.planner.slots = 1;
  options.planner.prefill_rows = 256;
  options.planner.pool_blocks = blocks_for(kContextTokens);
  options.planner.decoder_span = model.config().cone_rows();
  options.planner.draft_rows = kDraftRowsMax;
  options.vocab = model.config().vocab_size;
  options.queue_deadline_us = INT64_MAX;
  options.masks.forced_drafts = forced;
  EngineLoop loop(options, {runner, text, *policy, clock, null_log(), board});
  auto sink = std::make_shared<KeepingSink>();
  Submission s;
  s.ticket = book.open(sink, SIZE_MAX);
  ChatMessage message;
  message.role = Role::kUser;
  message.content.emplace_back();
  message.content.back().text = "How is the weather?";
  s.request.prompt.messages.push_back(message);
  s.request.max_tokens = 120;
  s.request.draft = draft;
  s.request.sampling.temperature = temperature;
  s.request.sampling.seed = 7;
  s.prompt = *text.encode(s.request.prompt);
  s.price = *price_request({kContextTokens, options.planner.pool_blocks},
                           static_cast<int64_t>(s.prompt.ids.size()), s.request.max_tokens, true);
  s.mask = std::shared_ptr<const MaskSource>(&mask, [](const MaskSource*) {});
  loop.take(std::move(s));
  while (!loop.idle()) {
    loop.turn();
    BOOST_REQUIRE(!loop.failed());
  }
  BOOST_REQUIRE_MESSAGE(sink->reply().status.ok(), sink->reply().status.message());
  return {sink->reply().ids, sink->reply().stats.rounds, board.forced_drafted.load(),
          board.forced_accepted.load()};
}

}  // namespace

BOOST_AUTO_TEST_CASE(a_json_reply_of_the_embedded_model) {
  const auto collective = make_single_collective();
  ModelOptions model_options;
  model_options.model_path = kModelPath;
  model_options.slots = 1;
  model_options.context = kContextTokens;
  model_options.rows_max = 256 + 1 + kDraftRowsMax;
  model_options.threads = 1;
  const auto model = Model::load(model_options, *collective);
  BOOST_REQUIRE_MESSAGE(model.ok(), model.status().message());
  const auto text = load_text_codec(kModelPath, (*model)->config().eos_token_id, false);
  BOOST_REQUIRE(text.ok());
  const auto vocab = (*text)->vocab_image((*model)->config().vocab_size);
  BOOST_REQUIRE(vocab.ok());
  ConstraintService service(*vocab);
  grammar::ConstraintSpec spec;
  spec.kind = grammar::ConstraintKind::kJsonSchema;
  spec.text = kSchema;
  const auto made = service.compile(spec, false);
  BOOST_REQUIRE_MESSAGE(made.ok(), made.status().message());
  for (const double temperature : {0.0, 1.0}) {
    const Counted serial = reply(**model, **text, *made->source, false, false, 0, temperature);
    BOOST_TEST(serial.drafted == 0U);
    for (const int depth : {0, 3}) {
      const Counted without =
          reply(**model, **text, *made->source, true, false, depth, temperature);
      const Counted with = reply(**model, **text, *made->source, true, true, depth, temperature);
      BOOST_TEST((without.ids == serial.ids));
      BOOST_TEST((with.ids == serial.ids));
      BOOST_TEST(with.rounds < without.rounds);
      BOOST_TEST(with.accepted > 0U);
      // What is often written otherwise is drafted less often.
      BOOST_TEST(with.accepted * 4 > with.drafted);
      BOOST_TEST_MESSAGE("temperature " << temperature << ", depth " << depth << ": rounds "
                                        << serial.rounds << " serial, " << without.rounds
                                        << " drafted, " << with.rounds << " with forced drafts ("
                                        << with.accepted << " of " << with.drafted << " right)");
    }
  }
}
