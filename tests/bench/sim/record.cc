// See the header. Plans are written by hand: one sequence, its prompt in one step, then a row a
// step with drafts behind each.
#include "tests/bench/sim/record.h"

#include <algorithm>
#include <memory>
#include <utility>

#include "engine/model/model.h"
#include "engine/step_executor.h"
#include "engine/text_codec.h"

namespace tensorfold::sim {
namespace {

constexpr int kReplyTokensMax = 400;
constexpr int kPromptTokensMax = 512;
constexpr int kBlocks = (kReplyTokensMax + kPromptTokensMax) / kBlockPositions + 1;

struct Questions {
  const char* kind;
  float temperature;
  std::vector<std::string> texts;  // by turns for fitting and for judging
};

// Functions of the kind that the embedded model writes, in both languages: replies are short, so
// it takes many of them to judge anything.
std::vector<std::string> code_questions() {
  constexpr std::pair<const char*, const char*> kFunctions[] = {
      {"add_pair", "adds two numbers"},
      {"take_away", "subtracts two numbers"},
      {"multiply_both", "multiplies two numbers"},
      {"larger_of", "returns the larger of two numbers"},
      {"smaller_of", "returns the smaller of two numbers"},
      {"square_it", "returns the square of a number"},
      {"twice", "doubles a number"},
      {"count_items", "returns the length of a list"},
      {"first_item", "returns the first item of a list"},
      {"last_item", "returns the last item of a list"},
      {"is_even", "checks if a number is even"},
      {"is_odd", "checks if a number is odd"},
      {"join_words", "joins two strings"},
      {"size_of_number", "returns the absolute value of a number"},
      {"shout", "converts a string to upper case"},
      {"whisper", "converts a string to lower case"}};
  std::vector<std::string> out;
  for (const std::string language : {"Python", "JavaScript"}) {
    for (const auto& [name, what] : kFunctions) {
      const std::string n = name;
      const std::string w = what;
      out.push_back("Write a " + language + " function " + n + " that " + w + ".");
      out.push_back("In " + language + ", write " + n + "_now, a function that " + w + ".");
      out.push_back("Please write a " + language + " function named new_" + n + " that " + w + ".");
      out.push_back("I need a " + language + " function called my_" + n + " that " + w + ".");
    }
  }
  for (const std::string who : {"Anna", "Tom", "Rosa", "Karl"}) {
    out.push_back("Give me a JSON record with name " + who + ", age 31 and city Rome.");
    out.push_back("Write a JSON object with name " + who + ", job baker and color green.");
    out.push_back("Make JSON: name " + who + ", score 45 and active true.");
    out.push_back("Please return JSON with name " + who + ", pet fox, item lamp and count 17.");
  }
  return out;
}

// What the embedded model was trained for, greedy, and at temperature 1 beside things that it was
// not trained for, where drafts fail more.
std::vector<Questions> questions() {
  return {{"counting",
           0,
           {"Count from 1 to 60.", "Count from 2 to 64.", "Count down from 50 to 5.",
            "Count down from 40 to 1.", "Count from 7 to 71.", "Count from 11 to 77.",
            "Count from 100 to 150.", "Count from 110 to 160.", "Count from 20 to 80.",
            "Count from 30 to 90.", "Count from 3 to 55.", "Count from 5 to 49."}},
          {"code", 0, code_questions()},
          {"story",
           0,
           {"Write a short story about Anna the baker and Tom the fox.",
            "Write a short story about Nina the pilot and Felix the fox.",
            "Tell me a short story about Peter the sailor and Mia the cat.",
            "Tell me a short story about Karl the miller and Luna the cat.",
            "Tell a story about a farmer named Paul and a horse named Bella.",
            "Tell a story about a nurse named Emma and a dog named Rex.",
            "Please write a story with Lily the doctor and Max the dog.",
            "Please write a story with Oscar the gardener and Pip the mouse.",
            "Write a short story about Clara the teacher and Otto the owl.",
            "Write a short story about Vera the singer and Hugo the bear.",
            "Tell me a short story about Ben the painter and Ruby the goat.",
            "Tell me a short story about Sam the smith and Daisy the cow."}},
          {"sampled",
           1,
           {"Write a short story about Anna the baker and Tom the fox.",
            "Write a short story about Nina the pilot and Felix the fox.",
            "Tell me a short story about Peter the sailor and Mia the cat.",
            "Tell me a short story about Karl the miller and Luna the cat.",
            "What is the capital of France, and why did it become the capital?",
            "What is a volcano, and why do people live beside one?",
            "Explain how a sailing ship can go against the wind.",
            "Explain why the sky is blue and sunsets are red.",
            "Write about 100 words on how the printing press changed who could read.",
            "Write about 100 words on how railways changed the time of day.",
            "Write an essay about the people who kept remote lighthouses burning.",
            "Write an essay about winter in a small harbor town."}}};
}

class Recorder {
 public:
  Recorder(Model& model, const TextCodec& text) : executor_(model), text_(text) {}

