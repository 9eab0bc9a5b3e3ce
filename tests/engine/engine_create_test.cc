// Engine::create on a model folder: the golden mini model with a tokenizer cut down to its
// vocabulary. The whole path from chat messages to text, and what a bad folder or option says.
#include <boost/test/unit_test.hpp>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <thread>

#include "tests/engine/scripted_text.h"
#include "tests/temp_folder.h"

using namespace tensorfold;
using scripted::KeepingSink;
using scripted::Reply;
namespace fs = std::filesystem;

namespace {

constexpr int kOrdinaryTokens = 990;  // ids behind these are the added tokens

std::string read_file(const fs::path& path) {
  std::ifstream in(path, std::ios::binary);
  BOOST_REQUIRE_MESSAGE(in.good(), "can't read " << path);
  std::ostringstream out;
  out << in.rdbuf();
  return out.str();
}

// The embedded model's tokenizer with its first merges only.
std::string small_tokenizer() {
  const std::string text =
      read_file(fs::path(TF_SOURCE_DIR) / "packaging/tiny-model/model/tokenizer.json");
  Json tokenizer = *parse_json(text);
  Json model = *tokenizer.find("model");
  Json::Object vocab;
  std::map<std::string, bool> kept;
  for (const auto& [token, id] : model.find("vocab")->as_object()) {
    if (*id.as_int64() >= kOrdinaryTokens) continue;
    vocab.emplace_back(token, id);
    kept[token] = true;
  }
  Json::Array merges;
  for (const Json& merge : model.find("merges")->as_array()) {
    std::string a, b;
    if (merge.is_array()) {
      a = merge.as_array()[0].as_string();
      b = merge.as_array()[1].as_string();
    } else {
      const std::string& pair = merge.as_string();
      a = pair.substr(0, pair.find(' '));
      b = pair.substr(pair.find(' ') + 1);
    }
    if (kept.count(a) && kept.count(b) && kept.count(a + b)) merges.push_back(merge);
  }
  model.set("vocab", Json::object(std::move(vocab)));
  model.set("merges", Json::array(std::move(merges)));
  tokenizer.set("model", std::move(model));
  Json added = *tokenizer.find("added_tokens");
  int64_t next = kOrdinaryTokens;
  for (Json& token : added.as_array()) {
    if (*token.find("id")->as_int64() >= kOrdinaryTokens) token.set("id", Json::integer(next++));
  }
  tokenizer.set("added_tokens", std::move(added));
  return dump_json_compact(tokenizer);
}

// A model folder of links and the small tokenizer, removed at the end.
class ModelFolder {
 public:
  ModelFolder() {
    const fs::path mini = fs::path(TF_TEST_DATA) / "golden/mini_native";
    for (const char* file : {"config.json", "engram_token_map.i32", "model.safetensors"})
      fs::create_symlink(mini / file, path / file);
    std::ofstream(path / "tokenizer.json") << small_tokenizer();
  }

 private:
  TempFolder folder_;

