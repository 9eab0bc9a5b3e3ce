// What a request may ask of the reply's form, as plain data: what the daemon writes and
// compile_constraint (constraint.h) reads.
//
// Content and calls go together: with tools and tool_choice auto the reply is content of the given
// kind or calls; required and named leave nothing but calls.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "engine/base/json.h"

namespace tensorfold::grammar {

inline constexpr size_t kToolsMax = 512;
inline constexpr size_t kChoicesMax = 100'000;

enum class Whitespace : unsigned char {
  kCompact,  // none, or one space after ',' and ':'
  kPretty,   // also a line end and up to kIndentMaxChars spaces or tabs
  kAny,      // any JSON white space, up to kSpaceMaxChars in a row
};
inline constexpr uint32_t kIndentMaxChars = 64;
inline constexpr uint32_t kSpaceMaxChars = 128;

enum class ConstraintKind : unsigned char {
  kText,        // anything (with tools: free text)
  kJsonObject,  // any JSON object
  kJsonSchema,  // text: the schema
  kRegex,       // text: matches the whole reply
  kChoice,      // choices: one of these texts
  kEbnf,        // text: rules in GBNF; "root" is the reply
};

enum class ToolChoice : unsigned char {
  kAuto,      // content, or content and calls (calls alone where content has a form)
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
  ConstraintKind kind = ConstraintKind::kText;
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

  // What would only be an annotation (a format nobody knows, an unknown keyword) is refused.
  bool strict = false;

  // Where the client wrote it ("response_format.json_schema.schema"), for messages.
  std::string param;

  // The reply begins inside reasoning: free text until "</think>", then the constraint.
  bool reasoning = false;
};

// The same bytes for the same constraint: the key of a compile cache.
std::string spec_key(const ConstraintSpec& spec);

}  // namespace tensorfold::grammar
