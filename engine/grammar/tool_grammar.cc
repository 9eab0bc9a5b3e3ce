// Tool calls in the model's markup (docs/grammar.md has the form). The marker is one token; the
// brackets, slashes and tag names around it are ordinary text. A parameter's string attribute and
// the kind of its value go together: text as it is for strings, JSON for everything else.
#include <algorithm>

#include "engine/grammar/constraint.h"
#include "engine/grammar/regex.h"
#include "engine/grammar/schema_compile.h"

namespace tensorfold::grammar {
namespace {

struct Tags {
  std::string calls, invoke, parameter;
};

Tags tags_of(ToolMarkup markup) {
  if (markup == ToolMarkup::kV4) return {"tool_calls", "invoke", "parameter"};
  return {" calls", " invoke", " parameter"};
}

class ToolCompiler {
 public:
  ToolCompiler(const ConstraintSpec& spec, int32_t marker, Program& program)
      : spec_(spec), program_(program), tags_(tags_of(spec.markup)) {
    marker_ = program_.symbol(marker);
  }

  Status compile(std::vector<std::string>& ignored) {
    std::vector<uint32_t> invokes;
    for (size_t i = 0; i < spec_.tools.size(); ++i) {
      const ToolSpec& tool = spec_.tools[i];
      if (spec_.tool_choice == ToolChoice::kNamed && tool.name != spec_.named) continue;
      Result<uint32_t> invoke = one_tool(tool, tool.parameters, ignored);
      if (!invoke.ok() && !tool.strict) {
        ignored.push_back("tool \"" + tool.name + "\": " + invoke.status().message());
        invoke = one_tool(tool, relaxed(tool.parameters), ignored);
        if (!invoke.ok()) invoke = one_tool(tool, Json::null(), ignored);
      }
      if (!invoke.ok()) {
        const Status& s = invoke.status();
        const std::string param = "tools[" + std::to_string(i) + "].function.parameters";
        return Status(s.code(), param + ": tool \"" + tool.name + "\": " + s.message(), param,
                      s.reason());
      }
      invokes.push_back(*invoke);
    }
    if (invokes.empty())
      return invalid_argument("tool_choice names \"" + spec_.named + "\", which is not among tools",
                              "tool_choice");
    const uint32_t any = program_.choice(std::move(invokes));
    uint32_t calls = any;
    if (spec_.parallel && spec_.tool_choice != ToolChoice::kNamed) {
      const uint32_t rule = program_.add_expr({Expr::Kind::kRule, 0, {}});
      const uint32_t more = program_.choice({program_.add_expr({}), rule});
      calls = program_.sequence({any, more});
      program_.exprs[rule].a = calls;
    }
    const uint32_t block =
        program_.sequence({marker_, program_.literal(tags_.calls + ">\n"), calls,
                           program_.literal("</"), marker_, program_.literal(tags_.calls + ">")});
    if (spec_.tool_choice != ToolChoice::kAuto) {
      program_.root = program_.sequence({program_.literal("\n\n<"), block});
      return ok_status();
    }
    if (spec_.kind != ConstraintKind::kText) {
      const uint32_t content = program_.root;
      program_.root =
          program_.choice({content, program_.sequence({program_.literal("\n\n<"), block})});
      return ok_status();
    }
    TF_ASSIGN_OR_RETURN(const uint32_t free, free_text(false));
    TF_ASSIGN_OR_RETURN(const uint32_t before, free_text(true));
    program_.root = program_.choice({free, program_.sequence({before, block})});
    return ok_status();
  }

 private:
  // Any bytes at all; with `opener`, those that end in what comes before a block's marker.
  Result<uint32_t> free_text(bool opener) {
    Nfa nfa;
    const int32_t start = nfa.add();
    nfa.edge(start, 0, 255, start);
    int32_t end = start;
    if (opener) {
      end = nfa.add();
      nfa.text(start, "\n\n<", end);
    }
    TF_ASSIGN_OR_RETURN(const DfaPtr dfa, nfa_to_dfa(nfa, start, end));
    return program_.add_expr({Expr::Kind::kTerminal, program_.add_dfa(dfa), {}});
  }

