// JSON's structure: values, objects, arrays and the white space between them.
#include <algorithm>

#include "engine/grammar/frames.h"
#include "engine/grammar/json_phase.h"

namespace tensorfold::grammar {
namespace {

using json_phase::kAfterComma;
using json_phase::kAfterValue;
using json_phase::kNoSpace;
using json_phase::kOpened;
using json_phase::make;
using json_phase::phase_of;
using json_phase::space_of;

void add_unique(FrameSet& out, FrameId id) {
  if (std::find(out.begin(), out.end(), id) == out.end()) out.push_back(id);
}

uint32_t object_count(const ObjectShape& s, uint32_t count) {
  if (s.max != kNoMax) return count + 1;
  return std::min(count + 1, s.min);
}

uint32_t array_count(const ArrayShape& s, uint32_t count) {
  if (s.max != kNoMax) return count + 1;
  return std::min(count + 1, std::max(s.min, static_cast<uint32_t>(s.prefix.size())));
}

int32_t by_position(const std::vector<int32_t>& prefix, int32_t rest, uint32_t position) {
  return position < prefix.size() ? prefix[position] : rest;
}

}  // namespace

// The white space automaton: the next state, or -1. State 0: none yet.
int32_t Frames::space(uint32_t state, uint8_t byte, bool closing) const {
  const bool blank = byte == ' ' || byte == '\t';
  switch (program_.whitespace) {
    case Whitespace::kCompact:
      return byte == ' ' && state == 0 && !closing ? 1 : -1;
    case Whitespace::kPretty:
      if (state == 0 && byte == ' ') return 1;
      if (state == 0 && byte == '\n') return 2;
      if (state >= 2 && blank && state < 2 + kIndentMaxChars)
        return static_cast<int32_t>(state) + 1;
      return -1;
    case Whitespace::kAny:
      if ((blank || byte == '\n' || byte == '\r') && state < kSpaceMaxChars)
        return spaces_counted_ ? static_cast<int32_t>(state) + 1 : 0;
      return -1;
  }
  return -1;
}

uint32_t Frames::spaces_of(const Frame& f) {
  switch (f.kind) {
    case Frame::Kind::kValue:
      return f.b == kNoSpace ? 0 : f.b;
    case Frame::Kind::kColon:
      return f.b;
    case Frame::Kind::kObject:
    case Frame::Kind::kArray:
      return space_of(f.b);
    default:
      return 0;
  }
}

Frame Frames::without_spaces(Frame f) {
  if (spaces_of(f) == 0) return f;
  const bool phased = f.kind == Frame::Kind::kObject || f.kind == Frame::Kind::kArray;
  f.b = phased ? make(phase_of(f.b), 0) : 0;
  return f;
}

void Frames::step_value(FrameId id, uint8_t byte, FrameSet& out) {
  const Frame f = frames_[id];
  if (f.b != kNoSpace) {
    const int32_t ws = space(f.b, byte, false);
    if (ws >= 0) {
      Frame next = f;
      next.b = static_cast<uint32_t>(ws);
      add_unique(out, intern(next));
      return;
    }
  }
  enter_value(program_.nodes[f.a], f, byte, out);
}

void Frames::enter_value(const ValueNode& node, const Frame& f, uint8_t byte, FrameSet& out) {
  const bool deep = frames_[f.parent].depth >= program_.depth_max;
  switch (byte) {
    case '"':
      for (const uint32_t text : node.texts) {
        const Dfa& dfa = *program_.texts[text].dfa;
        Frame next{
            Frame::Kind::kText, 0, text, static_cast<uint32_t>(dfa.start), 0, 0, 0, f.parent};
        if (f.e != 0) {
          next.e = capture(f.e, byte);
          if (!unused_left(next, dfa)) continue;
        }
        add_unique(out, intern(next));
      }
      return;
    case '{':
      if (deep) return;
      for (const uint32_t shape : node.objects) {
        add_unique(out,
                   intern({Frame::Kind::kObject, 0, shape, make(kOpened, 0), 0, 0, 0, f.parent}));
      }
      return;
    case '[':
      if (deep) return;
      for (const uint32_t shape : node.arrays) {
        add_unique(out,
                   intern({Frame::Kind::kArray, 0, shape, make(kOpened, 0), 0, 0, 0, f.parent}));
      }
      return;
    default:
      for (const uint32_t t : node.terminals) {
        const auto start = static_cast<uint32_t>(program_.dfas[t]->start);
        step_terminal({Frame::Kind::kTerminal, 0, t, start, 0, 0, f.e, f.parent}, byte, out);
      }
      return;
  }
}

// Required properties that have not come.
uint32_t Frames::missing(const Frame& object) const {
  const ObjectShape& s = program_.objects[object.a];
  if (s.required == 0) return 0;
  uint32_t n = 0;
  if (s.ordered) {
    for (uint32_t i = s.next_required[object.c]; i < s.properties.size();
         i = s.next_required[i + 1])
      ++n;
    return n;
  }
  for (const uint64_t item : sets_[object.c]) n += s.properties[item].required ? 1U : 0U;
  return s.required - n;
}

bool Frames::property_allowed(const Frame& object, uint32_t p) const {
  const ObjectShape& s = program_.objects[object.a];
  if (s.properties[p].value == kNoNode) return false;
  if (s.ordered) {
    if (p < object.c || s.next_required[object.c] < p) return false;
    if (object.d + 1 < s.min && !s.base) {
      uint32_t after = 0;
      for (size_t i = p + 1; i < s.properties.size(); ++i)
        after += s.properties[i].value != kNoNode ? 1U : 0U;
      if (object.d + 1 + after < s.min) return false;
    }
  } else if (set_has(object.c, p)) {
    return false;
  }
  if (s.max == kNoMax) return true;
  const uint32_t still = missing(object) - (s.properties[p].required ? 1U : 0U);
  return object.d + 1 + still <= s.max;
}

bool Frames::other_allowed(const Frame& object) const {
  const ObjectShape& s = program_.objects[object.a];
  if (!s.base || s.base->empty()) return false;
  if (s.ordered && s.next_required[object.c] < s.properties.size()) return false;
  return s.max == kNoMax || object.d + 1 + missing(object) <= s.max;
}

bool Frames::more_allowed(const Frame& object) const {
  if (other_allowed(object)) return true;
  const ObjectShape& s = program_.objects[object.a];
  for (uint32_t p = s.ordered ? object.c : 0; p < s.properties.size(); ++p) {
    if (property_allowed(object, p)) return true;
  }
  return false;
}

bool Frames::may_close(const Frame& object) const {
  return object.d >= program_.objects[object.a].min && missing(object) == 0;
}

bool Frames::key_alive(const Frame& key, const Frame& object) const {
  const ObjectShape& s = program_.objects[object.a];
  const bool others = other_allowed(object);
  if (key.b >= s.trie.size()) return others;
  const KeyTrieNode& node = s.trie[key.b];
  if (node.base >= 0 && others) return true;
  for (uint32_t i = node.low; i < node.high; ++i) {
    if (property_allowed(object, s.by_name[i])) return true;
  }
  return false;
}

void Frames::close_key(const Frame& key, FrameSet& out) {
  Frame object = frames_[key.parent];
  const ObjectShape& s = program_.objects[object.a];
  const auto tree = static_cast<uint32_t>(s.trie.size());
  int32_t value = kNoNode;
  if (key.b < tree && s.trie[key.b].property >= 0) {
    const auto p = static_cast<uint32_t>(s.trie[key.b].property);
    if (!property_allowed(object, p)) return;
    object.c = s.ordered ? p + 1 : set_add(object.c, p);
    value = s.properties[p].value;
  } else {
    const int32_t base = key.b < tree ? s.trie[key.b].base : static_cast<int32_t>(key.b - tree);
    if (base < 0 || !other_allowed(object)) return;
    const uint32_t label = s.base->label(base);
    const auto it = s.other.find(label);
    if (label == 0 || it == s.other.end() || it->second == kNoNode) return;
    value = it->second;
    if (s.ordered) object.c = static_cast<uint32_t>(s.properties.size());
    if (s.distinct_others) {
      if (set_has(object.e, key.e)) return;
      object.e = set_add(object.e, key.e);
    }
  }
  object.b = make(kAfterValue, 0);
  object.d = object_count(s, object.d);
  const FrameId below = intern(object);
  add_unique(out,
             intern({Frame::Kind::kColon, 0, static_cast<uint32_t>(value), 0, 0, 0, 0, below}));
}

void Frames::step_object(FrameId id, uint8_t byte, FrameSet& out) {
  const Frame f = frames_[id];
  const uint32_t phase = phase_of(f.b);
  const bool any = program_.whitespace == Whitespace::kAny;
  if (byte == '"' && phase != kAfterValue) {
    if (!more_allowed(f)) return;
    const uint32_t text = program_.objects[f.a].distinct_others ? 1 : 0;
    const Frame key{Frame::Kind::kKey, 0, f.a, 0, 0, 0, text, id};
    // White space before the key leaves no trace in what comes after it.
    Frame object = f;
    object.b = make(kAfterComma, 0);
    Frame plain = key;
    plain.parent = intern(object);
    add_unique(out, intern(plain));
    return;
  }
  if (byte == '}' && phase != kAfterComma) {
    if (may_close(f)) resume(f.parent, out);
    return;
  }
  if (byte == ',' && phase == kAfterValue) {
    if ((space_of(f.b) != 0 && !any) || !more_allowed(f)) return;
    Frame next = f;
    next.b = make(kAfterComma, 0);
    add_unique(out, intern(next));
    return;
  }
  const int32_t ws = space(space_of(f.b), byte, phase != kAfterComma);
  if (ws < 0) return;
  if (phase == kAfterValue && !any && !may_close(f)) return;  // only '}' could follow
  Frame next = f;
  next.b = make(phase, static_cast<uint32_t>(ws));
  add_unique(out, intern(next));
}

bool Frames::item_hits_reachable(const ArrayShape& s, uint32_t count, uint32_t hits) const {
  if (hits >= s.min_hits) return true;
  uint32_t need = s.min_hits - hits;
  for (uint32_t i = count; i < s.max && need > 0; ++i) {
    if (i >= s.prefix.size()) {
      return s.hit != kNoNode && (s.max == kNoMax || s.max - i >= need);
    }
    if (by_position(s.hit_prefix, s.hit, i) != kNoNode) --need;
  }
  return need == 0;
}

// The ways to read the next item: value node and hits after it.
void Frames::item_threads(const Frame& array,
                          std::vector<std::pair<int32_t, uint32_t>>& out) const {
  const ArrayShape& s = program_.arrays[array.a];
  if (s.max != kNoMax && array.c >= s.max) return;
  if (!s.contains) {
    const int32_t node = by_position(s.prefix, s.rest, array.c);
    if (node != kNoNode) out.emplace_back(node, 0);
    return;
  }
  const int32_t hit = by_position(s.hit_prefix, s.hit, array.c);
  const int32_t miss = by_position(s.miss_prefix, s.miss, array.c);
  const uint32_t limit = s.max_hits != kNoMax ? s.max_hits : s.min_hits;
  if (miss != kNoNode && item_hits_reachable(s, array.c + 1, array.d))
    out.emplace_back(miss, array.d);
  const bool counted = array.d < limit;
  if (hit != kNoNode && counted && item_hits_reachable(s, array.c + 1, array.d + 1))
    out.emplace_back(hit, array.d + 1);
}

void Frames::open_item(FrameId id, uint8_t byte, FrameSet& out) {
  const Frame f = frames_[id];
  const ArrayShape& s = program_.arrays[f.a];
  std::vector<std::pair<int32_t, uint32_t>> items;
  item_threads(f, items);
  for (const auto& [node, hits] : items) {
    Frame array = f;
    array.b = make(kAfterValue, 0);
    array.c = array_count(s, f.c);
    array.d = hits;
    Frame value{Frame::Kind::kValue, 0, static_cast<uint32_t>(node), 0, 0, 0, s.unique ? 1U : 0U,
                intern(array)};
    if (byte == ',') {
      add_unique(out, intern(value));
    } else {
      value.b = kNoSpace;
      enter_value(program_.nodes[value.a], value, byte, out);
    }
  }
}

// Whether an item that has not been used can still come (unique items of a finite language).
bool Frames::unused_items(const Frame& array) {
  std::vector<std::pair<int32_t, uint32_t>> items;
  item_threads(array, items);
  for (const auto& item : items) {
    const ValueNode& node = program_.nodes[static_cast<size_t>(item.first)];
    uint64_t total = 0;
    for (const uint32_t t : node.texts) {
      const Dfa& dfa = *program_.texts[t].dfa;
      total += word_counts(t | 0x80000000U, dfa)[static_cast<size_t>(dfa.start)];
    }
    for (const uint32_t t : node.terminals) {
      const Dfa& dfa = *program_.dfas[t];
      total += word_counts(t, dfa)[static_cast<size_t>(dfa.start)];
    }
    if (total > set_size(array.e)) return true;
  }
  return false;
}

void Frames::step_array(FrameId id, uint8_t byte, FrameSet& out) {
  const Frame f = frames_[id];
  const ArrayShape& s = program_.arrays[f.a];
  const uint32_t phase = phase_of(f.b);
  const bool any = program_.whitespace == Whitespace::kAny;
  const bool closes = f.c >= s.min && (!s.contains || f.d >= s.min_hits);
  if (byte == ']') {
    if (closes) resume(f.parent, out);
    return;
  }
  if (byte == ',') {
    if (phase != kAfterValue || (space_of(f.b) != 0 && !any)) return;
    if (s.unique && !unused_items(f)) return;
    open_item(id, byte, out);
    return;
  }
  const int32_t ws = space(space_of(f.b), byte, true);
  if (ws >= 0) {
    if (phase == kAfterValue && !any && !closes) return;
    Frame next = f;
    next.b = make(phase, static_cast<uint32_t>(ws));
    add_unique(out, intern(next));
    return;
  }
  if (phase == kOpened) open_item(id, byte, out);
}

}  // namespace tensorfold::grammar
