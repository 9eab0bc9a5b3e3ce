#include "engine/text/output_parser.h"

#include <algorithm>

#include "engine/base/utf8.h"

namespace tensorfold {
namespace {

bool is_space(char c) { return std::string_view(" \t\r\n").find(c) != std::string_view::npos; }

std::string quoted(std::string_view text) {
  std::string out;
  append_json_string(out, text);
  return out;
}

// "call_" and 24 hexadecimal digits: the same for the same seed and call, otherwise unlike.
std::string call_id(uint64_t seed, int index) {
  static constexpr char kHex[] = "0123456789abcdef";
  std::string id = "call_";
  uint64_t x = seed + 0x9E3779B97F4A7C15ull * (2 * static_cast<uint64_t>(index) + 1);
  for (int word = 0; word < 2; ++word) {
    x += 0x9E3779B97F4A7C15ull;
    uint64_t z = x;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ull;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBull;
    z ^= z >> 31;
    for (int digit = 0; digit < 12; ++digit) id += kHex[z >> (60 - 4 * digit) & 15];
  }
  return id;
}

}  // namespace

OutputParser::OutputParser(const OutputOptions& options, PromptFormat format)
    : names_(dsml_names(format)),
      parse_calls_(options.parse_tool_calls),
      id_seed_(options.call_id_seed),
      state_(options.starts_in_reasoning ? State::kReasoning : State::kContent),
      stops_(options.stop) {}

bool OutputParser::in_reasoning() const {
  const bool undecided = (tag_ == Tag::kBlockOpen || state_ == State::kBlock) && !committed_;
  return undecided ? origin_ == State::kReasoning : state_ == State::kReasoning;
}

OutputDelta OutputParser::take() {
  OutputDelta delta = std::move(delta_);
  delta_ = {};
  return delta;
}

void OutputParser::text(std::string_view bytes) {
  for (const char c : bytes) {
    if (stopped_) return;
    byte(c);
  }
}

void OutputParser::byte(char c) {
  if (tag_ != Tag::kNone) {
    tag_byte(c);
    return;
  }
  switch (state_) {
    case State::kReasoning:
    case State::kContent:
      channel_byte(c);
      return;
    case State::kAfterBlock:
      after_block_byte(c);
      return;
    case State::kBlock:
    case State::kCall:
      block_byte(c);
      return;
    case State::kText:
    case State::kJson:
      value_byte(c);
      return;
  }
}

void OutputParser::control(ReplyControl kind, std::string_view spelling) {
  if (stopped_) return;
  if (kind == ReplyControl::kNone) {
    text(spelling);
    return;
  }
  if (kind == ReplyControl::kDsml) {
    dsml();
    return;
  }
  if (state_ == State::kText || state_ == State::kJson) {
    if (spelling != kEosText) text(spelling);
    return;
  }
  if (kind == ReplyControl::kSilent) return;
  if (tag_ != Tag::kNone) tag_failed(false);
  if (state_ == State::kBlock && !committed_) block_failed();
  const bool in_call = state_ == State::kBlock || state_ == State::kCall;
  if (kind == ReplyControl::kTurn) {
    stop();
  } else if (kind == ReplyControl::kThinkClose && state_ == State::kReasoning) {
    end_reasoning();
    state_ = State::kContent;
  } else if (kind == ReplyControl::kThinkOpen && state_ != State::kReasoning && !in_call) {
    end_content();
    state_ = State::kReasoning;
    line_start_ = true;
  }
}

void OutputParser::finish() {
  if (stopped_ || finished_) return;
  finished_ = true;
  if (state_ == State::kText || state_ == State::kJson) {
    std::string rest = std::move(held_);
    held_.clear();
    if (tag_ != Tag::kNone) rest += "</" + std::string(kDsmlText) + tag_text_;
    tag_ = Tag::kNone;
    value(rest);
    if (state_ == State::kJson) {
      arguments(utf8_lossy(json_));
    } else {
      std::string tail;
      value_utf8_.flush(tail);
      const std::string escaped = quoted(tail);
      arguments(std::string_view(escaped).substr(1, escaped.size() - 2));
    }
  } else if (tag_ != Tag::kNone || state_ == State::kBlock) {
    if (!committed_) block_failed();
  }
  end_content();
}

// ---------------------------------------------------------------- reasoning and content

// Whether `held` could begin a block here: at most two line ends, then "<".
bool OutputParser::may_open(std::string_view held) const {
  if (std::string_view("\n\n<").starts_with(held) || std::string_view("\n<").starts_with(held))
    return true;
  return held == "<" && (line_start_ || state_ == State::kContent);
}

void OutputParser::channel_byte(char c) {
  if (!parse_calls_) {
    emit(c);
    return;
  }
  held_ += c;
  while (!may_open(held_)) {
    emit(held_.front());
    held_.erase(0, 1);
  }
}

void OutputParser::emit(char c) {
  line_start_ = c == '\n';
  if (state_ == State::kReasoning) {
    reasoning_utf8_.push(std::string_view(&c, 1), delta_.reasoning);
  } else {
    emit_content(std::string_view(&c, 1));
  }
}

void OutputParser::emit_content(std::string_view bytes) {
  std::string valid;
  content_utf8_.push(bytes, valid);
  stops_.push(valid, delta_.content);
  if (stops_.stopped()) stopped_ = true;
}

void OutputParser::emit_held() {
  const std::string held = std::move(held_);
  held_.clear();
  for (const char c : held) {
    if (!stopped_) emit(c);
  }
}

void OutputParser::end_reasoning() {
  emit_held();
  reasoning_utf8_.flush(delta_.reasoning);
  line_start_ = true;
}

// Gives out everything held back, in whichever state.
void OutputParser::end_content() {
  if (state_ == State::kReasoning) {
    end_reasoning();
    return;
  }
  if (state_ == State::kContent) emit_held();
  held_.clear();
  if (stopped_) return;
  std::string tail;
  content_utf8_.flush(tail);
  stops_.push(tail, delta_.content);
  stops_.flush(delta_.content);
  if (stops_.stopped()) stopped_ = true;
}

void OutputParser::stop() {
  end_content();
  stopped_ = true;
}

void OutputParser::after_block_byte(char c) {
  held_ += c;
  if (is_space(c)) return;
  state_ = State::kContent;
  line_start_ = true;
  const std::string held = std::move(held_);
  held_.clear();
  text(held);
}

// ---------------------------------------------------------------- blocks and tags

void OutputParser::dsml() {
  if (tag_ != Tag::kNone) tag_failed(false);
  const bool open = held_.ends_with('<'), close = held_.ends_with("</");
  switch (state_) {
    case State::kReasoning:
    case State::kContent:
      if (parse_calls_ && open) {
        open_candidate();
      } else {
        text(kDsmlText);
      }
      return;
    case State::kAfterBlock:
      text(kDsmlText);
      return;
    case State::kBlock:
    case State::kCall:
      if (!open && !close) {
        text(kDsmlText);
        return;
      }
      if (!committed_) raw_ += kDsmlText;
      tag_ = close ? Tag::kClose : Tag::kOpen;
      break;
    case State::kText:
    case State::kJson:
      if (!close) {
        text(kDsmlText);
        return;
      }
      tag_ = Tag::kClose;
      break;
  }
  held_.clear();
  tag_text_.clear();
}

void OutputParser::open_candidate() {
  origin_ = state_;
  committed_ = false;
  raw_ = held_ + std::string(kDsmlText);
  held_.clear();
  tag_ = Tag::kBlockOpen;
  tag_text_.clear();
}

// The block is no block: everything of it is text where it began.
void OutputParser::block_failed() {
  tag_ = Tag::kNone;
  state_ = origin_;
  committed_ = true;
  held_.clear();
  const std::string raw = std::move(raw_);
  raw_.clear();
  for (const char c : raw) {
    if (!stopped_) channel_byte(c);
  }
}

void OutputParser::block_byte(char c) {
  if (!committed_) raw_ += c;
  const bool grows = held_.empty() ? c == '<' : held_ == "<" && c == '/';
  if (grows) {
    held_ += c;
    return;
  }
  if (held_.empty() && is_space(c)) return;
  if (!committed_) {
    block_failed();
    return;
  }
  const std::string before = std::move(held_);
  held_.clear();
  stray(before);
  if (c == '<') {
    held_ = "<";
  } else if (!stopped_) {
    stray(std::string_view(&c, 1));
  }
}

// Text between the tags of a block whose calls have been shown.
void OutputParser::stray(std::string_view bytes) { emit_content(bytes); }

void OutputParser::tag_byte(char c) {
  tag_text_ += c;
  const bool in_value = state_ == State::kText || state_ == State::kJson;
  if (!committed_ && !in_value) raw_ += c;
  switch (match_tag()) {
    case Match::kMore:
      return;
    case Match::kBad:
      tag_failed(true);
      return;
    case Match::kDone:
      tag_done();
      return;
  }
}

// The tag is no tag. Its last byte, when that is what broke it, may begin something else.
void OutputParser::tag_failed(bool with_last_byte) {
  const Tag tag = tag_;
  tag_ = Tag::kNone;
  if (state_ == State::kText || state_ == State::kJson) {
    std::string body = std::move(tag_text_);
    const char last = with_last_byte ? body.back() : '\0';
    if (with_last_byte) body.pop_back();
    value("</" + std::string(kDsmlText) + body);
    if (with_last_byte) value_byte(last);
    return;
  }
  if (!committed_) {
    block_failed();
    return;
  }
  std::string body = std::move(tag_text_);
  const char last = with_last_byte ? body.back() : '\0';
  if (with_last_byte) body.pop_back();
  stray((tag == Tag::kClose ? "</" : "<") + std::string(kDsmlText) + body);
  if (with_last_byte && !stopped_) block_byte(last);
}

void OutputParser::tag_done() {
  const Tag tag = tag_;
  tag_ = Tag::kNone;
  if (tag == Tag::kBlockOpen) {
    state_ = State::kBlock;
  } else if (state_ == State::kText || state_ == State::kJson) {
    end_value();
  } else if (tag == Tag::kOpen) {
    if (found_name_ == names_.parameter) {
      begin_value();
    } else {
      begin_call();
    }
  } else if (found_name_ == names_.invoke) {
    close_call();
    state_ = State::kBlock;
  } else {
    close_block();
  }
}

// ---------------------------------------------------------------- calls

void OutputParser::close_block() {
  if (state_ == State::kCall) close_call();
  if (!committed_ && origin_ == State::kReasoning) {
    state_ = State::kReasoning;  // an empty block is no reason to end the reasoning
    block_failed();
    return;
  }
  raw_.clear();
  committed_ = true;
  held_.clear();
  state_ = State::kAfterBlock;
}

void OutputParser::begin_call() {
  if (state_ == State::kCall) close_call();
  if (!committed_) {
    committed_ = true;
    raw_.clear();
    if (origin_ == State::kReasoning) {
      reasoning_utf8_.flush(delta_.reasoning);
    } else {
      std::string tail;
      content_utf8_.flush(tail);
      stops_.push(tail, delta_.content);
      stops_.flush(delta_.content);
    }
  }
  state_ = State::kCall;
  first_parameter_ = true;
  ToolCallDelta call;
  call.index = calls_;
  call.id = call_id(id_seed_, calls_);
  call.name = found_attribute_;
  delta_.tool_calls.push_back(std::move(call));
  ++calls_;
}

void OutputParser::close_call() {
  arguments(first_parameter_ ? "{}" : "}");
  ++calls_closed_;
}

void OutputParser::begin_value() {
  arguments((first_parameter_ ? "{" : ", ") + quoted(found_attribute_) + ": ");
  first_parameter_ = false;
  state_ = found_is_text_ ? State::kText : State::kJson;
  json_.clear();
  if (found_is_text_) arguments("\"");
}

void OutputParser::end_value() {
  if (state_ == State::kText) {
    std::string tail;
    value_utf8_.flush(tail);
    arguments(std::string_view(quoted(tail)).substr(1));
  } else {
    const std::string text = utf8_lossy(json_);
    arguments(parse_json(text).ok() ? text : quoted(text));
  }
  state_ = State::kCall;
}

void OutputParser::value_byte(char c) {
  const bool grows = held_.empty() ? c == '<' : held_ == "<" && c == '/';
  if (grows) {
    held_ += c;
    return;
  }
  std::string bytes = std::move(held_);
  held_.clear();
  if (c == '<') {
    held_ = "<";
  } else {
    bytes += c;
  }
  value(bytes);
}

void OutputParser::value(std::string_view bytes) {
  if (state_ == State::kJson) {
    json_ += bytes;
    return;
  }
  std::string valid;
  value_utf8_.push(bytes, valid);
  if (valid.empty()) return;
  const std::string escaped = quoted(valid);
  arguments(std::string_view(escaped).substr(1, escaped.size() - 2));
}

void OutputParser::arguments(std::string_view json) {
  if (json.empty()) return;
  const int index = calls_ - 1;
  if (delta_.tool_calls.empty() || delta_.tool_calls.back().index != index) {
    delta_.tool_calls.emplace_back();
    delta_.tool_calls.back().index = index;
  }
  delta_.tool_calls.back().arguments += json;
}

}  // namespace tensorfold
