#include "engine/text/prompt_encoder.h"

#include <array>
#include <map>
#include <optional>

#include "engine/text/prompt_literals.h"
#include "engine/text/prompt_passes.h"
#include "engine/text/prompt_writer.h"

namespace tensorfold {
namespace {

constexpr int64_t kEffortMin = 1, kEffortMax = 100;

struct TaskToken {
  std::string_view task, token;
};
constexpr TaskToken kTasks[] = {
    {"action", "<｜action｜>"}, {"query", "<｜query｜>"}, {"authority", "<｜authority｜>"},
    {"domain", "<｜domain｜>"}, {"title", "<｜title｜>"}, {"read_url", "<｜read_url｜>"},
};

Status effort_error(const Json& effort) {
  return invalid_argument("reasoning effort " + dump_json_compact(effort) + " is not known",
                          "reasoning_effort", "invalid_effort");
}

// The lines put before everything else in thinking mode; empty when there are none.
Result<std::string> effort_lines(const Json& effort, PromptFormat format) {
  const std::string_view name = effort.is_string() ? effort.as_string() : std::string_view();
  const bool named = effort.is_string();
  if (format == PromptFormat::kV4) {
    if (effort.is_null() || name == "high") return std::string();
    if (name == "max") return std::string(kEffortThorough);
    return effort_error(effort);
  }
  if (format == PromptFormat::kV4_0731) {
    if (effort.is_null() || name == "low") return std::string();
    if (name == "high") return std::string(kEffortThorough);
    if (name == "max") return std::string(kEffortBeyond);
    return effort_error(effort);
  }
  int64_t n = 75;
  if (named && name == "low") {
    n = 50;
  } else if (named && name == "max") {
    n = 100;
  } else if (effort.is_int()) {
    n = effort.as_int64().value_or(0);
  } else if (!effort.is_null() && name != "high") {
    return effort_error(effort);
  }
  if (n < kEffortMin || n > kEffortMax) return effort_error(effort);
  return "Reasoning Effort: " + std::to_string(n) +
         " (range 1-100, the higher the value, the more thorough the reasoning)\n\n";
}

// The parameters of one call: decoded from JSON text where they came as such.
Result<Json::Object> call_parameters(const PromptToolCall& call, PromptFormat format) {
  const auto whole = [&call] { return Json::Object{{"arguments", call.arguments}}; };
  const auto decode = [](const Json& text) {
    return parse_json(text.as_string(), JsonDialect::kPython);
  };
  if (format != PromptFormat::kV41) {
    if (!call.arguments.is_string()) return whole();
    Result<Json> decoded = decode(call.arguments);
    if (!decoded.ok()) return whole();
    if (!decoded->is_object()) {
      return invalid_argument("the arguments of a call to '" + call.name + "' are not an object",
                              "messages", "tool_call_arguments");
    }
    return decoded->as_object();
  }
  Json arguments = call.arguments;
  for (int i = 0; i < 2 && arguments.is_string(); ++i) {
    Result<Json> decoded = decode(arguments);
    if (!decoded.ok()) break;
    Json inner = std::move(*decoded);
    arguments = std::move(inner);
  }
  return arguments.is_object() ? arguments.as_object() : whole();
}

class Renderer {
 public:
  Renderer(std::span<const PromptMessage> messages, const PromptOptions& options, bool drop,
           PromptWriter& out)
      : messages_(messages),
        options_(options),
        drop_(drop),
        v41_(options.format == PromptFormat::kV41),
        names_(dsml_names(options.format)),
        last_user_(last_user_index(messages, options.format)),
        out_(out) {}

  Status render(size_t i) {
    if (Status s = lead(i); !s.ok()) return s;
    if (Status s = body(i); !s.ok()) return s;
    return transition(i);
  }

  void header(bool think) {
    out_.control(kAssistantText);
    out_.control(think ? kThinkOpenText : kThinkCloseText);
  }

 private:
  Status lead(size_t i) {
    Result<std::string> lines = effort_lines(options_.effort, options_.format);
    if (!lines.ok()) return lines.status();
    if (i != 0) return {};
    const bool effort = options_.thinking && !lines->empty();
    if (v41_ && (effort || messages_[i].role == "system")) out_.control(kSystemText);
    if (effort) out_.control(*lines);
    return {};
  }

  Status body(size_t i) {
    const PromptMessage& m = messages_[i];
    if (m.role == "system") {
      if (v41_ && i > 0) out_.control(kSystemText);
      if (Status s = text_or_empty(m.content); !s.ok()) return s;
      sections(m);
      return {};
    }
    if (m.role == "developer" && !v41_) return developer(m);
    if (m.role == "user") return user(m);
    if (m.role == "latest_reminder") {
      out_.control(kReminderText);
      return formatted(m.content);
    }
    if (m.role == "assistant") return assistant(i);
    return invalid_argument("role '" + m.role + "' is not known", "messages", "unknown_role");
  }

