// A ConstraintSpec compiled to a MaskSource: the only header of this folder that the engine needs
// (the daemon needs constraint_spec.h alone).
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
#include "engine/grammar/constraint_spec.h"
#include "engine/grammar/mask_source.h"
#include "engine/grammar/matcher.h"
#include "engine/grammar/program.h"
#include "engine/grammar/vocab_image.h"

namespace tensorfold::grammar {

// Formats and keywords that were taken as annotations (the specification says so), for the client.
struct CompiledConstraint {
  std::shared_ptr<const Program> program;
  std::vector<std::string> ignored;
};

// `tool_marker_id`: the token of "｜DSML｜"; only tools need it.
Result<CompiledConstraint> compile_program(const ConstraintSpec& spec, int32_t tool_marker_id);

Result<std::shared_ptr<const Matcher>> compile_matcher(
    const ConstraintSpec& spec, const std::shared_ptr<const VocabImage>& vocab,
    std::vector<std::string>* ignored = nullptr);

// The same, with spec.reasoning heeded.
Result<std::shared_ptr<const MaskSource>> compile_constraint(
    const ConstraintSpec& spec, const std::shared_ptr<const VocabImage>& vocab,
    std::vector<std::string>* ignored = nullptr);

// Free text until the vocabulary's "</think>", then `inner`.
Result<std::shared_ptr<const MaskSource>> after_reasoning(std::shared_ptr<const MaskSource> inner,
                                                          std::shared_ptr<const VocabImage> vocab);

// The parts, for compile_program. Each sets program.root; compile_tools takes what it finds there
// for the content (kind kText: free text).
Status compile_ebnf(std::string_view text, Program& program);
Status compile_tools(const ConstraintSpec& spec, int32_t marker, Program& program,
                     std::vector<std::string>& ignored);

}  // namespace tensorfold::grammar
