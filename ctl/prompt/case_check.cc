#include "ctl/prompt/case_check.h"

#include <openssl/sha.h>

#include <algorithm>
#include <optional>

#include "ctl/prompt/prompt_json.h"
#include "ctl/prompt/reply_cuts.h"
#include "engine/text/completion.h"
#include "engine/text/image_grid.h"
#include "engine/text/prompt_encoder.h"

namespace tensorfold::ctl {
namespace {

constexpr size_t kShownMaxBytes = 60;  // of a text quoted in a reason

// How our reasons correspond to the exceptions that the reference raises.
struct ExceptionName {
  std::string_view reason, exception;
};
constexpr ExceptionName kExceptions[] = {
    {"invalid_effort", "AssertionError"},
    {"invalid_task", "AssertionError"},
    {"empty_content", "AssertionError"},
    {"invalid_thinking", "AssertionError"},
    {"bad_completion", "AssertionError"},
    {"unknown_role", "NotImplementedError"},
    {"image_source", "ValueError"},
    {"image_placeholder", "ValueError"},
    {"bad_tool_call", "ValueError"},
    {"null_content", "TypeError"},
    {"content_type", "TypeError"},
    {"missing_field", "KeyError"},
    {"tool_call_arguments", "AttributeError"},
};

std::string_view exception_of(const Status& status) {
  for (const ExceptionName& known : kExceptions) {
    if (known.reason == status.reason()) return known.exception;
  }
  return "unknown";
}

std::string sha256_hex(std::string_view text) {
  static constexpr char kHex[] = "0123456789abcdef";
  unsigned char digest[SHA256_DIGEST_LENGTH];
  SHA256(reinterpret_cast<const unsigned char*>(text.data()), text.size(), digest);
  std::string out;
  for (const unsigned char byte : digest) {
    out += kHex[byte >> 4];
    out += kHex[byte & 15];
  }
  return out;
}

std::string shown(std::string_view text) {
  std::string out;
  append_json_string(out, text.substr(0, kShownMaxBytes));
  return out;
}

std::string difference(std::string_view wanted, std::string_view found) {
  const auto [a, b] = std::mismatch(wanted.begin(), wanted.end(), found.begin(), found.end());
  const auto at = static_cast<size_t>(a - wanted.begin());
  return "differs at byte " + std::to_string(at) + ": expected " + shown(wanted.substr(at)) +
         ", found " + shown(found.substr(at));
}

std::optional<PromptFormat> format_of(const Json& item) {
  const Json* format = item.find("format");
  if (format == nullptr) return PromptFormat::kV41;
  if (!format->is_string()) return std::nullopt;
  if (format->as_string() == "v4.1") return PromptFormat::kV41;
  if (format->as_string() == "v4") return PromptFormat::kV4;
  if (format->as_string() == "v4-0731") return PromptFormat::kV4_0731;
  return std::nullopt;
}

Result<bool> thinking_of(const Json* mode) {
  if (mode != nullptr && mode->is_string()) {
    if (mode->as_string() == "thinking") return true;
    if (mode->as_string() == "chat") return false;
  }
  return invalid_argument("thinking_mode is neither thinking nor chat", "thinking_mode",
                          "invalid_thinking");
}

bool present(const Json* value) { return value != nullptr && !value->is_null(); }

// Empty when `status` is the failure that the case expects (or both are none).
std::string check_error(const Json& item, const Status& status) {
  const Json* expected = item.find("expected_error");
  const std::string wanted =
      present(expected) && expected->is_string() ? expected->as_string() : "";
  if (wanted.empty()) return status.ok() ? "" : "unexpected error: " + status.message();
  if (status.ok()) return "expected " + wanted + ", found no error";
  const std::string_view found = exception_of(status);
  if (found == wanted) return "";
  return "expected " + wanted + ", found " + std::string(found) + ": " + status.message();
}

class Checker {
 public:
  explicit Checker(const Tokenizer* tokenizer) : tokenizer_(tokenizer) {}

  Result<CheckReport> run(const Json& file) {
    if (!file.is_object()) return invalid_argument("an object with cases expected");
    for (const Json::Member& member : file.as_object()) {
      Status status;
      if (member.first == "cases") {
        status = group(member, [this](const Json& item) { return prompt_case(item); });
      } else if (member.first == "completion_parsing_cases") {
        status = group(member, [this](const Json& item) { return completion_case(item); });
      } else if (member.first == "image_grid_cases") {
        status = group(member, [](const Json& item) { return grid_case(item); });
      } else if (member.first != "readme") {
        report_.ignored.push_back(member.first);
      }
      if (!status.ok()) return status;
    }
    if (report_.groups.empty()) {
      return invalid_argument(
          "none of cases, completion_parsing_cases and image_grid_cases is there");
    }
    return std::move(report_);
  }