  Status text_or_empty(const PromptContent& content) {
    if (content.kind == PromptContent::Kind::kBlocks) {
      return invalid_argument("this format takes only text as content", "messages", "content_type");
    }
    out_.client(content.text);
    return {};
  }

  // Where the reference formats whatever is there into text.
  Status formatted(const PromptContent& content) {
    switch (content.kind) {
      case PromptContent::Kind::kMissing:
      case PromptContent::Kind::kNull:
        out_.client("None");
        return {};
      default:
        return text_or_empty(content);
    }
  }

  Status developer(const PromptMessage& m) {
    if (m.content.kind != PromptContent::Kind::kText || m.content.text.empty()) {
      return invalid_argument("a developer message needs a text", "messages", "empty_content");
    }
    out_.control(kUserText);
    out_.client(m.content.text);
    sections(m);
    return {};
  }

  void sections(const PromptMessage& m) {
    if (!m.tools.empty()) {
      out_.control("\n\n");
      tools(m.tools);
    }
    if (m.response_format && truthy(*m.response_format)) {
      out_.control("\n\n");
      out_.control(kResponseFormatHead);
      out_.client(dump_json_python(*m.response_format));
    }
  }

  static bool truthy(const Json& value) {
    switch (value.kind()) {
      case Json::Kind::kNull:
        return false;
      case Json::Kind::kBool:
        return value.as_bool();
      case Json::Kind::kInt:
      case Json::Kind::kFloat:
        return value.as_double() != 0;
      case Json::Kind::kString:
        return !value.as_string().empty();
      case Json::Kind::kArray:
        return !value.as_array().empty();
      case Json::Kind::kObject:
        return !value.as_object().empty();
    }
    return false;
  }

  void tools(const std::vector<Json>& functions) {
    std::string_view rest = kToolsTemplate;
    while (true) {
      const size_t mark = rest.find('{');
      out_.control(rest.substr(0, mark));
      if (mark == std::string_view::npos) return;
      switch (rest[mark + 1]) {
        case 'c':
          out_.control(names_.calls);
          break;
        case 'i':
          out_.control(names_.invoke);
          break;
        case 'p':
          out_.control(names_.parameter);
          break;
        default:
          for (size_t i = 0; i < functions.size(); ++i) {
            if (i > 0) out_.control("\n");
            out_.client(dump_json_python(functions[i]));
          }
      }
      rest.remove_prefix(mark + 3);
    }
  }

  Status user(const PromptMessage& m) {
    out_.control(kUserText);
    if (!m.content_blocks || m.content_blocks->empty()) return text_or_empty(m.content);
    bool first = true;
    for (const PromptBlock& block : *m.content_blocks) {
      if (!first) out_.control("\n\n");
      first = false;
      if (block.kind == PromptBlock::Kind::kToolResult) {
        out_.control("<tool_result>");
        if (Status s = tool_result(block.content); !s.ok()) return s;
        out_.control("</tool_result>");
      } else if (block.content.kind == PromptContent::Kind::kNull) {
        return invalid_argument("a user message's content is null", "messages", "null_content");
      } else if (block.content.kind == PromptContent::Kind::kBlocks) {
        return text_or_empty(block.content);
      } else {
        text_or_unsupported(block);
      }
    }
    return {};
  }

  void text_or_unsupported(const PromptBlock& block) {
    if (block.kind == PromptBlock::Kind::kText) {
      out_.client(block.text);
    } else {
      out_.client("[Unsupported " + block.type + "]");
    }
  }

  Status tool_result(const PromptContent& content) {
    if (content.kind != PromptContent::Kind::kBlocks) return formatted(content);
    bool first = true;
    for (const PromptBlock& block : content.blocks) {
      if (!first) out_.control("\n\n");
      first = false;
      text_or_unsupported(block);
    }
    return {};
  }

  Status assistant(size_t i) {
    const PromptMessage& m = messages_[i];
    const bool after_task = i > 0 && messages_[i - 1].task.has_value();
    const bool kept = !drop_ || static_cast<int>(i) > last_user_;
    if (options_.thinking && !after_task && kept) {
      out_.client(m.reasoning.value_or(""));
      if (m.wo_eos && m.open_reasoning) return {};
      out_.control(kThinkCloseText);
    }
    if (Status s = text_or_empty(m.content); !s.ok()) return s;
    if (!m.tool_calls.empty()) {
      if (Status s = calls(m.tool_calls); !s.ok()) return s;
    }
    if (!m.wo_eos) out_.control(kEosText);
    return {};
  }

