// Recognizing the tags of a block of calls, byte by byte: OutputParser's match functions.
#include "engine/base/utf8.h"
#include "engine/text/output_parser.h"

namespace tensorfold {
namespace {

constexpr std::string_view kWhiteSpace = " \t\r\n";

bool is_space(char c) { return kWhiteSpace.find(c) != std::string_view::npos; }

bool is_prefix(std::string_view of, std::string_view text) { return of.starts_with(text); }

}  // namespace

// NAME, then name="...": the header of a call, or of a parameter with its string="...".
OutputParser::Match OutputParser::match_header(std::string_view name, bool parameter) {
  constexpr std::string_view kAttribute = "name=\"", kTrue = "\" string=\"true\">",
                             kFalse = "\" string=\"false\">";
  std::string_view rest = tag_text_;
  if (rest.size() <= name.size()) return is_prefix(name, rest) ? Match::kMore : Match::kBad;
  if (!is_prefix(rest, name)) return Match::kBad;
  rest.remove_prefix(name.size());
  if (!is_space(rest.front())) return Match::kBad;
  const size_t start = rest.find_first_not_of(kWhiteSpace);
  if (start == std::string_view::npos) return Match::kMore;
  rest.remove_prefix(start);
  if (rest.size() <= kAttribute.size()) {
    return is_prefix(kAttribute, rest) ? Match::kMore : Match::kBad;
  }
  if (!is_prefix(rest, kAttribute)) return Match::kBad;
  rest.remove_prefix(kAttribute.size());
  const std::string_view tail = !parameter              ? std::string_view("\">")
                                : rest.ends_with(kTrue) ? kTrue
                                                        : kFalse;
  if (!rest.ends_with(tail)) return Match::kMore;
  rest.remove_suffix(tail.size());
  found_ = Tag::kOpen;
  found_name_ = name;
  found_attribute_ = utf8_lossy(rest);
  found_is_text_ = tail == kTrue;
  return Match::kDone;
}

OutputParser::Match OutputParser::match_block_tag() {
  Match best = Match::kBad;
  if (tag_ == Tag::kOpen) {
    best = match_header(names_.invoke, false);
    if (best == Match::kDone || state_ != State::kCall) return best;
    const Match parameter = match_header(names_.parameter, true);
    return parameter == Match::kBad ? best : parameter;
  }
  for (const std::string_view name : {names_.calls, names_.invoke}) {
    if (name == names_.invoke && state_ != State::kCall) continue;
    const std::string whole = std::string(name) + ">";
    if (!is_prefix(whole, tag_text_)) continue;
    best = Match::kMore;
    if (tag_text_.size() < whole.size()) continue;
    found_ = Tag::kClose;
    found_name_ = name;
    return Match::kDone;
  }
  return best;
}

OutputParser::Match OutputParser::match_tag() {
  if (tag_text_.size() > kDsmlTagMaxBytes) return Match::kBad;
  if (tag_ != Tag::kBlockOpen && state_ != State::kText && state_ != State::kJson) {
    return match_block_tag();
  }
  const std::string_view name = tag_ == Tag::kBlockOpen ? names_.calls : names_.parameter;
  const std::string whole = std::string(name) + ">";
  if (!is_prefix(whole, tag_text_)) return Match::kBad;
  if (tag_text_.size() < whole.size()) return Match::kMore;
  found_ = tag_;
  found_name_ = name;
  return Match::kDone;
}

}  // namespace tensorfold
