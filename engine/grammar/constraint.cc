// From a constraint's description to its mask source.
#include "engine/grammar/constraint.h"

#include <algorithm>

#include "engine/base/check.h"
#include "engine/grammar/regex.h"
#include "engine/grammar/schema_compile.h"

namespace tensorfold::grammar {
namespace {

constexpr MaskState kThinking = MaskState{1} << 42;

// Reasoning is free text; only its end token leads on. Ending the reply inside it would escape the
// constraint, so no end token is allowed there.
class AfterReasoning final : public MaskSource {
 public:
  AfterReasoning(std::shared_ptr<const MaskSource> inner, std::shared_ptr<const VocabImage> vocab)
      : inner_(std::move(inner)), vocab_(std::move(vocab)) {}

  MaskState start() const override { return kThinking; }

  MaskState next(MaskState state, int32_t token) const override {
    if (state != kThinking) return inner_->next(state, token);
    if (token == vocab_->spec().think_end_id) return inner_->start();
    const auto id = static_cast<size_t>(token);
    const bool ordinary = token >= 0 && id / 32 < vocab_->ordinary().size() &&
                          ((vocab_->ordinary()[id / 32] >> (id % 32)) & 1U) != 0;
    return ordinary ? kThinking : kMaskDead;
  }

  bool mask(MaskState state, std::span<uint32_t> bits) const override {
    if (state != kThinking) return inner_->mask(state, bits);
    TF_CHECK_EQ(bits.size(), vocab_->words());
    std::copy(vocab_->ordinary().begin(), vocab_->ordinary().end(), bits.begin());
    const auto end = static_cast<size_t>(vocab_->spec().think_end_id);
    bits[end / 32] |= uint32_t{1} << (end % 32);
    return true;
  }

  MaskFound mask_within(MaskState state, std::span<uint32_t> bits, int64_t& work) const override {
    if (state != kThinking) return inner_->mask_within(state, bits, work);
    return MaskSource::mask_within(state, bits, work);
  }

  int32_t forced(MaskState state) const override {
    return state == kThinking ? -1 : inner_->forced(state);
  }

  const void* turns() const override { return inner_->turns(); }

