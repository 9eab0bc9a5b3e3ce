// Which bytes a frame can read next: a cheap look that spares most steps, since most bytes of a
// token tree lead nowhere. Never too few; too many only where telling would cost more than a step.
#include "engine/grammar/frames.h"
#include "engine/grammar/json_phase.h"

namespace tensorfold::grammar {
namespace {

using json_phase::kAfterComma;
using json_phase::kAfterValue;
using json_phase::kNoSpace;
using json_phase::kOpened;
using json_phase::phase_of;
using Kind = Frame::Kind;

constexpr size_t kFirstControl = 0x20;  // bytes below it are never text

void set_all(ByteSet& out, std::string_view bytes) {
  for (const char c : bytes) out.set(static_cast<uint8_t>(c));
}

constexpr std::string_view kJsonSpace = " \t\n\r";

}  // namespace

// The bytes that lead on from a state.
ByteSet Frames::live_bytes(const Dfa& dfa, int32_t state) {
  std::vector<ByteSet>& of_class = class_bytes_[&dfa];
  if (of_class.empty()) {
    of_class.resize(static_cast<size_t>(dfa.classes));
    for (size_t b = 0; b < 256; ++b) of_class[dfa.byte_class[b]].set(b);
  }
  ByteSet out;
  const auto width = static_cast<size_t>(dfa.classes);
  const int32_t* row = dfa.next.data() + static_cast<size_t>(state) * width;
  for (size_t c = 0; c < width; ++c) {
    if (row[c] >= 0) out |= of_class[c];
  }
  return out;
}

const ByteSet& Frames::node_bytes(uint32_t index) {
  if (node_bytes_.empty()) node_bytes_.resize(program_.nodes.size());
  ByteSet& out = node_bytes_[index];
  if (out.any()) return out;
  const ValueNode& node = program_.nodes[index];
  if (!node.texts.empty()) out.set('"');
  if (!node.objects.empty()) out.set('{');
  if (!node.arrays.empty()) out.set('[');
  for (const uint32_t t : node.terminals)
    out |= live_bytes(*program_.dfas[t], program_.dfas[t]->start);
  return out;
}

void Frames::text_bytes(const Frame& f, ByteSet& out) {
  const TextSpec& spec = program_.texts[f.a];
  if (f.d != 0 || spec.dfa->universal) {
    out.set();
    return;
  }
  ByteSet bytes = live_bytes(*spec.dfa, static_cast<int32_t>(f.b));
  if (!spec.raw) {
    for (size_t b = 0; b < kFirstControl; ++b) bytes.reset(b);
    set_all(bytes, "\"\\");
  }
  out |= bytes;
}

void Frames::key_bytes(const Frame& f, ByteSet& out) {
  const ObjectShape& shape = program_.objects[f.a];
  const auto tree = static_cast<uint32_t>(shape.trie.size());
  if (f.d != 0 || f.b >= tree || shape.trie[f.b].base >= 0) {
    out.set();
    return;
  }
  out.set('"');
  for (const auto& named : shape.trie[f.b].next) {
    const uint8_t meant = named.first;
    const bool escaped = meant < kFirstControl || meant == '"' || meant == '\\';
    out.set(escaped ? '\\' : meant);
  }
}

void Frames::first_bytes(FrameId id, ByteSet& out) {
  const Frame& f = frames_[id];
  switch (f.kind) {
    case Kind::kEnd:
    case Kind::kSymbol:
      return;  // they read no byte
    case Kind::kHole:
    case Kind::kSequence:
    case Kind::kTool:
    case Kind::kJoin:
      out.set();  // what is below them decides
      return;
    case Kind::kTerminal:
      out |= live_bytes(*program_.dfas[f.a], static_cast<int32_t>(f.b));
      return;
    case Kind::kText:
      text_bytes(f, out);
      return;
    case Kind::kKey:
      key_bytes(f, out);
      return;
    case Kind::kColon:
      set_all(out, kJsonSpace);
      out.set(':');
      return;
    case Kind::kValue:
      if (f.b != kNoSpace) set_all(out, kJsonSpace);
      out |= node_bytes(f.a);
      return;
    case Kind::kObject:
      set_all(out, kJsonSpace);
      if (phase_of(f.b) != kAfterValue) out.set('"');
      if (phase_of(f.b) != kAfterComma) out.set('}');
      if (phase_of(f.b) == kAfterValue) out.set(',');
      return;
    case Kind::kArray:
      set_all(out, kJsonSpace);
      out.set(']');
      if (phase_of(f.b) == kAfterValue) out.set(',');
      if (phase_of(f.b) == kOpened) {
        array_scratch_.clear();
        item_threads(f, array_scratch_);
        for (const auto& item : array_scratch_)
          out |= node_bytes(static_cast<uint32_t>(item.first));
      }
      return;
  }
}

}  // namespace tensorfold::grammar
