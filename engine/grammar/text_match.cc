// The runtime fed with bytes.
#include "engine/grammar/text_match.h"

#include <algorithm>

#include "engine/grammar/frames.h"

namespace tensorfold::grammar {

TextVerdict match_text(const Program& program, std::string_view text) {
  constexpr std::string_view kMarker = "｜DSML｜";
  Frames frames(program);
  FrameSet now = frames.start(), after;
  TextVerdict out;
  for (size_t i = 0; i < text.size();) {
    after.clear();
    const bool marker = !program.tools.empty() && text.substr(i, kMarker.size()) == kMarker;
    if (marker) {
      for (const FrameId id : now) frames.step(id, kSymbolBase + kTextMarkerId, after);
    }
    const bool taken = !after.empty();
    if (!marker) {
      for (const FrameId id : now) frames.step(id, static_cast<uint8_t>(text[i]), after);
    }
    out.at = i;
    if (after.empty()) return out;
    frames.merge(after);
    i += taken ? kMarker.size() : 1;
    now.swap(after);
  }
  out.at = text.size();
  out.accepted = std::find(now.begin(), now.end(), kEndFrame) != now.end();
  out.unfinished = !out.accepted && !now.empty();
  return out;
}

}  // namespace tensorfold::grammar
