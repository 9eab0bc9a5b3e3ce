// The long fixed texts of the prompt formats, byte for byte.
//
// Data only; prompt_encoder.cc decides where they go.
#pragma once

#include <string_view>

namespace tensorfold {

// The tools section. {c}, {i} and {p} are the tag names, {s} the schemas, one per line.
inline constexpr std::string_view kToolsTemplate =
    "## Tools\n"
    "\n"
    "You have access to a set of tools to help answer the user's question. You can invoke "
    "tools by writing a \"<｜DSML｜{c}>\" block like the following:\n"
    "\n"
    "<｜DSML｜{c}>\n"
    "<｜DSML｜{i} name=\"$TOOL_NAME\">\n"
    "<｜DSML｜{p} name=\"$PARAMETER_NAME\" "
    "string=\"true|false\">$PARAMETER_VALUE</｜DSML｜{p}>\n"
    "...\n"
    "</｜DSML｜{i}>\n"
    "<｜DSML｜{i} name=\"$TOOL_NAME2\">\n"
    "...\n"
    "</｜DSML｜{i}>\n"
    "</｜DSML｜{c}>\n"
    "\n"
    "String parameters should be specified as is and set `string=\"true\"`. For all other "
    "types (numbers, booleans, arrays, objects), pass the value in JSON format and set "
    "`string=\"false\"`.\n"
    "\n"
    "If thinking_mode is enabled (triggered by <think>), you MUST output your complete "
    "reasoning inside <think>...</think> BEFORE any tool calls or final response.\n"
    "\n"
    "Otherwise, output directly after </think> with tool calls or final response.\n"
    "\n"
    "### Available Tool Schemas\n"
    "\n"
    "{s}\n"
    "\n"
    "You MUST strictly follow the above defined tool name and parameter schemas to invoke "
    "tool calls.\n";

inline constexpr std::string_view kResponseFormatHead =
    "## Response Format:\n\nYou MUST strictly adhere to the following schema to reply:\n";

// V4's `max` and V4-0731's `high`.
inline constexpr std::string_view kEffortThorough =
    "Reasoning Effort: Absolute maximum with no shortcuts permitted.\n"
    "You MUST be very thorough in your thinking and comprehensively decompose the problem to "
    "resolve the root cause, rigorously stress-testing your logic against all potential paths, "
    "edge cases, and adversarial scenarios.\n"
    "Explicitly write out your entire deliberation process, documenting every intermediate step, "
    "considered alternative, and rejected hypothesis to ensure absolutely no assumption is left "
    "unchecked.\n\n";

// V4-0731's `max`.
inline constexpr std::string_view kEffortBeyond =
    "Reasoning Effort: Beyond maximum — exhaustive, relentless, and uncompromising.\n"
    "You MUST reason with the utmost depth and rigor, leaving absolutely nothing to chance: "
    "exhaustively decompose the problem into its most fundamental components, trace every causal "
    "chain to its root, and resolve the underlying cause rather than any surface symptom.\n"
    "Do not stop reasoning until you have independently verified the solution from multiple angles "
    "and are certain that no assumption remains unchecked and no error remains undiscovered.\n\n";

}  // namespace tensorfold
