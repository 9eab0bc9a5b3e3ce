// tfctl grammar check and bench: constrained decoding without a daemon.
#include <unistd.h>

#include <fstream>
#include <iterator>
#include <ostream>

#include "ctl/grammar_bench.h"
#include "ctl/verbs.h"
#include "engine/grammar/constraint.h"
#include "engine/grammar/text_match.h"

namespace tensorfold::ctl {
namespace {

using grammar::ConstraintKind;
using grammar::ConstraintSpec;
using grammar::ToolChoice;

constexpr size_t kInputMaxBytes = size_t{64} << 20;

Result<std::string> read_file(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) return io_error(path, errno);
  std::string text((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  if (text.size() > kInputMaxBytes) return invalid_argument(path + ": too large");
  return text;
}

// A JSON list of texts, or one text a line.
Result<std::vector<std::string>> read_choices(const std::string& text) {
  std::vector<std::string> out;
  const Result<Json> json = parse_json(text);
  if (json.ok() && json->is_array()) {
    for (const Json& c : json->as_array()) {
      if (!c.is_string()) return invalid_argument("--choice: a list of texts expected");
      out.push_back(c.as_string());
    }
    return out;
  }
  for (size_t at = 0; at < text.size();) {
    const size_t end = std::min(text.find('\n', at), text.size());
    if (end > at) out.push_back(text.substr(at, end - at));
    at = end + 1;
  }
  return out;
}

// A list of tools, or an object with tools, tool_choice and parallel_tool_calls as a request has.
Status read_tools(const std::string& text, ConstraintSpec& spec) {
  const Result<Json> json = parse_json(text);
  if (!json.ok()) return json.status().with_context("--tools");
  const Json* list = json->is_array() ? &*json : json->find("tools");
  if (list == nullptr || !list->is_array()) return invalid_argument("--tools: a list expected");
  for (const Json& entry : list->as_array()) {
    const Json* function = entry.find("function");
    const Json& f = function != nullptr ? *function : entry;
    const Json* name = f.find("name");
    if (name == nullptr || !name->is_string())
      return invalid_argument("--tools: a tool without a name");
    grammar::ToolSpec tool{name->as_string(), {}, false};
    if (const Json* p = f.find("parameters")) tool.parameters = *p;
    spec.tools.push_back(std::move(tool));
  }
  const Json* choice = json->find("tool_choice");
  if (choice != nullptr && choice->is_string() && choice->as_string() == "auto")
    spec.tool_choice = ToolChoice::kAuto;
  if (choice != nullptr && choice->is_object()) {
    const Json* function = choice->find("function");
    const Json* name = function != nullptr ? function->find("name") : choice->find("name");
    if (name == nullptr || !name->is_string())
      return invalid_argument("--tools: tool_choice without a name");
    spec.tool_choice = ToolChoice::kNamed;
    spec.named = name->as_string();
  }
  const Json* parallel = json->find("parallel_tool_calls");
  if (parallel != nullptr && parallel->is_bool()) spec.parallel = parallel->as_bool();
  return ok_status();
}

Result<ConstraintSpec> read_spec(const Invocation& call) {
  ConstraintSpec spec;
  if (!call.has("--serving")) {
    spec.whitespace = grammar::Whitespace::kAny;
    spec.ordered = spec.closed = false;
  }
  int kinds = 0;
  for (const char* name : {"--schema", "--choice", "--ebnf", "--tools"}) {
    if (!call.has(name)) continue;
    ++kinds;
    const std::string option = name;
    TF_ASSIGN_OR_RETURN(std::string text, read_file(call.get(name)));
    if (option == "--schema") {
      spec.kind = ConstraintKind::kJsonSchema;
      spec.text = std::move(text);
    } else if (option == "--ebnf") {
      spec.kind = ConstraintKind::kEbnf;
      spec.text = std::move(text);
    } else if (option == "--choice") {
      spec.kind = ConstraintKind::kChoice;
      TF_ASSIGN_OR_RETURN(spec.choices, read_choices(text));
    } else {
      spec.tool_choice = ToolChoice::kRequired;
      TF_RETURN_IF_ERROR(read_tools(text, spec));
    }
  }
  if (call.has("--regex")) {
    ++kinds;
    spec.kind = ConstraintKind::kRegex;
    spec.text = call.get("--regex");
  }
  if (kinds != 1)
    return invalid_argument("one of --schema, --regex, --choice, --ebnf and --tools expected");
  return spec;
}

// An instance's text: JSON in a .json file counts as the value it is, not as its spelling.
std::string instance_text(const std::string& file, ConstraintKind kind) {
  if (kind == ConstraintKind::kJsonSchema) {
    const Result<Json> json = parse_json(file);
    if (json.ok()) return dump_json_python(*json);
  }
  std::string text = file;
  if (!text.empty() && text.back() == '\n') text.pop_back();
  return text;
}

int report(const Invocation& call, Json::Object fields, const std::string& line, bool good) {
  if (call.json) {
    *call.out << dump_json_python(Json::object(std::move(fields))) << "\n";
  } else {
    *call.out << line << "\n";
  }
  return good ? kExitOk : kExitFailed;
}

}  // namespace

int run_grammar_check(const Invocation& call) {
  const Result<ConstraintSpec> spec = read_spec(call);
  if (!spec.ok()) return fail(call, spec.status());
  const auto compiled = grammar::compile_program(*spec, grammar::kTextMarkerId);
  if (!compiled.ok()) {
    const Status& s = compiled.status();
    return report(call,
                  {{"result", Json::string("unsupported")},
                   {"reason", Json::string(s.reason())},
                   {"message", Json::string(s.message())}},
                  "cannot be enforced: " + s.message(), false);
  }
  Json::Array ignored;
  for (const std::string& i : compiled->ignored) {
    ignored.push_back(Json::string(i));
    if (!call.json) *call.err << "taken as an annotation: " << i << "\n";
  }
  Json::Object fields = {{"ignored", Json::array(std::move(ignored))}};
  if (!call.has("--instance")) {
    fields.emplace_back("result", Json::string("ok"));
    return report(call, std::move(fields), "ok", true);
  }
  const Result<std::string> file = read_file(call.get("--instance"));
  if (!file.ok()) return fail(call, file.status());
  const std::string text = instance_text(*file, spec->kind);
  const grammar::TextVerdict v = grammar::match_text(*compiled->program, text);
  fields.emplace_back("result", Json::string(v.accepted ? "accept" : "reject"));
  fields.emplace_back("at", Json::integer(static_cast<int64_t>(v.at)));
  fields.emplace_back("unfinished", Json::boolean(v.unfinished));
  const std::string where = " at byte " + std::to_string(v.at) + " of: " + text;
  return report(call, std::move(fields),
                v.accepted     ? "accept"
                : v.unfinished ? "reject: unfinished" + where
                               : "reject" + where,
                v.accepted);
}

int run_grammar_bench(const Invocation& call) {
  std::string path = call.get("--tokenizer", TF_TREE_DIR "/packaging/tiny-model/model");
  const std::string installed = "/usr/share/tensorfoldd/tiny/tokenizer.json";
  if (!call.has("--tokenizer") && access(installed.c_str(), R_OK) == 0) path = installed;
  const std::string inside = path + "/tokenizer.json";
  const auto tokenizer = Tokenizer::load(access(inside.c_str(), R_OK) == 0 ? inside : path);
  if (!tokenizer.ok()) return fail(call, tokenizer.status());
  const auto end = (*tokenizer)->id_of("<｜end▁of▁sentence｜>");
  if (!end) return fail(call, invalid_argument(path + ": no end-of-sentence token"));
  const auto vocab = grammar::VocabImage::from_tokenizer(**tokenizer, 0, {*end});
  if (!vocab.ok()) return fail(call, vocab.status());
  const auto bench = bench_folder(call.positional[0], **tokenizer, *vocab);
  if (!bench.ok()) return fail(call, bench.status());
  const bool clean = bench->valid_rejected.empty() && bench->invalid_accepted.empty();
  const Json json = bench_json(*bench);
  if (call.json) {
    *call.out << dump_json_python(json) << "\n";
    return clean ? kExitOk : kExitFailed;
  }
  *call.out << "passed " << bench->passed.size() << ", unsupported " << bench->unsupported.size()
            << ", valid rejected " << bench->valid_rejected.size() << ", invalid accepted "
            << bench->invalid_accepted.size() << "\n";
  for (const char* key :
       {"valid_rejected", "invalid_accepted", "mask_us", "warm_mask_us", "window_us", "compile_us"})
    *call.out << key << " " << dump_json_python(*json.find(key)) << "\n";
  for (size_t i = 0; i < bench->unsupported.size(); ++i)
    *call.out << "unsupported " << bench->unsupported[i] << ": " << bench->reasons[i] << "\n";
  return clean ? kExitOk : kExitFailed;
}

}  // namespace tensorfold::ctl