  // What is left of a schema that cannot be enforced when nobody asked for it strictly: names of
  // parameters, their plain types, and which must be there.
  static Json relaxed(const Json& parameters) {
    const Json* properties = parameters.find("properties");
    if (properties == nullptr || !properties->is_object()) return Json::null();
    Json::Object kept;
    for (const auto& [name, schema] : properties->as_object()) {
      const Json* type = schema.is_object() ? schema.find("type") : nullptr;
      const bool plain = type != nullptr && (type->is_string() || type->is_array());
      kept.emplace_back(name, plain ? Json::object({{"type", *type}}) : Json::boolean(true));
    }
    Json::Object out = {{"type", Json::string("object")}};
    out.emplace_back("properties", Json::object(std::move(kept)));
    if (const Json* required = parameters.find("required")) out.emplace_back("required", *required);
    return Json::object(std::move(out));
  }

  Result<uint32_t> one_tool(const ToolSpec& tool, const Json& parameters_schema,
                            std::vector<std::string>& ignored) {
    if (tool.name.empty() || tool.name.find_first_of("\"\n<>") != std::string::npos)
      return invalid_argument("a name without quotes, brackets and line ends expected");
    Json schema = parameters_schema.is_null() ? Json::boolean(true) : parameters_schema;
    TF_ASSIGN_OR_RETURN(const std::unique_ptr<SchemaDoc> doc, SchemaDoc::load(std::move(schema)));
    const Json object = Json::object({{"type", Json::string("object")}});
    Program values;
    SchemaCompiler compiler(*doc, {false, true}, values);
    Conj conj = {{&doc->root(), false}, {&object, false}};
    std::sort(conj.begin(), conj.end());
    TF_ASSIGN_OR_RETURN(const int32_t root, compiler.compile(conj));
    if (root == kNoNode)
      return invalid_argument("parameters: no value satisfies the schema", "",
                              "unsatisfiable_schema");
    if (tool.strict && !compiler.terms().ignored().empty()) {
      return invalid_argument("strict: " + compiler.terms().ignored()[0] + " cannot be enforced",
                              "", "unsupported_schema");
    }
    for (const std::string& i : compiler.terms().ignored())
      ignored.push_back("tool \"" + tool.name + "\": " + i);
    const Base base = absorb(values);
    std::vector<uint32_t> bodies;
    for (const uint32_t o : values.nodes[static_cast<size_t>(root)].objects) {
      TF_ASSIGN_OR_RETURN(const uint32_t body, parameters(values.objects[o], base));
      bodies.push_back(body);
    }
    if (bodies.empty()) return invalid_argument("parameters: not an object");
    return program_.sequence({program_.literal("<"), marker_,
                              program_.literal(tags_.invoke + " name=\"" + tool.name + "\">\n"),
                              program_.choice(std::move(bodies))});
  }

  // Where another program's tables begin in ours once copied.
  struct Base {
    uint32_t dfas, texts, nodes, objects, arrays;
  };

  Base absorb(const Program& from) {
    const Base base{static_cast<uint32_t>(program_.dfas.size()),
                    static_cast<uint32_t>(program_.texts.size()),
                    static_cast<uint32_t>(program_.nodes.size()),
                    static_cast<uint32_t>(program_.objects.size()),
                    static_cast<uint32_t>(program_.arrays.size())};
    auto node = [&](int32_t& n) { n = n == kNoNode ? n : n + static_cast<int32_t>(base.nodes); };
    program_.dfas.insert(program_.dfas.end(), from.dfas.begin(), from.dfas.end());
    program_.texts.insert(program_.texts.end(), from.texts.begin(), from.texts.end());
    for (ValueNode v : from.nodes) {
      for (uint32_t& i : v.terminals) i += base.dfas;
      for (uint32_t& i : v.texts) i += base.texts;
      for (uint32_t& i : v.objects) i += base.objects;
      for (uint32_t& i : v.arrays) i += base.arrays;
      program_.nodes.push_back(std::move(v));
    }
    for (ObjectShape s : from.objects) {
      for (auto& p : s.properties) node(p.value);
      for (auto& o : s.other) node(o.second);
      program_.objects.push_back(std::move(s));
    }
    for (ArrayShape s : from.arrays) {
      for (auto* list : {&s.prefix, &s.hit_prefix, &s.miss_prefix}) {
        for (int32_t& n : *list) node(n);
      }
      for (int32_t* n : {&s.rest, &s.hit, &s.miss}) node(*n);
      program_.arrays.push_back(std::move(s));
    }
    return base;
  }