 public:
  const fs::path path = folder_.path();
};

EngineOptions options(const ModelFolder& folder) {
  EngineOptions o;
  o.model_path = folder.path.string();
  o.slots = 2;
  o.context = 1024;
  o.prefill_rows = 256;
  o.threads = 1;
  return o;
}

std::unique_ptr<Engine> start(const EngineOptions& o) {
  auto engine = Engine::create(o, system_clock(), null_log());
  BOOST_REQUIRE(engine.ok());
  for (int i = 0; i < 60000; ++i) {
    if ((*engine)->stats().state != EngineStats::State::kLoading) break;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return std::move(engine).value();
}

Request chat(const std::string& text) {
  Request r;
  ChatMessage m;
  m.content = {{ContentPart::Kind::kText, text, ""}};
  r.prompt.messages = {m};
  r.max_tokens = 12;
  r.sampling.seed = 7;
  return r;
}

Reply run(Engine& engine, Request request) {
  auto sink = std::make_shared<KeepingSink>();
  const auto id = engine.submit(std::move(request), sink);
  BOOST_REQUIRE_MESSAGE(id.ok(), id.status().message());
  return sink->wait_finished();
}

std::string failure(const EngineOptions& o) {
  const auto engine = start(o);
  BOOST_TEST((engine->stats().state == EngineStats::State::kFailed));
  return engine->stats().state_detail;
}

}  // namespace

BOOST_AUTO_TEST_CASE(messages_to_text) {
  const ModelFolder folder;
  auto engine = start(options(folder));
  BOOST_REQUIRE_MESSAGE((engine->stats().state == EngineStats::State::kReady),
                        engine->stats().state_detail);
  const ModelInfo info = engine->model();
  BOOST_TEST(info.architecture == "DeepseekV41ForCausalLM");
  BOOST_TEST(info.max_context == 1024);
  BOOST_TEST(info.vocab_size == 1024);
  BOOST_TEST(info.parameters > 10'000'000);
  BOOST_TEST(!info.fingerprint.empty());
  BOOST_TEST(engine->stats().weight_bytes > 0);
  BOOST_TEST(engine->stats().cache_bytes > 0);

  const Reply drafted = run(*engine, chat("Hello, how are you?"));
  BOOST_REQUIRE_MESSAGE(drafted.status.ok(), drafted.status.message());
  BOOST_TEST(drafted.stats.usage.prompt_tokens > 5);
  Request plain = chat("Hello, how are you?");
  plain.draft = false;
  const Reply serial = run(*engine, plain);
  BOOST_TEST(serial.ids == drafted.ids);
  BOOST_TEST(serial.stats.token_sha == drafted.stats.token_sha);
  BOOST_TEST(serial.stats.drafted == 0);
  Request reseeded = chat("Hello, how are you?");
  reseeded.sampling.seed = 8;
  BOOST_TEST(run(*engine, reseeded).ids != serial.ids);

  // The stream's text is the tokens' bytes, for a reply of ordinary tokens.
  Request ordinary = chat("Hello");
  for (TokenId id = 3; id < kOrdinaryTokens; ++id) {
    const std::string bytes = engine->token_text(id);
    if (!bytes.empty() && static_cast<unsigned char>(bytes[0]) < 0x80 && bytes[0] != '<')
      ordinary.allowed_tokens.push_back(id);
  }
  const Reply text = run(*engine, ordinary);
  BOOST_REQUIRE(text.ids.size() == 12U);
  auto stream = engine->output_stream({});
  OutputDelta delta = stream->feed(text.ids);
  std::string shown = delta.content + stream->finish().content;
  std::string bytes;
  for (const TokenId id : text.ids) bytes += engine->token_text(id);
  BOOST_TEST(shown == bytes);

  // A stop string of that text ends the reply inside it.
  Request stopping = ordinary;
  stopping.stop = {bytes.substr(bytes.size() / 2, 3)};
  const Reply stopped = run(*engine, stopping);
  BOOST_TEST((stopped.reason == FinishReason::kStop));
  BOOST_TEST(stopped.ids.size() < 12U);
  BOOST_TEST(std::equal(stopped.ids.begin(), stopped.ids.end(), text.ids.begin()));
}

BOOST_AUTO_TEST_CASE(thinking_starts_in_reasoning_and_its_budget_closes_it) {
  const ModelFolder folder;
  auto engine = start(options(folder));
  Request r = chat("Think.");
  r.prompt.thinking.enabled = true;
  r.prompt.thinking.budget = 4;
  r.ignore_eos = true;
  const Reply reply = run(*engine, r);
  BOOST_REQUIRE_MESSAGE(reply.status.ok(), reply.status.message());
  BOOST_TEST(reply.stats.usage.reasoning_tokens <= 4);
  bool closed = false;
  for (size_t i = 0; i < 5; ++i) closed |= engine->token_text(reply.ids[i]) == "</think>";
  BOOST_TEST(closed);
}

BOOST_AUTO_TEST_CASE(what_can_not_be_served_says_so) {
  const ModelFolder folder;
  EngineOptions o = options(folder);
  o.device = "gpu";
  BOOST_TEST(failure(o).find("not \"gpu\"") != std::string::npos);
  o.device = "cuda:7";
  setenv("TENSORFOLD_CUDA_LIBRARY", "/nonexistent/library.so", 1);
  BOOST_TEST(failure(o).find("/nonexistent/library.so") != std::string::npos);
  unsetenv("TENSORFOLD_CUDA_LIBRARY");
  o = options(folder);
  o.context = int64_t{1} << 30;
  BOOST_TEST(failure(o).find("engine.context") != std::string::npos);
  o.model_path = "";
  BOOST_TEST(failure(o).find("model.path") != std::string::npos);
  o.model_path = "/nonexistent/model";
  BOOST_TEST(failure(o).find("/nonexistent/model/config.json") != std::string::npos);
  fs::remove(folder.path / "tokenizer.json");
  BOOST_TEST(failure(options(folder)).find("tokenizer.json") != std::string::npos);
  std::ofstream(folder.path / "tokenizer.json")
      << read_file(fs::path(TF_SOURCE_DIR) / "packaging/tiny-model/model/tokenizer.json");
  BOOST_TEST(failure(options(folder)).find("config.json only 1024") != std::string::npos);
  std::ofstream(folder.path / "tokenizer.json") << small_tokenizer();
  fs::remove(folder.path / "model.safetensors");
  BOOST_TEST(failure(options(folder)).find("safetensors") != std::string::npos);
}