 private:
  template <typename Check>
  Status group(const Json::Member& member, Check check) {
    if (!member.second.is_array()) return invalid_argument(member.first + ": a list expected");
    CheckGroup group{member.first, 0, 0};
    for (const Json& item : member.second.as_array()) {
      const std::string where =
          member.first + "[" + std::to_string(group.right + group.wrong) + "]";
      if (!item.is_object()) return invalid_argument(where + ": an object expected");
      const std::string reason = check(item);
      (reason.empty() ? group.right : group.wrong) += 1;
      if (reason.empty()) continue;
      const Json* name = item.find("name");
      report_.failures.push_back(
          {member.first, present(name) && name->is_string() ? name->as_string() : where, reason});
    }
    report_.groups.push_back(group);
    return {};
  }

  static Status read_options(const Json& json, PromptOptions& out) {
    if (!json.is_object()) return invalid_argument("options: an object expected");
    for (const auto& [key, value] : json.as_object()) {
      if (key == "thinking_mode") {
        Result<bool> thinking = thinking_of(&value);
        if (!thinking.ok()) return thinking.status();
        out.thinking = *thinking;
      } else if (key == "reasoning_effort") {
        out.effort = value;
      } else if (key == "drop_thinking" && value.is_bool()) {
        out.drop_thinking = value.as_bool();
      } else if (key == "add_default_bos_token" && value.is_bool()) {
        out.add_bos = value.as_bool();
      } else if (key == "context") {
        if (value.is_null()) continue;
        Result<std::vector<PromptMessage>> context = messages_from_json(value);
        if (!context.ok()) return context.status();
        out.context = std::move(*context);
      } else {
        return invalid_argument("options." + key + " is not known");
      }
    }
    return {};
  }

  static Result<EncodedPrompt> encode(const Json& item, PromptFormat format) {
    const Json* messages_json = item.find("messages");
    if (messages_json == nullptr) return invalid_argument("messages is missing");
    Result<std::vector<PromptMessage>> messages = messages_from_json(*messages_json);
    if (!messages.ok()) return messages.status();
    if (const Json* tools = item.find("tools"); present(tools)) {
      if (messages->empty()) return invalid_argument("tools without a message");
      Result<std::vector<Json>> functions = functions_from_json(*tools);
      if (!functions.ok()) return functions.status();
      messages->front().tools = std::move(*functions);
    }
    PromptOptions options;
    options.format = format;
    if (const Json* given = item.find("options"); present(given)) {
      if (Status s = read_options(*given, options); !s.ok()) return s;
    }
    return encode_messages(*messages, options);
  }

  std::string prompt_case(const Json& item) {
    const std::optional<PromptFormat> format = format_of(item);
    if (!format) return "the format is not known";
    const Result<EncodedPrompt> encoded = encode(item, *format);
    if (std::string reason = check_error(item, encoded.status()); !reason.empty()) return reason;
    if (!encoded.ok()) return "";
    const Json* text = item.find("expected_prompt");
    if (!present(text) || !text->is_string()) return "expected_prompt is missing";
    if (encoded->text != text->as_string()) {
      return "the prompt " + difference(text->as_string(), encoded->text);
    }
    const Json* hash = item.find("expected_prompt_sha256_utf8");
    if (present(hash) && (!hash->is_string() || hash->as_string() != sha256_hex(encoded->text))) {
      return "the prompt's SHA-256 is " + sha256_hex(encoded->text);
    }
    const Json* images = item.find("expected_images");
    if (present(images) && *images != Json::array(encoded->images)) {
      return "the images are " + dump_json_python(Json::array(encoded->images));
    }
    return token_ids(item, *encoded);
  }

  std::string token_ids(const Json& item, const EncodedPrompt& prompt) {
    const Json* expected = item.find("expected_token_ids");
    if (!present(expected)) return "";
    if (tokenizer_ == nullptr) {
      ++report_.token_ids_skipped;
      return "";
    }
    ++report_.token_ids_compared;
    // As the reference tokenizes: control text is a control token wherever it stands.
    const std::vector<TokenId> found = tokenizer_->encode(prompt.text);
    Json::Array ids;
    for (const TokenId id : found) ids.push_back(Json::integer(id));
    if (!expected->is_array()) return "expected_token_ids is no list";
    const Json::Array& wanted = expected->as_array();
    if (ids == wanted) return served_ids(prompt, found);
    const auto [a, b] = std::mismatch(wanted.begin(), wanted.end(), ids.begin(), ids.end());
    const auto id_text = [](const Json::Array& list, Json::Array::const_iterator it) {
      return it == list.end() ? std::string("the end") : dump_json_compact(*it);
    };
    return "token " + std::to_string(a - wanted.begin()) + ": expected " + id_text(wanted, a) +
           ", found " + id_text(ids, b);
  }

  // Serving keeps control text in messages from becoming control tokens: that must change nothing
  // where there is none.
  std::string served_ids(const EncodedPrompt& prompt, const std::vector<TokenId>& reference) {
    const std::vector<TokenId> served = tokenizer_->encode(prompt.text, prompt.plain);
    if (tokenizer_->decode(served) != prompt.text) return "decoding the served ids fails";
    if (served == reference) return "";
    for (const TextSpan& span : prompt.plain) {
      const std::string_view text =
          std::string_view(prompt.text).substr(span.begin, span.end - span.begin);
      for (const AddedToken& token : tokenizer_->added_tokens()) {
        if (text.find(token.content) != std::string_view::npos) return "";
      }
    }
    return "the ids that serving gives differ though no message holds control text";
  }

