// Nondeterministic automata over bytes.
#include <array>

#include "engine/grammar/dfa.h"
#include "engine/grammar/subsets.h"

namespace tensorfold::grammar {
namespace {

size_t utf8_encode(uint32_t c, std::array<uint8_t, 4>& out) {
  if (c < 0x80) {
    out[0] = static_cast<uint8_t>(c);
    return 1;
  }
  if (c < 0x800) {
    out[0] = static_cast<uint8_t>(0xC0 | (c >> 6));
    out[1] = static_cast<uint8_t>(0x80 | (c & 0x3F));
    return 2;
  }
  if (c < 0x10000) {
    out[0] = static_cast<uint8_t>(0xE0 | (c >> 12));
    out[1] = static_cast<uint8_t>(0x80 | ((c >> 6) & 0x3F));
    out[2] = static_cast<uint8_t>(0x80 | (c & 0x3F));
    return 3;
  }
  out[0] = static_cast<uint8_t>(0xF0 | (c >> 18));
  out[1] = static_cast<uint8_t>(0x80 | ((c >> 12) & 0x3F));
  out[2] = static_cast<uint8_t>(0x80 | ((c >> 6) & 0x3F));
  out[3] = static_cast<uint8_t>(0x80 | (c & 0x3F));
  return 4;
}

// Bytes that no edge tells apart, as classes; and the automaton over them.
ClassNfa over_classes(const Nfa& nfa, std::array<uint8_t, 256>& byte_class) {
  std::array<char, 257> cut{};
  cut[0] = 1;
  for (const Nfa::State& s : nfa.states()) {
    for (const Nfa::Edge& e : s.edges) {
      cut[e.low] = 1;
      cut[static_cast<size_t>(e.high) + 1] = 1;
    }
  }
  int32_t id = -1;
  for (size_t b = 0; b < 256; ++b) {
    if (cut[b]) ++id;
    byte_class[b] = static_cast<uint8_t>(id);
  }
  ClassNfa out;
  out.classes = id + 1;
  for (const Nfa::State& s : nfa.states()) {
    out.first_edge.push_back(out.edges.size());
    out.first_free.push_back(out.free.size());
    for (const Nfa::Edge& e : s.edges)
      out.edges.push_back({byte_class[e.low], byte_class[e.high], e.to});
    out.free.insert(out.free.end(), s.free.begin(), s.free.end());
  }
  out.first_edge.push_back(out.edges.size());
  out.first_free.push_back(out.free.size());
  return out;
}

}  // namespace

int32_t Nfa::add() {
  states_.emplace_back();
  return static_cast<int32_t>(states_.size()) - 1;
}

void Nfa::text(int32_t from, std::string_view bytes, int32_t to) {
  for (size_t i = 0; i < bytes.size(); ++i) {
    const int32_t next = i + 1 == bytes.size() ? to : add();
    edge(from, static_cast<uint8_t>(bytes[i]), static_cast<uint8_t>(bytes[i]), next);
    from = next;
  }
  if (bytes.empty()) free_edge(from, to);
}

void Nfa::code_points(int32_t from, uint32_t low, uint32_t high, int32_t to) {
  if (low > high) return;
  if (low <= 0xDFFF && high >= 0xD800) {  // no surrogates in UTF-8
    if (low < 0xD800) code_points(from, low, 0xD7FF, to);
    if (high > 0xDFFF) code_points(from, 0xE000, high, to);
    return;
  }
  for (const uint32_t max : {0x7FU, 0x7FFU, 0xFFFFU}) {
    if (low <= max && max < high) {
      code_points(from, low, max, to);
      code_points(from, max + 1, high, to);
      return;
    }
  }
  if (high > 0x7F) {
    for (int i = 1; i < 4; ++i) {
      const uint32_t m = (1U << (6 * i)) - 1;
      if ((low & ~m) == (high & ~m)) continue;
      if ((low & m) != 0) {
        code_points(from, low, low | m, to);
        code_points(from, (low | m) + 1, high, to);
        return;
      }
      if ((high & m) != m) {
        code_points(from, low, (high & ~m) - 1, to);
        code_points(from, high & ~m, high, to);
        return;
      }
    }
  }
  std::array<uint8_t, 4> a{}, b{};
  const size_t n = utf8_encode(low, a);
  (void)utf8_encode(high, b);
  // From the last byte on: characters that end alike share the states of their ends.
  int32_t next = to;
  for (size_t i = n; i-- > 1;) {
    const uint64_t end =
        (static_cast<uint64_t>(next) << 16) | static_cast<uint64_t>(a[i] << 8) | b[i];
    const auto [it, fresh] = ends_.try_emplace(end, -1);
    if (fresh) {
      it->second = add();
      edge(it->second, a[i], b[i], next);
    }
    next = it->second;
  }
  edge(from, a[0], b[0], next);
}

Result<DfaPtr> nfa_to_dfa(const Nfa& nfa, int32_t start, int32_t final) {
  std::array<uint8_t, 256> byte_class{};
  const ClassNfa classes = over_classes(nfa, byte_class);
  TF_ASSIGN_OR_RETURN(Dfa dfa, determinize(classes, start, final));
  dfa.byte_class = byte_class;
  return dfa_finish(std::move(dfa));
}

DfaPtr dfa_universal() {
  static const DfaPtr kUniversal = [] {
    Nfa nfa;
    const int32_t s = nfa.add();
    nfa.code_points(s, 0, 0x10FFFF, s);
    auto dfa = std::make_shared<Dfa>(**nfa_to_dfa(nfa, s, s));
    dfa->universal = true;
    return DfaPtr(dfa);
  }();
  return kUniversal;
}

}  // namespace tensorfold::grammar