  void tag(std::string_view open, std::string_view name) {
    out_.control(open);
    out_.control(kDsmlText);
    out_.control(name);
  }

  Status calls(const std::vector<PromptToolCall>& list) {
    out_.control("\n\n");
    tag("<", names_.calls);
    out_.control(">\n");
    for (const PromptToolCall& call : list) {
      Result<Json::Object> parameters = call_parameters(call, options_.format);
      if (!parameters.ok()) return parameters.status();
      tag("<", names_.invoke);
      out_.control(" name=\"");
      out_.client(call.name);
      out_.control("\">\n");
      bool first = true;
      for (const Json::Member& member : *parameters) {
        if (!first) out_.control("\n");
        first = false;
        parameter(member);
      }
      out_.control("\n");
      tag("</", names_.invoke);
      out_.control(">\n");
    }
    tag("</", names_.calls);
    out_.control(">");
    return {};
  }

  void parameter(const Json::Member& member) {
    const Json& value = member.second;
    tag("<", names_.parameter);
    out_.control(" name=\"");
    out_.client(member.first);
    out_.control(value.is_string() ? "\" string=\"true\">" : "\" string=\"false\">");
    out_.client(value.is_string() ? value.as_string() : dump_json_python(value));
    tag("</", names_.parameter);
    out_.control(">");
  }

  Status transition(size_t i) {
    const PromptMessage& m = messages_[i];
    if (i + 1 < messages_.size()) {
      const std::string& next = messages_[i + 1].role;
      if (next != "assistant" && next != "latest_reminder") return {};
    }
    if (m.task) return task(*m.task);
    const bool asks =
        m.role == "user" || (v41_ ? m.role == "system" && i > 0 : m.role == "developer");
    if (!asks) return {};
    header(options_.thinking && (!drop_ || static_cast<int>(i) >= last_user_));
    return {};
  }

  Status task(const std::string& name) {
    for (const TaskToken& known : kTasks) {
      if (known.task != name) continue;
      if (name == "action") header(options_.thinking);
      out_.control(known.token);
      return {};
    }
    return invalid_argument("task '" + name + "' is not known", "messages", "invalid_task");
  }

  std::span<const PromptMessage> messages_;
  const PromptOptions& options_;
  bool drop_, v41_;
  DsmlNames names_;
  int last_user_;
  PromptWriter& out_;
};

bool any_tools(std::span<const PromptMessage> messages) {
  for (const PromptMessage& m : messages) {
    if (!m.tools.empty()) return true;
  }
  return false;
}

}  // namespace

DsmlNames dsml_names(PromptFormat format) {
  if (format == PromptFormat::kV41) return {" calls", " invoke", " parameter"};
  return {"tool_calls", "invoke", "parameter"};
}

Result<EncodedPrompt> encode_messages(std::span<const PromptMessage> input,
                                      const PromptOptions& options) {
  std::vector<PromptMessage> context = options.context;
  std::vector<PromptMessage> messages(input.begin(), input.end());
  std::vector<Json> images, seen_before;
  if (options.format == PromptFormat::kV41) {
    if (Status s = take_out_images(context, options.image_literal, seen_before); !s.ok()) return s;
    if (Status s = take_out_images(messages, options.image_literal, images); !s.ok()) return s;
  }
  messages = merge_messages(messages, options.format);
  CallOrder order;
  for (const PromptMessage& m : context) learn_call_order(m, order);
  sort_tool_results(messages, std::move(order));
  context = merge_messages(context, options.format);

  std::vector<PromptMessage> full = context;
  full.insert(full.end(), messages.begin(), messages.end());
  const bool drop = options.drop_thinking && !any_tools(full);
  size_t first = context.size();
  if (options.thinking && drop) {
    full = drop_reasoning(full, options.format);
    first = drop_reasoning(context, options.format).size();
  }

  PromptWriter out;
  if (options.add_bos && context.empty()) out.control(kBosText);
  Renderer renderer(full, options, drop, out);
  for (size_t i = first; i < full.size(); ++i) {
    if (Status s = renderer.render(i); !s.ok()) return s;
  }
  if (options.force_header && !full.empty()) {
    const PromptMessage& last = full.back();
    const bool closed = last.role == "assistant" && !last.wo_eos && !last.task;
    const bool lone_system = last.role == "system" && full.size() == 1;
    if (closed || (lone_system && !last.task)) renderer.header(options.thinking);
  }
  const bool in_reasoning = out.ends_with_control(kThinkOpenText);
  EncodedPrompt prompt = std::move(out).finish();
  prompt.images = std::move(images);
  prompt.ends_in_reasoning = in_reasoning;
  return prompt;
}

}  // namespace tensorfold
