// Objects, and what of all nodes can be completed at all.
#include <algorithm>
#include <set>

#include "engine/grammar/schema_compile.h"

namespace tensorfold::grammar {
namespace {

constexpr uint32_t kOtherBit = 0x80000000U;  // label of names that match no pattern

}  // namespace

Status SchemaCompiler::add_object(const Term& t, const Conj& conj, ValueNode& node) {
  if ((t.types & kTypeObject) == 0 || t.min_properties > t.max_properties) return ok_status();
  if (std::any_of(t.excluded.begin(), t.excluded.end(),
                  [](const Json* v) { return v->is_object(); }))
    return error(conj, "not", "a single object cannot be excluded");
  ObjectShape shape;
  shape.ordered = options_.ordered;
  shape.min = static_cast<uint32_t>(std::min<uint64_t>(t.min_properties, kNoMax - 1));
  shape.max = static_cast<uint32_t>(std::min<uint64_t>(t.max_properties, kNoMax));
  std::set<std::string> seen;
  const std::set<std::string> required(t.required.begin(), t.required.end());
  TF_ASSIGN_OR_RETURN(const DfaPtr names, name_language(conj, t));
  auto declare = [&](const std::string& name) -> Status {
    if (!seen.insert(name).second) return ok_status();
    TF_ASSIGN_OR_RETURN(const Conj value, terms_.member(t, name));
    ObjectShape::Property p{name, node_for(value), required.count(name) > 0};
    if (names && (names->empty() || dfa_run(*names, name) == 0)) p.value = kNoNode;
    shape.properties.push_back(std::move(p));
    return ok_status();
  };
  for (const auto& rule : t.objects) {
    for (const auto& p : rule->properties) TF_RETURN_IF_ERROR(declare(p.first));
  }
  for (const std::string& name : t.required) TF_RETURN_IF_ERROR(declare(name));
  TF_RETURN_IF_ERROR(add_others(t, conj, shape));
  if (names && shape.base) {
    TF_ASSIGN_OR_RETURN(
        shape.base, names->empty() ? Result<DfaPtr>(names) : dfa_intersect(*shape.base, *names));
    // The labels are the base's; when the base was every text, the names' label stands for it.
    if (!shape.base->empty() && shape.other.size() == 1) {
      const int32_t value = shape.other.begin()->second;
      shape.other.clear();
      for (const uint32_t label : shape.base->accept) {
        if (label != 0) shape.other.emplace(label, value);
      }
    }
  }
  node.objects.push_back(static_cast<uint32_t>(program_.objects.size()));
  program_.objects.push_back(std::move(shape));
  return ok_status();
}

// The names that propertyNames allows; null when it says nothing.
Result<DfaPtr> SchemaCompiler::name_language(const Conj& conj, const Term& t) {
  Conj names;
  for (const auto& rule : t.objects) {
    if (rule->names) names.push_back(*rule->names);
  }
  names = terms_.normalize(std::move(names));
  if (names.empty()) return DfaPtr();
  TF_ASSIGN_OR_RETURN(const Terms terms, terms_.of(names));
  DfaPtr all = std::make_shared<const Dfa>();
  for (const Term& term : terms) {
    if ((term.types & kTypeString) == 0) continue;
    DfaPtr one;
    if (term.values) {
      std::vector<std::string> words;
      for (const Json* v : *term.values) {
        bool fits = v->is_string();
        for (const SchemaRef& ref : names) {
          fits = fits && (check_value(doc_, *ref.schema, *v) == Verdict::kYes) != ref.negated;
        }
        if (fits) words.push_back(v->as_string());
      }
      TF_ASSIGN_OR_RETURN(one, dfa_words(words));
    } else {
      TF_ASSIGN_OR_RETURN(one, text_language(term, conj));
      if (!one->empty() && term.min_length > 0) {
        TF_ASSIGN_OR_RETURN(one, dfa_at_least(*one, static_cast<uint32_t>(std::min<uint64_t>(
                                                        term.min_length, UINT32_MAX))));
      }
      if (!one->empty() && term.max_length != UINT64_MAX) {
        if (term.max_length >= kDfaStatesMax)
          return error(conj, "propertyNames", "maxLength is too large to be enforced here");
        const auto more = static_cast<uint32_t>(term.max_length) + 1;
        TF_ASSIGN_OR_RETURN(const DfaPtr longer, dfa_at_least(*dfa_universal(), more));
        TF_ASSIGN_OR_RETURN(one, dfa_subtract(*one, *longer));
      }
    }
    if (one->empty()) continue;
    TF_ASSIGN_OR_RETURN(all, all->empty() ? Result<DfaPtr>(one) : dfa_union(*all, *one));
  }
  return all;
}

// Undeclared names: which patterns each matches decides what its value must satisfy.
Status SchemaCompiler::add_others(const Term& t, const Conj& conj, ObjectShape& shape) {
  std::vector<std::string> sources;
  bool open_said = false;
  for (const auto& rule : t.objects) {
    open_said = open_said || rule->additional.has_value();
    for (const auto& p : rule->patterns) {
      if (std::find(sources.begin(), sources.end(), p.first) == sources.end())
        sources.push_back(p.first);
    }
  }
  if (sources.size() > kPatternsPerObjectMax)
    return error(conj, "patternProperties", "too many patterns");
  auto value_of = [&](uint32_t label) {
    Conj value;
    for (const auto& rule : t.objects) {
      bool named = false;
      for (const auto& [source, ref] : rule->patterns) {
        const auto i = std::find(sources.begin(), sources.end(), source) - sources.begin();
        if (((label >> i) & 1U) == 0) continue;
        named = true;
        value.push_back(ref);
      }
      if (!named && rule->additional) value.push_back(*rule->additional);
    }
    return node_for(value);
  };
  const bool closed = options_.closed && !open_said && !shape.properties.empty();
  if (sources.empty()) {
    const int32_t value = closed ? kNoNode : value_of(0);
    if (value == kNoNode) return ok_status();
    shape.base = dfa_universal();
    shape.other.emplace(shape.base->label(shape.base->start), value);
    return ok_status();
  }
  TF_ASSIGN_OR_RETURN(const DfaPtr base, names_by_patterns(conj, sources));
  std::set<uint32_t> labels(base->accept.begin(), base->accept.end());
  labels.erase(0);
  for (const uint32_t label : labels) {
    const bool hidden = closed && label == kOtherBit;
    shape.other[label] = hidden ? kNoNode : value_of(label);
  }
  shape.base = base;
  return ok_status();
}

// Every name, labeled with the patterns that it matches.
Result<DfaPtr> SchemaCompiler::names_by_patterns(const Conj& conj,
                                                 const std::vector<std::string>& sources) {
  DfaPtr& known = pattern_names_[sources];
  if (known) return known;
  std::vector<CharDfaPtr> patterns;
  for (const std::string& source : sources) {
    TF_ASSIGN_OR_RETURN(const CharDfaPtr pattern, doc_.names(source));
    patterns.push_back(pattern);
  }
  const Result<CharDfaPtr> sorted = chars_sort_texts(patterns, kOtherBit);
  if (!sorted.ok()) return error(conj, "patternProperties", sorted.status().message());
  const Result<DfaPtr> base = chars_to_bytes(**sorted);
  if (!base.ok()) return error(conj, "patternProperties", base.status().message());
  known = *base;
  return known;
}

bool SchemaCompiler::inhabited(const ObjectShape& s) const {
  uint64_t available = 0, required = 0;
  for (const auto& p : s.properties) {
    if (p.required && !alive(p.value)) return false;
    required += p.required ? 1U : 0U;
    available += alive(p.value) ? 1U : 0U;
  }
  if (required > s.max) return false;
  if (available >= s.min) return true;
  if (!s.base || s.base->empty()) return false;
  return std::any_of(s.other.begin(), s.other.end(),
                     [&](const auto& o) { return alive(o.second); });
}

bool SchemaCompiler::inhabited(const ArrayShape& s) const {
  uint64_t hits = 0;
  uint64_t need = s.min;
  if (s.contains) need = std::max<uint64_t>(need, s.min_hits);
  if (need > s.max) return false;
  // Past the prefix one position is like another.
  const uint64_t look = std::max<uint64_t>(s.prefix.size() + 1, 1);
  uint64_t length = 0;
  for (; length < std::min<uint64_t>(look, s.max); ++length) {
    const bool rest = length >= s.prefix.size();
    const auto i = static_cast<size_t>(length);
    const bool hit = s.contains && alive(rest ? s.hit : s.hit_prefix[i]);
    const bool miss = s.contains && alive(rest ? s.miss : s.miss_prefix[i]);
    const bool plain = alive(rest ? s.rest : s.prefix[i]);
    if (s.contains ? !hit && !miss : !plain) break;
    if (hit) hits += rest ? UINT32_MAX : 1;
    if (rest) length = UINT32_MAX;
  }
  return length >= s.min && (!s.contains || hits >= s.min_hits);
}

bool SchemaCompiler::inhabited(const ValueNode& node) const {
  if (!node.texts.empty() || !node.terminals.empty()) return true;
  for (const uint32_t o : node.objects) {
    if (inhabited(program_.objects[o])) return true;
  }
  for (const uint32_t a : node.arrays) {
    if (inhabited(program_.arrays[a])) return true;
  }
  return false;
}

// The least fixed point: a node lives when some value of finite size satisfies it.
void SchemaCompiler::prune() {
  live_.assign(program_.nodes.size(), 0);
  for (bool changed = true; changed;) {
    changed = false;
    for (size_t i = program_.nodes.size(); i-- > 0;) {
      if (live_[i] || !inhabited(program_.nodes[i])) continue;
      live_[i] = 1;
      changed = true;
    }
  }
  for (ValueNode& node : program_.nodes) {
    std::erase_if(node.objects, [&](uint32_t o) { return !inhabited(program_.objects[o]); });
    std::erase_if(node.arrays, [&](uint32_t a) { return !inhabited(program_.arrays[a]); });
  }
}

Status SchemaCompiler::prune_object(ObjectShape& s) {
  for (auto& p : s.properties) {
    if (!alive(p.value)) p.value = kNoNode;
  }
  bool dead = false;
  for (auto& o : s.other) {
    if (!alive(o.second)) o.second = kNoNode;
    dead = dead || o.second == kNoNode;
  }
  if (s.base && dead) {
    // Names that may not come lead nowhere.
    const auto& other = s.other;
    TF_ASSIGN_OR_RETURN(s.base, dfa_product(*s.base, Dfa(), [&](uint32_t x, uint32_t) {
                          const auto it = other.find(x);
                          return it == other.end() || it->second == kNoNode ? 0U : x;
                        }));
  }
  if (s.base && s.base->empty()) s.base = nullptr;
  index_object(s);
  s.distinct_others = s.base != nullptr && s.min > s.required;
  if (s.min <= s.required && s.max == kNoMax) s.min = 0;  // the required members are enough
  return ok_status();
}

Status SchemaCompiler::prune_array(ArrayShape& s) {
  auto kill = [&](std::vector<int32_t>& list, int32_t& rest) {
    for (int32_t& n : list) n = alive(n) ? n : kNoNode;
    rest = alive(rest) ? rest : kNoNode;
  };
  kill(s.prefix, s.rest);
  kill(s.hit_prefix, s.hit);
  kill(s.miss_prefix, s.miss);
  // Items stop where no value is left.
  for (size_t i = 0; i <= s.prefix.size(); ++i) {
    const bool rest = i == s.prefix.size();
    const bool open = s.contains ? (rest ? s.hit : s.hit_prefix[i]) != kNoNode ||
                                       (rest ? s.miss : s.miss_prefix[i]) != kNoNode
                                 : (rest ? s.rest : s.prefix[i]) != kNoNode;
    if (open) continue;
    s.max = std::min(s.max, static_cast<uint32_t>(i));
    break;
  }
  return ok_status();
}

// Items that must differ are compared by their text, so each value needs a single spelling.
Status SchemaCompiler::finish_unique() {
  for (const auto& [index, conj] : unique_) {
    ArrayShape& s = program_.arrays[index];
    if (s.max <= 1) {
      s.unique = false;
      continue;
    }
    std::vector<int32_t*> places;
    for (auto* list : {&s.prefix, &s.hit_prefix, &s.miss_prefix}) {
      for (int32_t& n : *list) places.push_back(&n);
    }
    for (int32_t* n : {&s.rest, &s.hit, &s.miss}) places.push_back(n);
    for (int32_t* n : places) {
      if (*n == kNoNode) continue;
      ValueNode node = program_.nodes[static_cast<size_t>(*n)];
      if (!node.objects.empty() || !node.arrays.empty())
        return error(conj, "uniqueItems", "arrays and objects as items cannot be compared");
      for (const uint32_t t : node.terminals) {
        if (t < ambiguous_.size() && ambiguous_[t])
          return error(conj, "uniqueItems", "numbers with a fraction cannot be compared");
      }
      for (uint32_t& t : node.texts) {
        TextSpec spec = program_.texts[t];
        if (!spec.dfa->universal) continue;
        auto strict = std::make_shared<Dfa>(*spec.dfa);
        strict->universal = false;  // no second spelling by \uXXXX
        spec.dfa = strict;
        t = static_cast<uint32_t>(program_.texts.size());
        program_.texts.push_back(spec);
      }
      *n = static_cast<int32_t>(program_.nodes.size());
      program_.nodes.push_back(std::move(node));
      live_.push_back(1);
    }
  }
  return ok_status();
}

}  // namespace tensorfold::grammar
