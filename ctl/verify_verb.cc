// tfctl verify: five requests that show whether a server does what clients rely on. Each prints
// PASS or FAIL with what was received. Works against any server of the OpenAI API that has these
// fields.
#include <ostream>
#include <string>
#include <utility>
#include <vector>

#include "ctl/bench/http_wire.h"
#include "ctl/bench/runs.h"
#include "ctl/control_client.h"
#include "ctl/verbs.h"

namespace tensorfold::ctl {
namespace {

constexpr std::string_view kDefaultUrl = "http://127.0.0.1:8888";
constexpr size_t kShownBytesMax = 200;  // of what was received
constexpr int64_t kReplyTokens = 400;

struct Verdict {
  std::string name;
  bool passed = false;
  std::string received;  // or what was wrong
};

std::string shown(const std::string& text) {
  std::string out;
  append_json_string(out, text.size() <= kShownBytesMax ? text : text.substr(0, kShownBytesMax));
  return text.size() <= kShownBytesMax ? out : out + "...";
}

const Json* at(const Json& json, std::initializer_list<std::string_view> path) {
  const Json* here = &json;
  for (const std::string_view name : path) {
    if (here == nullptr) return nullptr;
    if (name == "[0]") {
      here = here->is_array() && !here->as_array().empty() ? &here->as_array()[0] : nullptr;
    } else {
      here = here->find(name);
    }
  }
  return here;
}

std::string text_at(const Json& json, std::initializer_list<std::string_view> path) {
  const Json* found = at(json, path);
  return found != nullptr && found->is_string() ? found->as_string() : std::string();
}

int64_t int_at(const Json& json, std::initializer_list<std::string_view> path) {
  const Json* found = at(json, path);
  return found != nullptr && found->is_int() ? found->as_int64().value_or(-1) : -1;
}

class Checks {
 public:
  Checks(bench::Wire& wire, std::string model) : wire_(wire), model_(std::move(model)) {}

  std::vector<Verdict> run() {
    greedy();
    thinking();
    forced_call();
    schema();
    tokens();
    return std::move(verdicts_);
  }

 private:
  // {"model", "messages", "max_tokens", "temperature": 0} and more.
  Json body(const std::string& question, Json::Object more) const {
    Json::Object message = {{"role", Json::string("user")}, {"content", Json::string(question)}};
    Json::Object out = {{"model", Json::string(model_)},
                        {"messages", Json::array({Json::object(std::move(message))})}};
    for (auto& member : more) out.push_back(std::move(member));
    return Json::object(std::move(out));
  }

  Result<Json> post(const std::string& path, const Json& request) {
    TF_ASSIGN_OR_RETURN(const bench::HttpReply reply,
                        wire_.exchange({"POST", path, dump_json_compact(request)}, nullptr));
    auto json = parse_json(reply.body);
    if (reply.status != 200) {
      const std::string message = json.ok() ? text_at(*json, {"error", "message"}) : reply.body;
      return Status(StatusCode::kInternal,
                    "HTTP " + std::to_string(reply.status) + " " + shown(message));
    }
    return json;
  }

  Result<Json> chat(const std::string& question, Json::Object more) {
    more.emplace_back("temperature", Json::integer(0));
    more.emplace_back("max_tokens", Json::integer(kReplyTokens));
    return post("/v1/chat/completions", body(question, std::move(more)));
  }

  void verdict(const char* name, bool passed, std::string received) {
    verdicts_.push_back({name, passed, std::move(received)});
  }

  bool failed(const char* name, const Result<Json>& reply) {
    if (!reply.ok()) verdict(name, false, reply.status().message());
    return !reply.ok();
  }

  void greedy() {
    const char* name = "greedy chat";
    std::string texts[2];
    for (std::string& text : texts) {
      const auto reply = chat("What is the capital of France?", {});
      if (failed(name, reply)) return;
      text = text_at(*reply, {"choices", "[0]", "message", "content"});
    }
    verdict(
        name, !texts[0].empty() && texts[0] == texts[1],
        texts[0] == texts[1] ? shown(texts[0]) : shown(texts[0]) + " and then " + shown(texts[1]));
  }

  void thinking() {
    const char* name = "thinking";
    Json::Object more = {{"reasoning_effort", Json::string("low")},
                         {"thinking_budget", Json::integer(kReplyTokens / 2)}};
    const auto reply = chat("What is 17 times 23?", std::move(more));
    if (failed(name, reply)) return;
    const std::string reasoning =
        text_at(*reply, {"choices", "[0]", "message", "reasoning_content"});
    const std::string content = text_at(*reply, {"choices", "[0]", "message", "content"});
    const bool apart = content.find("think>") == std::string::npos;
    const int64_t counted =
        int_at(*reply, {"usage", "completion_tokens_details", "reasoning_tokens"});
    verdict(name, !reasoning.empty() && apart && counted > 0,
            "reasoning " + shown(reasoning) + ", content " + shown(content) + ", " +
                std::to_string(counted) + " reasoning tokens");
  }

