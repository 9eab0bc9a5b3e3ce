#include "ctl/prompt/reply_cuts.h"

#include <algorithm>
#include <random>

namespace tensorfold::ctl {
namespace {

constexpr size_t kPairCutsMaxBytes = 16 << 10;  // of a reply that is cut in two at every byte
constexpr int kRandomCuts = 50;
constexpr uint32_t kRandomSeed = 41;

struct Spelling {
  std::string_view text;
  ReplyControl kind;
};
constexpr Spelling kSpellings[] = {
    {kThinkOpenText, ReplyControl::kThinkOpen}, {kThinkCloseText, ReplyControl::kThinkClose},
    {kDsmlText, ReplyControl::kDsml},           {kBosText, ReplyControl::kSilent},
    {kEosText, ReplyControl::kSilent},          {kUserText, ReplyControl::kTurn},
    {kAssistantText, ReplyControl::kTurn},      {kSystemText, ReplyControl::kTurn},
    {kReminderText, ReplyControl::kTurn},
};

// Feeds `items` and takes the delta at each byte offset of `cuts` (a control token is one piece).
ReplyParts parse_cut(const std::vector<ReplyItem>& items, const std::vector<size_t>& cuts,
                     const OutputOptions& options, PromptFormat format) {
  OutputParser parser(options, format);
  ReplyParts parts;
  size_t at = 0;
  auto cut = cuts.begin();
  const auto take_up_to = [&](size_t offset) {
    bool due = false;
    for (; cut != cuts.end() && *cut <= offset; ++cut) due = true;
    if (due) add_delta(parser.take(), parts);
  };
  for (const ReplyItem& item : items) {
    const size_t end = at + item.text.size();
    if (item.kind == ReplyControl::kNone) {
      size_t from = at;
      while (cut != cuts.end() && *cut < end) {
        const size_t to = std::max(*cut, from);
        parser.text(std::string_view(item.text).substr(from - at, to - from));
        from = to;
        take_up_to(to);
      }
      parser.text(std::string_view(item.text).substr(from - at));
    } else {
      parser.control(item.kind, item.text);
    }
    at = end;
    take_up_to(at);
  }
  add_delta(parser.take(), parts);
  parser.finish();
  add_delta(parser.take(), parts);
  return parts;
}

}  // namespace

void add_delta(const OutputDelta& delta, ReplyParts& parts) {
  parts.reasoning += delta.reasoning;
  parts.content += delta.content;
  for (const ToolCallDelta& call : delta.tool_calls) {
    const auto index = static_cast<size_t>(call.index);
    if (index >= parts.calls.size()) parts.calls.resize(index + 1);
    parts.calls[index].id += call.id;
    parts.calls[index].name += call.name;
    parts.calls[index].arguments += call.arguments;
  }
}

std::vector<ReplyItem> reply_items(std::string_view text) {
  std::vector<ReplyItem> items;
  std::string plain;
  const auto flush = [&] {
    if (!plain.empty()) items.push_back({ReplyControl::kNone, plain});
    plain.clear();
  };
  while (!text.empty()) {
    const auto found = std::find_if(std::begin(kSpellings), std::end(kSpellings),
                                    [&](const Spelling& s) { return text.starts_with(s.text); });
    if (found == std::end(kSpellings)) {
      plain += text.front();
      text.remove_prefix(1);
      continue;
    }
    flush();
    items.push_back({found->kind, std::string(found->text)});
    text.remove_prefix(found->text.size());
  }
  flush();
  return items;
}

CutReport try_cuts(std::string_view text, const OutputOptions& options, PromptFormat format) {
  const std::vector<ReplyItem> items = reply_items(text);
  CutReport report;
  report.whole = parse_cut(items, {}, options, format);
  const auto check = [&](const std::vector<size_t>& cuts, const std::string& name) {
    ++report.cuts;
    if (!report.problem.empty() || parse_cut(items, cuts, options, format) == report.whole) return;
    report.problem = name + " gives another result than the whole reply";
  };
  for (size_t at = 0; at <= text.size() && text.size() <= kPairCutsMaxBytes; ++at) {
    check({at}, "a cut at byte " + std::to_string(at));
  }
  for (const size_t step : {1, 2, 3, 5, 7, 11, 23}) {
    std::vector<size_t> cuts;
    for (size_t at = step; at < text.size(); at += step) cuts.push_back(at);
    check(cuts, "cutting every " + std::to_string(step) + " bytes");
  }
  std::mt19937 random(kRandomSeed);
  for (int i = 0; i < kRandomCuts && !text.empty(); ++i) {
    std::vector<size_t> cuts(1 + random() % 8);
    for (size_t& cut : cuts) cut = random() % (text.size() + 1);
    std::sort(cuts.begin(), cuts.end());
    check(cuts, "random cut " + std::to_string(i));
  }
  return report;
}

}  // namespace tensorfold::ctl
