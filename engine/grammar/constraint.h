// What a request may ask of the reply's form, compiled to a MaskSource: the only header that the
// daemon and the engine need.
//
// compile_constraint is for a thread that may take milliseconds; the result may be shared by
// requests. Everything that cannot be enforced is kInvalidArgument, with the JSON pointer (or the
// offset) and the keyword in the message and one of these reasons: unsupported_schema,
// unsupported_pattern, unsatisfiable_schema, schema_too_complex, invalid_grammar.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "engine/base/json.h"
#include "engine/grammar/mask_source.h"
#include "engine/grammar/matcher.h"
#include "engine/grammar/program.h"
#include "engine/grammar/vocab_image.h"

namespace tensorfold::grammar {

inline constexpr size_t kToolsMax = 512;
inline constexpr size_t kChoicesMax = 100'000;

enum class ConstraintKind : unsigned char {
  kJsonObject,  // any JSON object
  kJsonSchema,  // text: the schema
  kRegex,       // text: matches the whole reply
  kChoice,      // choices: one of these texts
  kEbnf,        // text: rules in GBNF; "root" is the reply
  kTools,       // tool calls in the model's own markup
};

enum class ToolChoice : unsigned char {
  kAuto,      // free text, or free text and calls
  kRequired,  // calls and nothing else
  kNamed,     // one call of the tool `named`
};

enum class ToolMarkup : unsigned char { kV41, kV4 };  // with and without a space in the tags

struct ToolSpec {
  std::string name;
  Json parameters;  // JSON Schema; null: anything
  bool strict = false;
};

struct ConstraintSpec {
  ConstraintKind kind = ConstraintKind::kJsonObject;
  std::string text;
  std::vector<std::string> choices;

  std::vector<ToolSpec> tools;
  ToolChoice tool_choice = ToolChoice::kAuto;
  std::string named;
  bool parallel = true;
  ToolMarkup markup = ToolMarkup::kV41;

  Whitespace whitespace = Whitespace::kPretty;
  bool ordered = true;  // members in the schema's order (tool parameters: any order)
  bool closed = true;   // no undeclared members unless the schema speaks of them

  // The reply begins inside reasoning: free text until "</think>", then the constraint.
  bool reasoning = false;
};

// Formats and keywords that were taken as annotations (the specification says so), for the client.
struct CompiledConstraint {
  std::shared_ptr<const Program> program;
  std::vector<std::string> ignored;
};

// `tool_marker_id`: the token of "｜DSML｜"; only tools need it.
Result<CompiledConstraint> compile_program(const ConstraintSpec& spec, int32_t tool_marker_id);

Result<std::shared_ptr<const MaskSource>> compile_constraint(
    const ConstraintSpec& spec, const std::shared_ptr<const VocabImage>& vocab,
    std::vector<std::string>* ignored = nullptr);

// Free text until the vocabulary's "</think>", then `inner`.
Result<std::shared_ptr<const MaskSource>> after_reasoning(std::shared_ptr<const MaskSource> inner,
                                                          std::shared_ptr<const VocabImage> vocab);

// The parts, for compile_program. Each sets program.root.
Status compile_ebnf(std::string_view text, Program& program);
Status compile_tools(const ConstraintSpec& spec, int32_t marker, Program& program,
                     std::vector<std::string>& ignored);

}  // namespace tensorfold::grammar