  std::string completion_case(const Json& item) {
    const std::optional<PromptFormat> format = format_of(item);
    if (!format) return "the format is not known";
    const Json* text = item.find("completion");
    if (!present(text) || !text->is_string()) return "completion is missing";
    const Result<bool> thinking = thinking_of(item.find("thinking_mode"));
    if (!thinking.ok()) return thinking.status().message();
    const Result<Completion> parsed = parse_completion(text->as_string(), *thinking, *format);
    if (std::string reason = check_error(item, parsed.status()); !reason.empty()) return reason;
    if (parsed.ok()) {
      const Json* expected = item.find("expected");
      if (!present(expected)) return "expected is missing";
      const Json found = message_json(*parsed);
      if (found != *expected) {
        return "the message " + difference(dump_json_python(*expected), dump_json_python(found));
      }
    }
    return cuts(text->as_string(), *thinking, *format, parsed);
  }

  static Json message_json(const Completion& completion) {
    Json::Array calls;
    for (const Completion::Call& call : completion.calls) {
      calls.push_back(Json::object(
          {{"type", Json::string("function")},
           {"function", Json::object({{"name", Json::string(call.name)},
                                      {"arguments", Json::string(call.arguments)}})}}));
    }
    return Json::object({{"role", Json::string("assistant")},
                         {"content", Json::string(completion.content)},
                         {"reasoning_content", Json::string(completion.reasoning)},
                         {"tool_calls", Json::array(std::move(calls))}});
  }

  // However the reply is cut, streaming gives one result, and the strict parser's where that one
  // accepts the reply (values that are no JSON excepted: streaming makes them strings).
  std::string cuts(std::string_view text, bool thinking, PromptFormat format,
                   const Result<Completion>& strict) {
    OutputOptions options;
    options.starts_in_reasoning = thinking;
    const CutReport report = try_cuts(text, options, format);
    report_.cuts_compared += report.cuts;
    if (!report.problem.empty()) return "streaming: " + report.problem;
    if (!strict.ok()) return "";
    if (report.whole.content != strict->content) {
      return "streaming: the content " + difference(strict->content, report.whole.content);
    }
    if (report.whole.reasoning != strict->reasoning) {
      return "streaming: the reasoning " + difference(strict->reasoning, report.whole.reasoning);
    }
    if (report.whole.calls.size() != strict->calls.size()) {
      return "streaming: " + std::to_string(report.whole.calls.size()) + " calls";
    }
    for (size_t i = 0; i < strict->calls.size(); ++i) {
      const Completion::Call& wanted = strict->calls[i];
      const ReplyParts::Call& found = report.whole.calls[i];
      if (found.name != wanted.name) return "streaming: a call of " + shown(found.name);
      if (!parse_json(found.arguments).ok()) return "streaming: arguments are no JSON";
      if (parse_json(wanted.arguments).ok() && found.arguments != wanted.arguments) {
        return "streaming: the arguments " + difference(wanted.arguments, found.arguments);
      }
    }
    return "";
  }

  static std::string grid_case(const Json& item) {
    const auto number = [&item](std::string_view key) {
      const Json* value = item.find(key);
      return value == nullptr ? std::nullopt : value->as_int64();
    };
    const auto width = number("width"), height = number("height");
    if (!width || !height) return "width or height is missing";
    const Result<ImageGrid> grid = image_grid(*width, *height);
    if (!grid.ok()) return grid.status().message();
    const auto pair = [](int64_t a, int64_t b) {
      return Json::array({Json::integer(a), Json::integer(b)});
    };
    const std::pair<const char*, Json> found[] = {
        {"vit_grid", pair(grid->vit_h, grid->vit_w)},
        {"llm_grid", pair(grid->llm_h, grid->llm_w)},
        {"num_tokens", Json::integer(grid->tokens)},
    };
    for (const auto& [key, value] : found) {
      const Json* wanted = item.find(key);
      if (wanted == nullptr) return std::string(key) + " is missing";
      if (*wanted != value) {
        return std::string(key) + ": expected " + dump_json_compact(*wanted) + ", found " +
               dump_json_compact(value);
      }
    }
    return "";
  }

  const Tokenizer* tokenizer_;
  CheckReport report_;
};

}  // namespace

int CheckReport::right() const {
  int n = 0;
  for (const CheckGroup& group : groups) n += group.right;
  return n;
}

int CheckReport::wrong() const {
  int n = 0;
  for (const CheckGroup& group : groups) n += group.wrong;
  return n;
}

Result<CheckReport> check_cases(const Json& file, const Tokenizer* tokenizer) {
  return Checker(tokenizer).run(file);
}

}  // namespace tensorfold::ctl