  void forced_call() {
    const char* name = "forced tool call";
    const auto tools = parse_json(
        R"([{"type":"function","function":{"name":"emit","description":"takes the result",
        "parameters":{"type":"object","properties":{"n":{"type":"integer"}},"required":["n"],
        "additionalProperties":false}}}])");
    const auto choice = parse_json(R"({"type":"function","function":{"name":"emit"}})");
    const auto reply =
        chat("17*23? Hand over the result.", {{"tools", *tools}, {"tool_choice", *choice}});
    if (failed(name, reply)) return;
    const std::string called =
        text_at(*reply, {"choices", "[0]", "message", "tool_calls", "[0]", "function", "name"});
    const std::string arguments = text_at(
        *reply, {"choices", "[0]", "message", "tool_calls", "[0]", "function", "arguments"});
    const std::string finish = text_at(*reply, {"choices", "[0]", "finish_reason"});
    const auto parsed = parse_json(arguments);
    const bool right = parsed.ok() && at(*parsed, {"n"}) != nullptr && at(*parsed, {"n"})->is_int();
    verdict(name, called == "emit" && right && finish == "tool_calls",
            shown(called) + " with " + shown(arguments) + ", finish_reason " + shown(finish));
  }

  void schema() {
    const char* name = "JSON schema";
    const auto format = parse_json(
        R"({"type":"json_schema","json_schema":{"name":"city","schema":{"type":"object",
        "properties":{"city":{"type":"string","maxLength":40},"large":{"type":"boolean"}},
        "required":["city","large"],"additionalProperties":false}}})");
    const auto reply = chat("Name a city, as JSON.", {{"response_format", *format}});
    if (failed(name, reply)) return;
    const std::string content = text_at(*reply, {"choices", "[0]", "message", "content"});
    const auto parsed = parse_json(content);
    const bool right = parsed.ok() && parsed->is_object() && parsed->as_object().size() == 2 &&
                       at(*parsed, {"city"}) != nullptr && at(*parsed, {"city"})->is_string() &&
                       at(*parsed, {"large"}) != nullptr && at(*parsed, {"large"})->is_bool();
    verdict(name, right, shown(content));
  }

  void tokens() {
    const char* name = "tokenize and usage";
    const std::string question = "Count \xC3\xBC and \xF0\x9F\x98\x80.";
    const auto counted = post("/tokenize", body(question, {}));
    if (failed(name, counted)) return;
    const auto reply = post(
        "/v1/chat/completions",
        body(question, {{"max_tokens", Json::integer(2)}, {"ignore_eos", Json::boolean(true)}}));
    if (failed(name, reply)) return;
    const int64_t count = int_at(*counted, {"count"});
    const int64_t prompt = int_at(*reply, {"usage", "prompt_tokens"});
    const int64_t made = int_at(*reply, {"usage", "completion_tokens"});
    verdict(name, count > 0 && count == prompt && made == 2,
            std::to_string(count) + " tokens counted, usage says " + std::to_string(prompt) +
                " and " + std::to_string(made) + " made of 2");
  }

  bench::Wire& wire_;
  const std::string model_;
  std::vector<Verdict> verdicts_;
};

void print(const Invocation& call, const std::vector<Verdict>& verdicts) {
  if (!call.json) {
    for (const Verdict& v : verdicts) {
      *call.out << (v.passed ? "PASS  " : "FAIL  ") << v.name << ": " << v.received << "\n";
    }
    return;
  }
  Json::Array list;
  for (const Verdict& v : verdicts) {
    list.push_back(Json::object({{"name", Json::string(v.name)},
                                 {"passed", Json::boolean(v.passed)},
                                 {"received", Json::string(v.received)}}));
  }
  *call.out << dump_json_compact(Json::object({{"checks", Json::array(std::move(list))}})) << "\n";
}

}  // namespace

int run_verify(const Invocation& call) {
  const auto url = bench::parse_url(call.get("--url", kDefaultUrl));
  if (!url.ok()) {
    *call.err << "tfctl: " << url.status().message() << "\n";
    return kExitUsage;
  }
  bench::HttpWireOptions options;
  if (call.has("--key-file")) {
    auto key = bench::read_key_file(call.get("--key-file"));
    if (!key.ok()) return fail(call, key.status());
    options.key = *std::move(key);
  }
  auto wire = bench::open_http_wire(*url, std::move(options), system_clock());
  if (!wire.ok()) return control_failure(call, wire.status());
  std::string model = call.get("--model");
  if (model.empty()) {
    auto first = bench::first_model(**wire);
    if (!first.ok()) return control_failure(call, first.status());
    model = *std::move(first);
  }
  const std::vector<Verdict> verdicts = Checks(**wire, std::move(model)).run();
  print(call, verdicts);
  for (const Verdict& v : verdicts)
    if (!v.passed) return kExitFailed;
  return kExitOk;
}

}  // namespace tensorfold::ctl
