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

}  // namespace

Result<CompiledConstraint> compile_program(const ConstraintSpec& spec, int32_t tool_marker_id) {
  auto program = std::make_shared<Program>();
  program->whitespace = spec.whitespace;
  CompiledConstraint out;
  switch (spec.kind) {
    case ConstraintKind::kJsonObject:
      TF_RETURN_IF_ERROR(compile_schema("{\"type\":\"object\"}", spec, *program, out.ignored));
      break;
    case ConstraintKind::kJsonSchema:
      TF_RETURN_IF_ERROR(compile_schema(spec.text, spec, *program, out.ignored));
      break;
    case ConstraintKind::kRegex:
      TF_RETURN_IF_ERROR(compile_text(regex_to_dfa(spec.text, RegexMatch::kFull), *program));
      break;
    case ConstraintKind::kChoice: {
      size_t bytes = 0;
      for (const std::string& c : spec.choices) bytes += c.size();
      if (spec.choices.empty() || spec.choices.size() > kChoicesMax || bytes > kEnumTextMaxBytes) {
        return invalid_argument("choice: from 1 to " + std::to_string(kChoicesMax) + " texts of " +
                                    std::to_string(kEnumTextMaxBytes) + " bytes together expected",
                                "", "schema_too_complex");
      }
      TF_RETURN_IF_ERROR(compile_text(dfa_words(spec.choices), *program));
      break;
    }
    case ConstraintKind::kEbnf:
      TF_RETURN_IF_ERROR(compile_ebnf(spec.text, *program));
      break;
    case ConstraintKind::kTools:
      TF_RETURN_IF_ERROR(compile_tools(spec, tool_marker_id, *program, out.ignored));
      break;
  }
  std::sort(out.ignored.begin(), out.ignored.end());
  out.ignored.erase(std::unique(out.ignored.begin(), out.ignored.end()), out.ignored.end());
  out.program = std::move(program);
  return out;
}

Result<std::shared_ptr<const MaskSource>> compile_constraint(
    const ConstraintSpec& spec, const std::shared_ptr<const VocabImage>& vocab,
    std::vector<std::string>* ignored) {
  TF_ASSIGN_OR_RETURN(CompiledConstraint compiled,
                      compile_program(spec, vocab->spec().tool_marker_id));
  if (ignored != nullptr) *ignored = std::move(compiled.ignored);
  std::shared_ptr<const MaskSource> source = Matcher::create(compiled.program, vocab);
  if (source->start() == kMaskDead)
    return invalid_argument("the grammar accepts nothing", "", "unsatisfiable_schema");
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
