// Rows that several APIs' tables of fields have in common: one name, one reader, one sentence.
#pragma once

#include "daemon/api/field_schemas.h"
#include "daemon/api/fields.h"

namespace tensorfold::api {

// clang-format off
inline constexpr ChatField kModelRow = {
    "model", FieldUse::kUsed, read_model,
    "the served name", "the served model", kString};
inline constexpr ChatField kStreamRow = {
    "stream", FieldUse::kUsed, read_stream,
    "server-sent events", "false", kBoolean};
inline constexpr ChatField kStreamOptionsRow = {
    "stream_options", FieldUse::kUsed, read_stream_options,
    "include_usage: one more chunk with usage",
    "none", R"({"type":"object","properties":{"include_usage":{"type":"boolean"}}})"};
inline constexpr ChatField kReturnProgressRow = {
    "return_progress", FieldUse::kUsed, read_return_progress,
    "of a stream, true: chunks with prompt_progress", "false", kBoolean};
inline constexpr ChatField kTemperatureRow = {
    "temperature", FieldUse::kUsed, read_temperature,
    "0..2, 0 is greedy", "sampling.temperature", R"({"type":"number","minimum":0,"maximum":2})"};
inline constexpr ChatField kTopPRow = {
    "top_p", FieldUse::kUsed, read_top_p,
    "above 0, up to 1", "sampling.top_p", R"({"type":"number","exclusiveMinimum":0,"maximum":1})"};
inline constexpr ChatField kTopKRow = {
    "top_k", FieldUse::kUsed, read_top_k,
    "0 or -1 is off", "sampling.top_k", R"({"type":"integer","minimum":-1,"maximum":1048576})"};
inline constexpr ChatField kMinPRow = {
    "min_p", FieldUse::kUsed, read_min_p,
    "0..1", "sampling.min_p", R"({"type":"number","minimum":0,"maximum":1})"};
inline constexpr ChatField kSeedRow = {
    "seed", FieldUse::kUsed, read_seed,
    "a signed 64-bit number",
    "random, and reported", kSeeds};
inline constexpr ChatField kStopRow = {
    "stop", FieldUse::kUsed, read_stop,
    "a string or up to 16 of up to 256 bytes; they end the content and are not returned",
    "none", kStops};
inline constexpr ChatField kPresencePenaltyRow = {
    "presence_penalty", FieldUse::kUsed, read_presence,
    "-2..2", "0", kPenalty};
inline constexpr ChatField kFrequencyPenaltyRow = {
    "frequency_penalty", FieldUse::kUsed, read_frequency,
    "-2..2", "0", kPenalty};
inline constexpr ChatField kRepetitionPenaltyRow = {
    "repetition_penalty", FieldUse::kUsed, read_repetition,
    "0.01..10; 1 is off", "1", R"({"type":"number","minimum":0.01,"maximum":10})"};
inline constexpr ChatField kLogitBiasRow = {
    "logit_bias", FieldUse::kUsed, read_logit_bias,
    "up to 1,024 of token id -> -100..100", "none", kBiases};
inline constexpr ChatField kReasoningEffortRow = {
    "reasoning_effort", FieldUse::kUsed, read_effort,
    "none (off), a name or 1..100 (on)", "see Thinking", kEffort};
inline constexpr ChatField kEnableThinkingRow = {
    "enable_thinking", FieldUse::kUsed, read_enable_thinking,
    "true or false", "see Thinking", kBoolean};
inline constexpr ChatField kChatTemplateKwargsRow = {
    "chat_template_kwargs", FieldUse::kUsed, read_template_kwargs,
    "thinking, enable_thinking, thinking_mode, reasoning_effort (they win over the top level's), "
    "drop_thinking",
    "none", kTemplateKwargs};
inline constexpr ChatField kParallelToolCallsRow = {
    "parallel_tool_calls", FieldUse::kUsed, read_parallel_calls,
    "false: at most one call", "true", kBoolean};
inline constexpr ChatField kPromptLogprobsRow = {
    "prompt_logprobs", FieldUse::kUsed, read_prompt_logprobs,
    "of every prompt token, with 0..20 alternatives; not of a stream; such a prompt is not cached",
    "none", R"({"type":"integer","minimum":0,"maximum":20})"};
inline constexpr ChatField kLoopGuardRow = {
    "loop_guard", FieldUse::kUsed, read_loop_guard,
    "true: thinking that goes round in circles is closed, an answer is cut",
    "text.loop_guard", kBoolean};
inline constexpr ChatField kSchemaInPromptRow = {
    "schema_in_prompt", FieldUse::kUsed, read_schema_in_prompt,
    "true: the JSON form asked for is also written into the prompt",
    "text.schema_in_prompt", kBoolean};
inline constexpr ChatField kDraftRow = {
    "draft", FieldUse::kUsed, read_draft,
    "false: no speculation, the text is the same", "true", kBoolean};
inline constexpr ChatField kPriorityRow = {
    "priority", FieldUse::kUsed, read_priority,
    "normal (0) or background (above 0: yields to others)",
    "normal", R"({"enum":["normal","background",0,1]})"};
inline constexpr ChatField kIgnoreEosRow = {
    "ignore_eos", FieldUse::kUsed, read_ignore_eos,
    "true: on until max_tokens", "false", kBoolean};
inline constexpr ChatField kMinTokensRow = {
    "min_tokens", FieldUse::kUsed, read_min_tokens,
    "reply tokens before it may end", "0", R"({"type":"integer","minimum":0,"maximum":1048575})"};
inline constexpr ChatField kAllowedTokenIdsRow = {
    "allowed_token_ids", FieldUse::kUsed, read_allowed_tokens,
    "no other token is sampled", "all", kIds};
inline constexpr ChatField kReturnTokenIdsRow = {
    "return_token_ids", FieldUse::kUsed, read_return_ids,
    "true: the reply's ids, in the stats block", "false", kBoolean};
inline constexpr ChatField kCacheSaltRow = {
    "cache_salt", FieldUse::kUsed, read_cache_salt,
    "keeps this request's prefixes apart, up to 256 bytes",
    "none", R"({"type":"string","maxLength":64})"};
inline constexpr ChatField kResponseFormatRow = {
    "response_format", FieldUse::kUsed, read_format,
    "text, json_object, json_schema, regex or grammar", "text", kResponseFormats};
inline constexpr ChatField kStructuredOutputsRow = {
    "structured_outputs", FieldUse::kUsed, read_structured,
    "json, json_object, regex, choice or grammar", "none", R"({"type":"object"})"};
inline constexpr ChatField kGuidedJsonRow = {
    "guided_json", FieldUse::kUsed, read_guided_json,
    "a JSON schema", "none", R"({"type":["object","boolean","string"]})"};
inline constexpr ChatField kGuidedRegexRow = {
    "guided_regex", FieldUse::kUsed, read_guided_regex,
    "the whole reply matches it", "none", kString};
inline constexpr ChatField kGuidedChoiceRow = {
    "guided_choice", FieldUse::kUsed, read_guided_choice,
    "the reply is one of these strings",
    "none", R"({"type":"array","minItems":1,"items":{"type":"string","minLength":1}})"};
inline constexpr ChatField kGuidedGrammarRow = {
    "guided_grammar", FieldUse::kUsed, read_guided_grammar,
    "rules in GBNF; root is the reply", "none", kString};
inline constexpr ChatField kUserRow = {
    "user", FieldUse::kIgnored, nullptr, "a label of the client's"};
inline constexpr ChatField kMetadataRow = {
    "metadata", FieldUse::kIgnored, nullptr, "labels of the client's"};
inline constexpr ChatField kSafetyIdentifierRow = {
    "safety_identifier", FieldUse::kIgnored, nullptr, "a label of the client's"};
inline constexpr ChatField kPromptCacheKeyRow = {
    "prompt_cache_key", FieldUse::kIgnored, nullptr, "the prefix cache needs no hint"};
inline constexpr ChatField kPromptCacheRetentionRow = {
    "prompt_cache_retention", FieldUse::kIgnored, nullptr, "the prefix cache needs no hint"};
inline constexpr ChatField kServiceTierRow = {
    "service_tier", FieldUse::kIgnored, nullptr, "there is one"};
inline constexpr ChatField kGuidedDecodingBackendRow = {
    "guided_decoding_backend", FieldUse::kIgnored, nullptr, "there is one"};
// clang-format on

}  // namespace tensorfold::api