 private:
  std::shared_ptr<const MaskSource> inner_;
  std::shared_ptr<const VocabImage> vocab_;
};

Status compile_schema(const std::string& text, const ConstraintSpec& spec, Program& program,
                      std::vector<std::string>& ignored) {
  if (text.size() > kSchemaMaxBytes) {
    return invalid_argument("schema larger than " + std::to_string(kSchemaMaxBytes) + " bytes", "",
                            "schema_too_complex");
  }
  Result<Json> json = parse_json(text);
  if (!json.ok()) return json.status().with_context("schema");
  TF_ASSIGN_OR_RETURN(const std::unique_ptr<SchemaDoc> doc, SchemaDoc::load(std::move(*json)));
  SchemaCompiler compiler(*doc, {spec.ordered, spec.closed}, program);
  TF_ASSIGN_OR_RETURN(const int32_t root, compiler.compile({{&doc->root(), false}}));
  if (root == kNoNode)
    return invalid_argument("schema at #: no value satisfies it", "", "unsatisfiable_schema");
  ignored = compiler.terms().ignored();
  program.root = program.add_expr({Expr::Kind::kValue, static_cast<uint32_t>(root), {}});
  return ok_status();
}

Status compile_text(const Result<DfaPtr>& dfa, Program& program) {
  if (!dfa.ok()) return dfa.status();
  if ((*dfa)->empty())
    return invalid_argument("the pattern matches nothing", "", "unsatisfiable_schema");
  program.root = program.add_expr({Expr::Kind::kTerminal, program.add_dfa(*dfa), {}});
  return ok_status();
}

Status compile_choice(const ConstraintSpec& spec, Program& program) {
  size_t bytes = 0;
  for (const std::string& c : spec.choices) {
    bytes += c.size();
    if (c.empty()) return invalid_argument("choice: an empty text", "", "invalid_grammar");
  }
  if (spec.choices.empty() || spec.choices.size() > kChoicesMax || bytes > kEnumTextMaxBytes) {
    return invalid_argument("choice: from 1 to " + std::to_string(kChoicesMax) + " texts of " +
                                std::to_string(kEnumTextMaxBytes) + " bytes together expected",
                            "", "schema_too_complex");
  }
  return compile_text(dfa_words(spec.choices), program);
}

// The expression of the content, as program.root.
Status compile_content(const ConstraintSpec& spec, Program& program,
                       std::vector<std::string>& ignored) {
  switch (spec.kind) {
    case ConstraintKind::kText:
      return ok_status();
    case ConstraintKind::kJsonObject:
      return compile_schema("{\"type\":\"object\"}", spec, program, ignored);
    case ConstraintKind::kJsonSchema:
      return compile_schema(spec.text, spec, program, ignored);
    case ConstraintKind::kRegex:
      return compile_text(regex_to_dfa(spec.text, RegexMatch::kFull), program);
    case ConstraintKind::kChoice:
      return compile_choice(spec, program);
    case ConstraintKind::kEbnf:
      return compile_ebnf(spec.text, program);
  }
  return internal_error("a constraint of no kind");
}

Status with_param(const Status& status, const std::string& param) {
  if (status.ok() || !status.param().empty() || param.empty()) return status;
  return Status(status.code(), param + ": " + status.message(), param, status.reason());
}

}  // namespace

Result<CompiledConstraint> compile_program(const ConstraintSpec& spec, int32_t tool_marker_id) {
  auto program = std::make_shared<Program>();
  program->whitespace = spec.whitespace;
  CompiledConstraint out;
  if (spec.kind == ConstraintKind::kText && spec.tools.empty())
    return invalid_argument("a constraint of nothing");
  TF_RETURN_IF_ERROR(with_param(compile_content(spec, *program, out.ignored), spec.param));
  if (spec.strict && !out.ignored.empty()) {
    return with_param(invalid_argument("strict: " + out.ignored[0] + " cannot be enforced", "",
                                       "unsupported_schema"),
                      spec.param);
  }
  if (!spec.tools.empty())
    TF_RETURN_IF_ERROR(compile_tools(spec, tool_marker_id, *program, out.ignored));
  std::sort(out.ignored.begin(), out.ignored.end());
  out.ignored.erase(std::unique(out.ignored.begin(), out.ignored.end()), out.ignored.end());
  out.program = std::move(program);
  return out;
}

std::string spec_key(const ConstraintSpec& spec) {
  std::string key;
  const auto number = [&](uint64_t n) { key.append(reinterpret_cast<const char*>(&n), sizeof n); };
  const auto text = [&](const std::string& s) {
    number(s.size());
    key += s;
  };
  for (const bool flag : {spec.parallel, spec.ordered, spec.closed, spec.reasoning, spec.strict})
    key.push_back(flag ? 1 : 0);
  for (const auto e : {static_cast<int>(spec.kind), static_cast<int>(spec.tool_choice),
                       static_cast<int>(spec.markup), static_cast<int>(spec.whitespace)})
    key.push_back(static_cast<char>(e));
  text(spec.text);
  text(spec.named);
  text(spec.param);
  number(spec.choices.size());
  for (const std::string& c : spec.choices) text(c);
  number(spec.tools.size());
  for (const ToolSpec& tool : spec.tools) {
    text(tool.name);
    text(dump_json_compact(tool.parameters));
    key.push_back(tool.strict ? 1 : 0);
  }
  return key;
}

Result<std::shared_ptr<const Matcher>> compile_matcher(
    const ConstraintSpec& spec, const std::shared_ptr<const VocabImage>& vocab,
    std::vector<std::string>* ignored) {
  TF_ASSIGN_OR_RETURN(CompiledConstraint compiled,
                      compile_program(spec, vocab->spec().tool_marker_id));
  if (ignored != nullptr) *ignored = std::move(compiled.ignored);
  std::shared_ptr<const Matcher> matcher = Matcher::create(compiled.program, vocab);
  if (matcher->start() == kMaskDead)
    return with_param(invalid_argument("the grammar accepts nothing", "", "unsatisfiable_schema"),
                      spec.param);
  return matcher;
}

Result<std::shared_ptr<const MaskSource>> compile_constraint(
    const ConstraintSpec& spec, const std::shared_ptr<const VocabImage>& vocab,
    std::vector<std::string>* ignored) {
  TF_ASSIGN_OR_RETURN(std::shared_ptr<const MaskSource> source,
                      compile_matcher(spec, vocab, ignored));
  if (!spec.reasoning) return source;
  return after_reasoning(std::move(source), vocab);
}

Result<std::shared_ptr<const MaskSource>> after_reasoning(std::shared_ptr<const MaskSource> inner,
                                                          std::shared_ptr<const VocabImage> vocab) {
  if (vocab->spec().think_end_id < 0)
    return invalid_argument("the vocabulary has no token that ends reasoning");
  return std::shared_ptr<const MaskSource>(
      std::make_shared<AfterReasoning>(std::move(inner), std::move(vocab)));
}

}  // namespace tensorfold::grammar
