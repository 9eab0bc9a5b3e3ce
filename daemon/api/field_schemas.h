// JSON Schemas of fields' values, for those that come more than once. What they say is what the
// readers take; the readers decide.
#pragma once

#include <string_view>

namespace tensorfold::api {

inline constexpr std::string_view kBoolean = R"({"type":"boolean"})";
inline constexpr std::string_view kString = R"({"type":"string"})";
inline constexpr std::string_view kIds =
    R"({"type":"array","minItems":1,"items":{"type":"integer","minimum":0,"maximum":2147483647}})";
inline constexpr std::string_view kPenalty = R"({"type":"number","minimum":-2,"maximum":2})";
inline constexpr std::string_view kReplyTokens =
    R"({"type":"integer","minimum":0,"maximum":1048576})";
inline constexpr std::string_view kSomeTokens =
    R"({"type":"integer","minimum":1,"maximum":1048576})";
inline constexpr std::string_view kSeeds =
    R"({"type":"integer","minimum":-9223372036854775808,"maximum":9223372036854775807})";
inline constexpr std::string_view kStops =
    R"({"anyOf":[{"type":"string","minLength":1,"maxLength":64},{"type":"array","maxItems":16,)"
    R"("items":{"type":"string","minLength":1,"maxLength":64}}]})";
inline constexpr std::string_view kEffort =
    R"({"anyOf":[{"enum":["none","minimal","low","medium","high","xhigh","max","ultra"]},)"
    R"({"type":"integer","minimum":1,"maximum":100}]})";
inline constexpr std::string_view kChatMessages =
    R"({"type":"array","minItems":1,"items":{"type":"object","required":["role","content"],)"
    R"("properties":{"role":{"enum":["system","developer","user","assistant","tool",)"
    R"("latest_reminder"]},"content":{"anyOf":[{"type":["string","null"]},{"type":"array",)"
    R"("items":{"type":"object","required":["type","text"],"properties":{"type":{"const":"text"},)"
    R"("text":{"type":"string"}}}}]}}}})";
inline constexpr std::string_view kBiases =
    R"({"type":"object","propertyNames":{"pattern":"^[0-9]{1,6}$"},)"
    R"("additionalProperties":{"type":"number","minimum":-100,"maximum":100}})";
inline constexpr std::string_view kTemplateKwargs =
    R"({"type":"object","additionalProperties":false,)"
    R"("properties":{"thinking":{"type":"boolean"},"enable_thinking":{"type":"boolean"},)"
    R"("thinking_mode":{"enum":["thinking","chat"]},"drop_thinking":{"type":"boolean"},)"
    R"("reasoning_effort":{}}})";
inline constexpr std::string_view kResponseFormats =
    R"({"type":"object","required":["type"],"properties":{"type":{"enum":["text",)"
    R"("json_object","json_schema","regex","grammar"]}}})";
inline constexpr std::string_view kTurns =
    R"({"type":"array","minItems":1,"items":{"type":"object","required":["role","content"],)"
    R"("properties":{"role":{"enum":["user","assistant"]},"content":{"type":["string",)"
    R"("array"]}}}})";
inline constexpr std::string_view kThinkingTypes =
    R"({"type":"object","required":["type"],"properties":{"type":{"enum":["enabled",)"
    R"("disabled","adaptive"]},"budget_tokens":{"type":"integer"}}})";

}  // namespace tensorfold::api
