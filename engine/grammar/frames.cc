// Interning, expressions and terminals. JSON's structure is in frames_json.cc, string content in
// frames_text.cc.
#include "engine/grammar/frames.h"

#include <algorithm>

#include "engine/base/check.h"

namespace tensorfold::grammar {
namespace {

constexpr size_t kFrameTableMin = 256;  // a power of two
constexpr uint32_t kManyWords = 1U << 20;
constexpr int kWordRounds = 256;
constexpr int kEnterDepthMax = 512;  // nested expressions without a byte between them

void add_unique(FrameSet& out, FrameId id) {
  if (std::find(out.begin(), out.end(), id) == out.end()) out.push_back(id);
}

}  // namespace

size_t Frames::Hash::operator()(const Frame& f) const {
  uint64_t h = static_cast<uint64_t>(f.kind) + 0x9E3779B97F4A7C15U;
  auto mix = [&h](uint64_t v) {
    h = (h ^ v) * 0xFF51AFD7ED558CCDU;
    h ^= h >> 32;
  };
  mix((static_cast<uint64_t>(f.a) << 32) | f.b);
  mix((static_cast<uint64_t>(f.c) << 32) | f.d);
  mix((static_cast<uint64_t>(f.e) << 32) | f.parent);
  return static_cast<size_t>(h);
}

Frames::Frames(const Program& program) : program_(program) {
  table_.assign(kFrameTableMin, kEndFrame);
  frames_.push_back({});  // kEndFrame
  Frame hole;
  hole.kind = Frame::Kind::kHole;
  frames_.push_back(hole);
  sets_.push_back({});
  set_ids_.emplace(std::string(), 0);
}

size_t Frames::bytes() const {
  size_t total = frames_.capacity() * sizeof(Frame) + table_.size() * sizeof(FrameId);
  total += chains_.size() * 40;
  total += set_added_.size() * 40;
  for (const auto& s : sets_) total += 2 * s.size() * 8 + 64;
  return total;
}

FrameId Frames::intern(Frame frame) {
  frame.depth =
      static_cast<uint16_t>(std::min<uint32_t>(frames_[frame.parent].depth + 1U, UINT16_MAX));
  if (frame.kind == Frame::Kind::kJoin) {
    frame.depth = 0;
    for (const uint64_t id : sets_[frame.e]) frame.depth = std::max(frame.depth, frames_[id].depth);
  }
  const size_t mask = table_.size() - 1;
  size_t place = Hash()(frame) & mask;
  while (table_[place] != kEndFrame) {
    if (frames_[table_[place]] == frame) return table_[place];
    place = (place + 1) & mask;
  }
  const auto id = static_cast<FrameId>(frames_.size());
  table_[place] = id;
  frames_.push_back(frame);
  if (2 * frames_.size() > table_.size()) grow();
  return id;
}

void Frames::grow() {
  const size_t mask = 2 * table_.size() - 1;
  table_.assign(mask + 1, kEndFrame);
  for (FrameId id = kHoleFrame + 1; id < frames_.size(); ++id) {
    size_t place = Hash()(frames_[id]) & mask;
    while (table_[place] != kEndFrame) place = (place + 1) & mask;
    table_[place] = id;
  }
}

// Whether two threads differ in what they return to and in nothing else (a cheap look first).
bool Frames::has_alike(const FrameSet& set) const {
  constexpr size_t kComparedMax = 16;
  if (set.size() > kComparedMax) return true;
  for (size_t i = 1; i < set.size(); ++i) {
    const Frame& f = frames_[set[i]];
    for (size_t j = 0; j < i; ++j) {
      const Frame& g = frames_[set[j]];
      if (f.kind == g.kind && f.a == g.a && f.b == g.b && f.c == g.c && f.d == g.d && f.e == g.e)
        return true;
    }
  }
  return false;
}

void Frames::merge(FrameSet& set) {
  if (set.size() < 2 || !has_alike(set)) return;
  auto joinable = [](const Frame& f) {
    switch (f.kind) {
      case Frame::Kind::kTerminal:
      case Frame::Kind::kText:
      case Frame::Kind::kValue:
        return f.e == 0;
      case Frame::Kind::kColon:
      case Frame::Kind::kObject:
      case Frame::Kind::kArray:
        return true;
      default:
        return false;
    }
  };
  std::unordered_map<Frame, FrameSet, Hash> groups;
  bool any = false;
  for (const FrameId id : set) {
    Frame key = frames_[id];
    if (!joinable(key)) continue;
    key.parent = kEndFrame;
    FrameSet& group = groups[key];
    group.push_back(id);
    any = any || group.size() > 1;
  }
  if (!any) return;
  FrameSet out;
  for (const FrameId id : set) {
    Frame key = frames_[id];
    if (!joinable(key)) {
      out.push_back(id);
      continue;
    }
    key.parent = kEndFrame;
    const FrameSet& group = groups[key];
    if (group[0] != id) continue;
    if (group.size() == 1) {
      out.push_back(id);
      continue;
    }
    uint32_t parents = 0;
    for (const FrameId member : group) {
      const Frame below = frames_[frames_[member].parent];
      if (below.kind != Frame::Kind::kJoin) {
        parents = set_add(parents, frames_[member].parent);
        continue;
      }
      const std::vector<uint64_t> joined = sets_[below.e];
      for (const uint64_t p : joined) parents = set_add(parents, static_cast<uint32_t>(p));
    }
    Frame merged = frames_[id];
    merged.parent = intern({Frame::Kind::kJoin, 0, 0, 0, 0, 0, parents, kEndFrame});
    out.push_back(intern(merged));
  }
  set.swap(out);
}

void Frames::joined(FrameId join, FrameSet& out) const {
  for (const uint64_t id : sets_[frames_[join].e]) out.push_back(static_cast<FrameId>(id));
}

FrameSet Frames::start() {
  FrameSet out;
  enter(program_.root, kEndFrame, out, 0);
  return out;
}

void Frames::enter(uint32_t expr, FrameId parent, FrameSet& out, int depth) {
  if (depth >= kEnterDepthMax) return;  // nested beyond what is followed: no thread
  const Expr& e = program_.exprs[expr];
  switch (e.kind) {
    case Expr::Kind::kEmpty:
      resume(parent, out);
      return;
    case Expr::Kind::kTerminal: {
      const Dfa& dfa = *program_.dfas[e.a];
      if (dfa.empty()) return;
      add_unique(out, intern({Frame::Kind::kTerminal, 0, e.a, static_cast<uint32_t>(dfa.start), 0,
                              0, 0, parent}));
      if (dfa.label(dfa.start) != 0) resume(parent, out);
      return;
    }
    case Expr::Kind::kText: {
      const TextSpec& spec = program_.texts[e.a];
      if (spec.dfa->empty()) return;
      add_unique(out, intern({Frame::Kind::kText, 0, e.a, static_cast<uint32_t>(spec.dfa->start), 0,
                              0, 0, parent}));
      if (spec.min == 0 && spec.dfa->label(spec.dfa->start) != 0) resume(parent, out);
      return;
    }
    case Expr::Kind::kValue:
      add_unique(out, intern({Frame::Kind::kValue, 0, e.a, UINT32_MAX, 0, 0, 0, parent}));
      return;
    case Expr::Kind::kSymbol:
      add_unique(out, intern({Frame::Kind::kSymbol, 0, e.a, 0, 0, 0, 0, parent}));
      return;
    case Expr::Kind::kSequence:
      if (e.parts.empty()) {
        resume(parent, out);
        return;
      }
      if (e.parts.size() > 1)
        parent = intern({Frame::Kind::kSequence, 0, expr, 1, 0, 0, 0, parent});
      enter(e.parts[0], parent, out, depth + 1);
      return;
    case Expr::Kind::kChoice:
      for (const uint32_t part : e.parts) enter(part, parent, out, depth + 1);
      return;
    case Expr::Kind::kRule:
      // A stack this deep may not grow: what is open still closes.
      if (frames_[parent].depth < program_.depth_max) enter(e.a, parent, out, depth + 1);
      return;
    case Expr::Kind::kTool:
      resume(intern({Frame::Kind::kTool, 0, e.a, 0, 0, 0, 0, parent}), out);
      return;
  }
}

void Frames::resume(FrameId parent, FrameSet& out) {
  const Frame f = frames_[parent];
  if (f.kind == Frame::Kind::kTool) {
    enter_parameter(f, out);
    return;
  }
  if (f.kind == Frame::Kind::kJoin) {
    const std::vector<uint64_t> joined = sets_[f.e];
    for (const uint64_t id : joined) resume(static_cast<FrameId>(id), out);
    return;
  }
  if (f.kind != Frame::Kind::kSequence) {
    add_unique(out, parent);
    return;
  }
  const std::vector<uint32_t>& parts = program_.exprs[f.a].parts;
  FrameId below = f.parent;
  if (f.b + 1 < parts.size()) {
    Frame next = f;
    next.b = f.b + 1;
    below = intern(next);
  }
  enter(parts[f.b], below, out, 0);
}

void Frames::enter_parameter(const Frame& tool, FrameSet& out) {
  const ToolShape& shape = program_.tools[tool.a];
  bool complete = tool.d >= shape.min;
  Frame next = tool;
  next.d = std::min(tool.d + 1, shape.max == kNoMax ? std::max(shape.min, 1U) : shape.max);
  uint32_t missing_count = 0;
  for (uint32_t i = 0; i < shape.open.size(); ++i)
    missing_count += shape.required[i] && !set_has(tool.c, i) ? 1U : 0U;
  complete = complete && missing_count == 0;
  const uint32_t room = shape.max == kNoMax ? kNoMax : shape.max - tool.d;
  for (uint32_t i = 0; i < shape.open.size(); ++i) {
    if (set_has(tool.c, i) || shape.open[i] == UINT32_MAX) continue;
    if (room <= missing_count && !shape.required[i]) continue;
    next.c = set_add(tool.c, i);
    enter(shape.open[i], intern(next), out, 0);
  }
  if (shape.other != UINT32_MAX && room > missing_count) {
    next.c = tool.c;
    enter(shape.other, intern(next), out, 0);
  }
  if (complete) enter(tool.d == 0 ? shape.close_empty : shape.close, tool.parent, out, 0);
}

void Frames::step(FrameId id, uint32_t symbol, FrameSet& out) {
  const Frame f = frames_[id];
  if (symbol >= kSymbolBase) {
    if (f.kind == Frame::Kind::kSymbol && f.a == symbol - kSymbolBase) resume(f.parent, out);
    return;
  }
  const auto byte = static_cast<uint8_t>(symbol);
  switch (f.kind) {
    case Frame::Kind::kEnd:
    case Frame::Kind::kHole:
    case Frame::Kind::kSymbol:
    case Frame::Kind::kSequence:
    case Frame::Kind::kTool:
    case Frame::Kind::kJoin:
      return;
    case Frame::Kind::kTerminal:
      step_terminal(f, byte, out);
      return;
    case Frame::Kind::kText:
      step_text(f, byte, out);
      return;
    case Frame::Kind::kKey: {
      Frame next;
      const TextStep r = key_step(f, next, byte);
      if (r == TextStep::kLive) add_unique(out, intern(next));
      if (r == TextStep::kClosed) close_key(f, out);
      return;
    }
    case Frame::Kind::kColon: {
      if (byte == ':') {
        add_unique(out, intern({Frame::Kind::kValue, 0, f.a, 0, 0, 0, 0, f.parent}));
        return;
      }
      const int32_t ws = space(f.b, byte, true);
      if (ws < 0 || program_.whitespace != Whitespace::kAny) return;
      Frame next = f;
      next.b = static_cast<uint32_t>(ws);
      add_unique(out, intern(next));
      return;
    }
    case Frame::Kind::kValue:
      step_value(id, byte, out);
      return;
    case Frame::Kind::kObject:
      step_object(id, byte, out);
      return;
    case Frame::Kind::kArray:
      step_array(id, byte, out);
      return;
  }
}

void Frames::step_terminal(const Frame& f, uint8_t byte, FrameSet& out) {
  const Dfa& dfa = *program_.dfas[f.a];
  const int32_t t = dfa.step(static_cast<int32_t>(f.b), byte);
  if (t < 0) return;
  Frame next = f;
  next.b = static_cast<uint32_t>(t);
  if (f.e != 0) {
    next.e = capture(f.e, byte);
    if (!unused_left(next, dfa)) return;
  }
  add_unique(out, intern(next));
  FrameId below = kEndFrame;
  if (dfa.label(t) != 0 && completed(next, below)) resume(below, out);
}

bool Frames::completed(const Frame& frame, FrameId& below) {
  below = frame.parent;
  if (frame.e == 0) return true;
  Frame array = frames_[frame.parent];
  TF_CHECK(array.kind == Frame::Kind::kArray);
  if (set_has(array.e, frame.e)) return false;
  array.e = set_add(array.e, frame.e);
  below = intern(array);
  return true;
}

uint32_t Frames::capture(uint32_t chain, uint8_t byte) {
  const uint64_t key = (static_cast<uint64_t>(chain) << 8) | byte;
  const auto [it, fresh] = chains_.emplace(key, static_cast<uint32_t>(chain_prefix_.size()));
  if (fresh) {
    chain_prefix_.push_back(chain);
    chain_byte_.push_back(byte);
  }
  return it->second;
}

// A finite language can run out: the texts that still begin with what was read must be more than
// those among them that were used.
bool Frames::unused_left(const Frame& f, const Dfa& dfa) {
  const uint32_t key = f.kind == Frame::Kind::kText ? f.a | 0x80000000U : f.a;
  const uint32_t left = word_counts(key, dfa)[f.b];
  if (left >= kManyWords) return true;
  uint32_t taken = 0;
  std::string rest;
  for (const uint64_t item : sets_[frames_[f.parent].e]) {
    rest.clear();
    auto chain = static_cast<uint32_t>(item);
    for (; chain > f.e; chain = chain_prefix_[chain])
      rest.push_back(static_cast<char>(chain_byte_[chain]));
    if (chain != f.e) continue;
    // Used texts of another language that begin alike take nothing from this one.
    auto state = static_cast<int32_t>(f.b);
    const bool escaped = rest.find('\\') != std::string::npos;
    for (size_t i = rest.size(); i-- > 0 && state >= 0 && !escaped;)
      state = dfa.step(state, static_cast<uint8_t>(rest[i]));
    taken += escaped || (state >= 0 && dfa.label(state) != 0) ? 1U : 0U;
  }
  return left > taken;
}

std::vector<std::string> Frames::used_rests(const Frame& f) const {
  std::vector<std::string> out;
  std::string rest;
  for (const uint64_t item : sets_[frames_[f.parent].e]) {
    rest.clear();
    auto chain = static_cast<uint32_t>(item);
    for (; chain > f.e; chain = chain_prefix_[chain])
      rest.push_back(static_cast<char>(chain_byte_[chain]));
    if (chain == f.e) out.emplace_back(rest.rbegin(), rest.rend());
  }
  return out;
}

// How many texts are accepted from each state, kManyWords for very many and for no end of them.
const std::vector<uint32_t>& Frames::word_counts(uint32_t key, const Dfa& dfa) {
  auto [it, fresh] = finite_words_.emplace(key, std::vector<uint32_t>());
  std::vector<uint32_t>& words = it->second;
  if (!fresh) return words;
  words.assign(dfa.states(), 0);
  bool changed = true;
  for (int round = 0; changed && round < kWordRounds; ++round) {
    changed = false;
    for (size_t s = dfa.states(); s-- > 0;) {
      uint64_t n = dfa.accept[s] != 0 ? 1 : 0;
      for (int b = 0; b < 256; ++b) {
        const int32_t t = dfa.step(static_cast<int32_t>(s), static_cast<uint8_t>(b));
        if (t >= 0) n += words[static_cast<size_t>(t)];
      }
      const auto capped = static_cast<uint32_t>(std::min<uint64_t>(n, kManyWords));
      changed = changed || capped != words[s];
      words[s] = capped;
    }
  }
  if (changed) words.assign(dfa.states(), kManyWords);
  return words;
}

// Sets are sorted lists of integers.
uint32_t Frames::set_add(uint32_t set, uint32_t item) {
  const uint64_t key = (static_cast<uint64_t>(set) << 32) | item;
  if (const auto it = set_added_.find(key); it != set_added_.end()) return it->second;
  std::vector<uint64_t> items = sets_[set];
  const auto place = std::lower_bound(items.begin(), items.end(), item);
  if (place == items.end() || *place != item) items.insert(place, item);
  std::string bytes(reinterpret_cast<const char*>(items.data()), items.size() * 8);
  const auto [it, fresh] = set_ids_.emplace(std::move(bytes), static_cast<uint32_t>(sets_.size()));
  if (fresh) sets_.push_back(std::move(items));
  set_added_.emplace(key, it->second);
  return it->second;
}

bool Frames::set_has(uint32_t set, uint32_t item) const {
  const std::vector<uint64_t>& items = sets_[set];
  return std::binary_search(items.begin(), items.end(), item);
}

uint32_t Frames::set_size(uint32_t set) const { return static_cast<uint32_t>(sets_[set].size()); }

}  // namespace tensorfold::grammar
