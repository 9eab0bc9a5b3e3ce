// The state machine that turns a reply into reasoning, content and tool calls while it arrives.
//
// Input is text bytes and control tokens, output what is new since the last take(). A function of
// the input alone: however it is cut, all deltas together are the same. One per reply, one thread.
//
// Grammar (docs/prompt-format.md): [reasoning </think>] content [blank line, block of calls].
// Rules where a reply leaves it:
// - A block opens anywhere in content and at a line start in reasoning, which it then ends. Up to
//   two line ends before it belong to it. Until its first call has a name nothing of it is shown;
//   if it does not get that far it is text, all of it.
// - After that, stray text between tags is content, an invoke or block end closes an open call, and
//   a value ends only at its own closing tag.
// - A value declared as JSON is passed on when complete: as it is if it parses, else as a string.
// - At the end of the reply, open calls stay open (their arguments are then incomplete JSON).
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "engine/engine.h"
#include "engine/text/prompt_encoder.h"
#include "engine/text/text_channel.h"

namespace tensorfold {

inline constexpr size_t kDsmlTagMaxBytes = 4096;  // a longer tag is text

enum class ReplyControl : unsigned char {
  kNone,        // an ordinary token: text
  kThinkOpen,   // <think>
  kThinkClose,  // </think>
  kDsml,        // ｜DSML｜
  kSilent,      // begin or end of sentence, padding: nothing to show
  kTurn,        // a turn marker: the reply is over
};

class OutputParser {
 public:
  OutputParser(const OutputOptions& options, PromptFormat format);

  void text(std::string_view bytes);
  // `spelling` is the token's text: inside values a control token is text.
  void control(ReplyControl kind, std::string_view spelling);
  void finish();  // the reply is complete; only take() may follow

  OutputDelta take();  // what is new
  bool stopped() const { return stopped_; }
  int stop_index() const { return stops_.stop_index(); }
  bool in_reasoning() const;
  int calls() const { return calls_; }
  int calls_closed() const { return calls_closed_; }

 private:
  enum class State : unsigned char {
    kReasoning,
    kContent,
    kAfterBlock,  // white space after a block is dropped unless text follows
    kBlock,       // between calls
    kCall,        // inside a call, between parameters
    kText,        // inside a value with string="true"
    kJson,        // inside a value with string="false"
  };
  enum class Tag : unsigned char { kNone, kBlockOpen, kOpen, kClose };  // being read
  enum class Match : unsigned char { kMore, kBad, kDone };

  void byte(char c);
  void channel_byte(char c);
  void after_block_byte(char c);
  void block_byte(char c);
  void value_byte(char c);
  void tag_byte(char c);
  void dsml();

  bool may_open(std::string_view held) const;
  Match match_header(std::string_view name, bool parameter);
  Match match_tag();
  Match match_block_tag();
  void tag_done();
  void tag_failed(bool with_last_byte);

  void open_candidate();
  void block_failed();
  void stray(std::string_view bytes);
  void close_block();
  void begin_call();
  void close_call();
  void begin_value();
  void end_value();
  void value(std::string_view bytes);
  void arguments(std::string_view json);

  void emit(char c);
  void emit_content(std::string_view bytes);
  void emit_held();
  void end_reasoning();
  void end_content();
  void stop();

  const DsmlNames names_;
  const bool parse_calls_;
  const uint64_t id_seed_;

  State state_;
  std::string held_;  // bytes whose meaning the next ones decide
  bool line_start_ = true;
  bool stopped_ = false, finished_ = false;

  State origin_ = State::kContent;  // where the block began
  bool committed_ = false;          // its first call has been shown
  std::string raw_;                 // the block so far, while it is not

  Tag tag_ = Tag::kNone;
  std::string tag_text_;  // after the DSML token
  Tag found_ = Tag::kNone;
  std::string_view found_name_;  // which tag matched: one of names_
  std::string found_attribute_;  // its name="..."
  bool found_is_text_ = false;   // string="true"

  int calls_ = 0, calls_closed_ = 0;
  bool first_parameter_ = true;
  std::string json_;  // a string="false" value so far

  Utf8Stream reasoning_utf8_, content_utf8_, value_utf8_;
  StopMatcher stops_;
  OutputDelta delta_;
};

}  // namespace tensorfold
