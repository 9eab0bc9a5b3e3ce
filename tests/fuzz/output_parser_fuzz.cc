// The incremental reply parser: the way of cutting the input must not change the result.
//
// The input's first byte picks the options; the rest is a reply in which the bytes 1 to 5 stand for
// control tokens and everything else is text.
#include <cstdint>
#include <string>
#include <string_view>

#include "engine/base/check.h"
#include "engine/base/utf8.h"
#include "engine/text/output_parser.h"

namespace {

using namespace tensorfold;

struct Control {
  ReplyControl kind;
  std::string_view spelling;
};
constexpr Control kControls[] = {
    {ReplyControl::kThinkOpen, kThinkOpenText}, {ReplyControl::kThinkClose, kThinkCloseText},
    {ReplyControl::kDsml, kDsmlText},           {ReplyControl::kSilent, kEosText},
    {ReplyControl::kTurn, kUserText},
};

// Everything said, in a form that can be compared.
std::string run(std::string_view reply, uint8_t choice, size_t take_every) {
  OutputOptions options;
  options.starts_in_reasoning = (choice & 1) != 0;
  options.parse_tool_calls = (choice & 2) == 0;
  if ((choice & 4) != 0) options.stop = {"stop", "\n\n", "ab"};
  const PromptFormat format = (choice & 8) != 0 ? PromptFormat::kV4 : PromptFormat::kV41;
  OutputParser parser(options, format);
  std::string reasoning, content;
  std::vector<std::string> calls;
  const auto take = [&] {
    const OutputDelta delta = parser.take();
    TF_CHECK(utf8_first_invalid(delta.reasoning) == std::string_view::npos);
    TF_CHECK(utf8_first_invalid(delta.content) == std::string_view::npos);
    reasoning += delta.reasoning;
    content += delta.content;
    for (const ToolCallDelta& call : delta.tool_calls) {
      const auto index = static_cast<size_t>(call.index);
      if (index == calls.size()) calls.push_back(call.id + " " + call.name + " ");
      TF_CHECK(index < calls.size());
      calls[index] += call.arguments;
    }
  };
  for (size_t i = 0; i < reply.size(); ++i) {
    const auto byte = static_cast<unsigned char>(reply[i]);
    if (byte >= 1 && byte <= std::size(kControls)) {
      parser.control(kControls[byte - 1].kind, kControls[byte - 1].spelling);
    } else {
      parser.text(reply.substr(i, 1));
    }
    if (i % take_every == 0) take();
  }
  parser.finish();
  take();
  TF_CHECK(static_cast<size_t>(parser.calls()) == calls.size());
  TF_CHECK(parser.calls_closed() <= parser.calls());
  std::string all = reasoning + "\x1F" + content;
  for (const std::string& call : calls) all += "\x1F" + call;
  return all;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size < 1 || size > 1 << 16) return 0;
  const std::string_view reply(reinterpret_cast<const char*>(data) + 1, size - 1);
  const std::string whole = run(reply, data[0], size);
  TF_CHECK(run(reply, data[0], 1) == whole);
  TF_CHECK(run(reply, data[0], 7) == whole);
  return 0;
}
