#include "engine/text/completion.h"

#include <algorithm>
#include <initializer_list>
#include <optional>

#include "engine/base/json.h"
#include "engine/base/utf8.h"
#include "engine/text/prompt_encoder.h"
#include "engine/text/unicode_class.h"

namespace tensorfold {
namespace {

struct Read {
  std::string_view before;               // text up to the stop, or all that was left
  std::optional<std::string_view> stop;  // which stop was found
};

bool is_space(char32_t c) {
  const CharClass cls = char_class(c);
  return cls == CharClass::kSpace || cls == CharClass::kNewline || (c >= 0x1C && c <= 0x1F);
}

std::string_view skip_space(std::string_view text) {
  while (!text.empty()) {
    const Utf8Step step = utf8_step(text, 0);
    if (!step.valid || !is_space(step.code_point)) break;
    text.remove_prefix(step.bytes);
  }
  return text;
}

std::string quoted(std::string_view text) {
  std::string out;
  append_json_string(out, utf8_lossy(text));
  return out;
}

class Parser {
 public:
  Parser(std::string_view text, PromptFormat format) : text_(text) {
    const DsmlNames names = dsml_names(format);
    const std::string dsml(kDsmlText);
    block_open_ = "\n\n<" + dsml + std::string(names.calls);
    block_close_ = "</" + dsml + std::string(names.calls) + ">";
    invoke_open_ = "<" + dsml + std::string(names.invoke);
    invoke_close_ = "</" + dsml + std::string(names.invoke);
    parameter_open_ = "<" + dsml + std::string(names.parameter);
    parameter_close_ = "/" + dsml + std::string(names.parameter);
  }

  Result<Completion> run(bool thinking) {
    Completion out;
    if (thinking) {
      const Read reasoning = read_until({kThinkCloseText, block_open_});
      if (reasoning.stop != kThinkCloseText) return envelope("the reasoning is not closed");
      out.reasoning = reasoning.before;
    }
    const Read content = read_until({kEosText, block_open_});
    out.content = content.before;
    std::optional<std::string_view> stop = content.stop;
    if (stop == block_open_) {
      if (Status s = calls(out.calls); !s.ok()) return s;
      const Read tail = read_until({kEosText});
      if (!tail.before.empty()) return envelope("there is text after the calls");
      stop = tail.stop;
    } else if (stop != kEosText) {
      return envelope("the end-of-sentence token is missing");
    }
    if (at_ != text_.size()) return envelope("there is text after the end");
    for (const std::string_view token :
         {kBosText, kEosText, kThinkOpenText, kThinkCloseText, kDsmlText}) {
      if (out.content.find(token) != std::string::npos ||
          out.reasoning.find(token) != std::string::npos) {
        return envelope("control token " + std::string(token) + " inside the text");
      }
    }
    return out;
  }

 private:
  static Status envelope(std::string what) {
    return invalid_argument(std::move(what), "completion", "bad_completion");
  }
  static Status call_error(std::string_view what, std::string_view found) {
    return invalid_argument(std::string(what) + ", found " + quoted(found.substr(0, 80)),
                            "completion", "bad_tool_call");
  }

  // Reads up to the earliest of `stops` and past it; without one, to the end.
  Read read_until(std::initializer_list<std::string_view> stops) {
    size_t best = std::string_view::npos;
    Read read;
    for (const std::string_view stop : stops) {
      const size_t found = text_.find(stop, at_);
      if (found < best) {
        best = found;
        read.stop = stop;
      }
    }
    const size_t end = read.stop ? best : text_.size();
    read.before = text_.substr(at_, end - at_);
    at_ = read.stop ? end + read.stop->size() : end;
    return read;
  }

  Status calls(std::vector<Completion::Call>& out) {
    while (at_ < text_.size()) {
      const Read gap = read_until({invoke_open_, block_close_});
      if (gap.before != ">\n") return call_error("a tag's end and a line end expected", gap.before);
      if (!gap.stop) return call_error("a call or the block's end expected", "");
      if (*gap.stop == block_close_) return {};
      if (Status s = call(out); !s.ok()) return s;
    }
    return {};
  }

  Status call(std::vector<Completion::Call>& out) {
    Read read = read_until({parameter_open_, invoke_close_});
    const std::optional<std::string_view> name = call_name(read.before);
    if (!name) return call_error("a call's name expected", read.before);
    std::string arguments = "{";
    std::vector<std::string_view> keys;
    while (read.stop == parameter_open_) {
      read = read_until({parameter_close_});
      if (Status s = parameter(read.before, keys, arguments); !s.ok()) return s;
      read = read_until({parameter_open_, invoke_close_});
      if (read.before != ">\n") {
        return call_error("a parameter's end and a line end expected", read.before);
      }
    }
    out.push_back({std::string(*name), arguments + "}"});
    return {};
  }

  // \s*name="NAME">\n, with one more line end allowed (calls without parameters).
  static std::optional<std::string_view> call_name(std::string_view text) {
    constexpr std::string_view kHead = "name=\"", kTail = "\">\n";
    text = skip_space(text);
    if (!text.starts_with(kHead)) return std::nullopt;
    text.remove_prefix(kHead.size());
    for (size_t at = text.find(kTail); at != std::string_view::npos;
         at = text.find(kTail, at + 1)) {
      const std::string_view rest = text.substr(at + kTail.size());
      if (rest.empty() || rest == "\n") return text.substr(0, at);
    }
    return std::nullopt;
  }

  // ` name="KEY" string="true|false">VALUE<`, where a line end may follow the last character.
  static Status parameter(std::string_view text, std::vector<std::string_view>& keys,
                          std::string& arguments) {
    constexpr std::string_view kHead = " name=\"", kTrue = "\" string=\"true\">",
                               kFalse = "\" string=\"false\">";
    const std::string_view whole = text;
    if (!text.starts_with(kHead)) return call_error("a parameter's name expected", whole);
    text.remove_prefix(kHead.size());
    if (text.ends_with('\n')) text.remove_suffix(1);
    if (!text.ends_with('<')) return call_error("a parameter's closing tag expected", whole);
    text.remove_suffix(1);
    const size_t as_text = text.find(kTrue), as_json = text.find(kFalse);
    const bool is_text = as_text < as_json;
    const size_t mark = std::min(as_text, as_json);
    if (mark == std::string_view::npos) return call_error("string=\"...\" expected", whole);
    const std::string_view key = text.substr(0, mark);
    const std::string_view value = text.substr(mark + (is_text ? kTrue.size() : kFalse.size()));
    if (std::find(keys.begin(), keys.end(), key) != keys.end()) {
      return call_error("a parameter is there twice", key);
    }
    if (!keys.empty()) arguments += ", ";
    keys.push_back(key);
    append_json_string(arguments, key);
    arguments += ": ";
    if (is_text) {
      append_json_string(arguments, value);
    } else {
      arguments += value;
    }
    return {};
  }

  std::string_view text_;
  size_t at_ = 0;
  std::string block_open_, block_close_, invoke_open_, invoke_close_, parameter_open_,
      parameter_close_;
};

}  // namespace

Result<Completion> parse_completion(std::string_view text, bool thinking, PromptFormat format) {
  return Parser(text, format).run(thinking);
}

}  // namespace tensorfold