  Status reply(const char* question, float temperature, uint64_t seed, Trace& trace) {
    Prompt prompt;
    ChatMessage message;
    message.content.push_back({ContentPart::Kind::kText, question, ""});
    prompt.messages.push_back(std::move(message));
    TF_ASSIGN_OR_RETURN(const PromptIds ids, text_.encode(prompt));
    if (ids.ids.size() > static_cast<size_t>(kPromptTokensMax))
      return invalid_argument("a question is too long");
    sample_ = {};
    sample_.temperature = temperature;
    sample_.seed = seed;
    sample_.draft_rows = kDraftRowsMax;
    tokens_.clear();
    drafts_.clear();
    TF_RETURN_IF_ERROR(fill(ids.ids));
    auto length = static_cast<int64_t>(ids.ids.size());
    while (tokens_.size() < kReplyTokensMax && !text_.ends_reply(tokens_.back()))
      TF_RETURN_IF_ERROR(row(length++));
    StepPlan close;
    close.commands.push_back({CacheCommand::Kind::kCloseSlot, 0, 0, 0});
    TF_RETURN_IF_ERROR(executor_.run(close, results_));
    add_points(trace);
    return ok_status();
  }

 private:
  Status fill(const std::vector<TokenId>& ids) {
    StepPlan plan;
    plan.commands.push_back({CacheCommand::Kind::kOpenSlot, 0, 0, 0});
    for (BlockId b = 0; b < kBlocks; ++b)
      plan.commands.push_back({CacheCommand::Kind::kAppendBlock, 0, b, 0});
    Slice slice;
    slice.rows = static_cast<int32_t>(ids.size());
    slice.decoder_rows = slice.rows;
    slice.logits_rows = 1;
    plan.tokens = ids;
    return run(plan, slice, slice.rows);
  }

  Status row(int64_t length) {
    StepPlan plan;
    Slice slice;
    slice.first_position = length;
    slice.rows = slice.decoder_rows = slice.logits_rows = 1;
    slice.row_class = RowClass::kGenerated;
    slice.source = TokenSource::kDevice;
    return run(plan, slice, length + 1);
  }

  Status run(StepPlan& plan, const Slice& slice, int64_t position) {
    plan.slices.push_back(slice);
    sample_.position = position;
    sample_.reply_position = position;
    plan.samples.push_back(sample_);
    TF_RETURN_IF_ERROR(executor_.run(plan, results_));
    TF_RETURN_IF_ERROR(results_[0].status);
    tokens_.push_back(results_[0].accepted.back());
    drafts_.push_back({results_[0].drafts, results_[0].draft_confidence});
    return ok_status();
  }

  // drafts_[i] follow tokens_[i]; a draft counts as wrong where the reply has ended.
  void add_points(Trace& trace) const {
    for (size_t i = 0; i + 1 < tokens_.size(); ++i) {
      TracePoint p;
      p.begins = i == 0;
      const auto& [ids, confidence] = drafts_[i];
      const auto ends = [this](int32_t id) { return text_.ends_reply(id); };
      const auto end = std::find_if(ids.begin(), ids.end(), ends);
      p.usable = std::min(p.usable, static_cast<int32_t>(end - ids.begin()));
      bool right = true;
      for (size_t k = 0; k < std::min(ids.size(), p.confidence.size()); ++k) {
        p.confidence[k] = confidence[k];
        right = right && i + 1 + k < tokens_.size() && ids[k] == tokens_[i + 1 + k];
        p.right += right;
      }
      trace.points.push_back(p);
    }
  }

  StepExecutor executor_;
  const TextCodec& text_;
  SampleSpec sample_;
  std::vector<SampledTokens> results_;
  std::vector<int32_t> tokens_;
  std::vector<std::pair<std::vector<int32_t>, std::vector<float>>> drafts_;
};

}  // namespace

Result<std::vector<Trace>> record_traces(const std::string& model_path, const RecordPart& what) {
  TF_ASSIGN_OR_RETURN(const ModelConfig config, load_model_config(model_path + "/config.json"));
  TF_ASSIGN_OR_RETURN(const auto text, load_text_codec(model_path, config.eos_token_id, false));
  const auto collective = make_single_collective();
  ModelOptions options;
  options.model_path = model_path;
  options.slots = 1;
  options.pool_blocks = kBlocks;
  options.context = kReplyTokensMax + kPromptTokensMax;
  options.rows_max = kPromptTokensMax;
  options.threads = 1;  // what it records is the same with any number
  TF_ASSIGN_OR_RETURN(const auto model, Model::load(options, *collective));
  Recorder recorder(what.view ? what.view(*model) : *model, *text);
  std::vector<Trace> traces;
  uint64_t seed = 1;
  for (const size_t part : {size_t{0}, size_t{1}}) {
    if (part == 1 && what.greedy_replies > 0) break;
    for (const Questions& q : questions()) {
      if (what.greedy_replies > 0 && q.temperature > 0) continue;
      Trace trace{(part == 0 ? "fit-" : "judge-") + std::string(q.kind), {}};
      size_t end = q.texts.size();
      if (what.greedy_replies > 0) end = std::min(end, 2 * what.greedy_replies);
      for (size_t i = part; i < end; i += 2)
        TF_RETURN_IF_ERROR(recorder.reply(q.texts[i].c_str(), q.temperature, seed++, trace));
      traces.push_back(std::move(trace));
    }
  }
  return traces;
}

}  // namespace tensorfold::sim