  Result<uint32_t> parameters(const ObjectShape& shape, const Base& base) {
    ToolShape tool;
    std::vector<std::string> names;
    for (const auto& p : shape.properties) {
      names.push_back(p.name);
      tool.required.push_back(p.required);
      if (p.value == kNoNode) {
        tool.open.push_back(UINT32_MAX);
        continue;
      }
      if (p.name.find_first_of("\"\n<>") != std::string::npos)
        return invalid_argument("parameters: the name \"" + p.name + "\" cannot be written");
      TF_ASSIGN_OR_RETURN(const uint32_t expr, parameter(program_.literal(p.name), p.value, base));
      tool.open.push_back(expr);
    }
    tool.min = shape.min;
    tool.max = shape.max;
    if (shape.base && shape.base->universal) {
      TF_ASSIGN_OR_RETURN(DfaPtr other, regex_to_dfa("[^\"<>\\n\\r]+", RegexMatch::kFull));
      if (!names.empty()) {
        TF_ASSIGN_OR_RETURN(const DfaPtr words, dfa_words(names));
        TF_ASSIGN_OR_RETURN(other, dfa_subtract(*other, *words));
      }
      const uint32_t name = program_.add_expr({Expr::Kind::kTerminal, program_.add_dfa(other), {}});
      TF_ASSIGN_OR_RETURN(tool.other, parameter(name, shape.other.begin()->second, base));
    } else if (shape.base) {
      return invalid_argument(
          "parameters: patternProperties and propertyNames cannot be enforced "
          "in a call's markup",
          "", "unsupported_schema");
    }
    const uint32_t end = program_.literal(tags_.invoke + ">\n");
    tool.close = program_.sequence({program_.literal("</"), marker_, end});
    tool.close_empty = program_.sequence(
        {program_.choice({program_.literal("\n</"), program_.literal("</")}), marker_, end});
    program_.tools.push_back(std::move(tool));
    return program_.add_expr(
        {Expr::Kind::kTool, static_cast<uint32_t>(program_.tools.size()) - 1, {}});
  }

  Result<uint32_t> parameter(uint32_t name, int32_t value, const Base& base) {
    const ValueNode node = program_.nodes[static_cast<size_t>(value) + base.nodes];
    std::vector<uint32_t> kinds;
    for (const uint32_t text : node.texts) {
      TextSpec spec = program_.texts[text];
      spec.raw = true;
      if (spec.dfa->universal) {
        TF_ASSIGN_OR_RETURN(spec.dfa, text_without_marker());
      }
      program_.texts.push_back(spec);
      const uint32_t content = program_.add_expr(
          {Expr::Kind::kText, static_cast<uint32_t>(program_.texts.size()) - 1, {}});
      kinds.push_back(program_.sequence({program_.literal("\" string=\"true\">"), content}));
    }
    ValueNode json = node;
    json.texts.clear();
    if (!json.none()) {
      program_.nodes.push_back(std::move(json));
      const uint32_t content = program_.add_expr(
          {Expr::Kind::kValue, static_cast<uint32_t>(program_.nodes.size()) - 1, {}});
      kinds.push_back(program_.sequence({program_.literal("\" string=\"false\">"), content}));
    }
    return program_.sequence({program_.literal("<"), marker_,
                              program_.literal(tags_.parameter + " name=\""), name,
                              program_.choice(std::move(kinds)), program_.literal("</"), marker_,
                              program_.literal(tags_.parameter + ">\n")});
  }

  // All text in which the marker is not spelled out by ordinary tokens.
  static Result<DfaPtr> text_without_marker() {
    static const Result<DfaPtr> kText = [] {
      const Result<DfaPtr> marker = regex_to_dfa("｜DSML｜", RegexMatch::kSearch);
      return marker.ok() ? dfa_subtract(*dfa_universal(), **marker) : marker;
    }();
    return kText;
  }

  const ConstraintSpec& spec_;
  Program& program_;
  Tags tags_;
  uint32_t marker_ = 0;
};

}  // namespace

Status compile_tools(const ConstraintSpec& spec, int32_t marker, Program& program,
                     std::vector<std::string>& ignored) {
  if (marker < 0) return invalid_argument("the vocabulary has no token for tool calls", "tools");
  if (spec.tools.empty() || spec.tools.size() > kToolsMax) {
    return invalid_argument("tools: from 1 to " + std::to_string(kToolsMax) + " expected", "tools");
  }
  return ToolCompiler(spec, marker, program).compile(ignored);
}

}  // namespace tensorfold::grammar
