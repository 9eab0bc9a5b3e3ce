// Terms to nodes: scalars, arrays and the order of work. Objects are in schema_objects.cc.
#include "engine/grammar/schema_compile.h"

#include <algorithm>

#include "engine/grammar/schema_merge.h"

namespace tensorfold::grammar {
namespace {

std::string number_text(const Json& v) { return v.is_int() ? v.as_string() : dump_json_compact(v); }

// The spellings of one number: as written, and without a zero fraction or an exponent.
void number_words(const Json& v, std::vector<std::string>& words) {
  const std::string text = number_text(v);
  words.push_back(text);
  const auto d = decimal_of(v);
  if (!d || d->whole.size() > 20 || d->fraction.size() > 20) return;
  const std::string whole = (d->negative ? "-" : "") + (d->whole.empty() ? "0" : d->whole);
  if (d->fraction.empty()) {
    if (whole != text) words.push_back(whole);
  } else if (whole + "." + d->fraction != text) {
    words.push_back(whole + "." + d->fraction);
  }
}

DfaPtr word(const char* text) { return *dfa_words({text}); }

// Equal for equal sets.
std::string number_key(const NumberSet& set) {
  std::string key;
  const auto add = [&](const Decimal& d) {
    key += (d.negative ? "-" : "") + d.whole + "." + d.fraction + " ";
  };
  const auto bound = [&](const std::optional<Decimal>& d, bool open) {
    key += open ? "(" : "[";
    if (d) add(*d);
  };
  bound(set.low, set.low_open);
  bound(set.high, set.high_open);
  key += set.whole ? "w" : "";
  key += set.fraction ? "f" : "";
  key += "*";
  for (const Decimal& d : set.multiples) add(d);
  key += "!";
  for (const Decimal& d : set.excluded) add(d);
  return key;
}

}  // namespace

Status SchemaCompiler::error(const Conj& conj, std::string_view keyword,
                             std::string_view why) const {
  return doc_.error(conj.empty() ? doc_.root() : *conj[0].schema, keyword, why);
}

// The first automaton of the schema with the same table: what is equal is compiled, walked and
// remembered once.
DfaPtr SchemaCompiler::shared(const DfaPtr& dfa) {
  uint64_t hash = 1469598103934665603U;
  const auto mix = [&](uint64_t v) { hash = (hash ^ v) * 0xFF51AFD7ED558CCDU; };
  for (const int32_t t : dfa->next) mix(static_cast<uint32_t>(t));
  for (const uint32_t label : dfa->accept) mix(label);
  std::vector<DfaPtr>& alike = dfas_[hash];
  for (const DfaPtr& d : alike) {
    if (d == dfa || (d->next == dfa->next && d->accept == dfa->accept &&
                     d->byte_class == dfa->byte_class && d->universal == dfa->universal))
      return d;
  }
  alike.push_back(dfa);
  return dfa;
}

uint32_t SchemaCompiler::text_index(const DfaPtr& own, uint64_t min, uint64_t max) {
  const DfaPtr dfa = shared(own);
  const auto key = std::tuple(dfa.get(), min, max);
  const auto [it, fresh] = text_ids_.emplace(key, static_cast<uint32_t>(program_.texts.size()));
  if (fresh) {
    TextSpec spec;
    spec.dfa = dfa;
    spec.min = static_cast<uint32_t>(std::min<uint64_t>(min, kNoMax - 1));
    spec.max = static_cast<uint32_t>(std::min<uint64_t>(max, kNoMax));
    program_.texts.push_back(spec);
  }
  return it->second;
}

uint32_t SchemaCompiler::terminal_index(const DfaPtr& own) {
  const DfaPtr dfa = shared(own);
  const auto it = terminal_ids_.find(dfa.get());
  if (it != terminal_ids_.end()) return it->second;
  const uint32_t index = program_.add_dfa(dfa);
  terminal_ids_.emplace(dfa.get(), index);
  return index;
}

int32_t SchemaCompiler::node_for(const Conj& raw) {
  const Conj conj = terms_.normalize(raw);
  if (conj.size() == 1 && conj[0].schema->is_bool()) return kNoNode;
  const auto [it, fresh] = ids_.emplace(conj, static_cast<int32_t>(program_.nodes.size()));
  if (fresh) {
    program_.nodes.emplace_back();
    todo_.emplace_back(it->second, conj);
  }
  return it->second;
}

Result<int32_t> SchemaCompiler::compile(const Conj& conj) {
  const int32_t root = node_for(conj);
  if (root == kNoNode) return root;
  for (size_t i = 0; i < todo_.size(); ++i) {
    if (program_.nodes.size() > kSchemaNodesMax) {
      return invalid_argument(
          "schema: more than " + std::to_string(kSchemaNodesMax) + " different values to describe",
          "", "schema_too_complex");
    }
    const auto [node, what] = todo_[i];
    TF_RETURN_IF_ERROR(expand(node, what));
  }
  todo_.clear();
  prune();
  merge_equal_nodes(program_, live_);
  const Reached reached = reached_from(program_, root);
  for (const uint32_t o : reached.objects) TF_RETURN_IF_ERROR(prune_object(program_.objects[o]));
  for (const uint32_t a : reached.arrays) TF_RETURN_IF_ERROR(prune_array(program_.arrays[a]));
  TF_RETURN_IF_ERROR(finish_unique());
  return alive(root) ? root : kNoNode;
}

Status SchemaCompiler::expand(int32_t id, const Conj& conj) {
  TF_ASSIGN_OR_RETURN(const Terms terms, terms_.of(conj));
  ValueNode node;
  for (const Term& t : terms) {
    if (t.values) {
      TF_RETURN_IF_ERROR(add_values(t, conj, node));
      continue;
    }
    TF_RETURN_IF_ERROR(add_plain(t, node));
    TF_RETURN_IF_ERROR(add_number(t, conj, node));
    TF_RETURN_IF_ERROR(add_text(t, conj, node));
    TF_RETURN_IF_ERROR(add_array(t, conj, node));
    TF_RETURN_IF_ERROR(add_object(t, conj, node));
  }
  for (auto* list : {&node.texts, &node.terminals, &node.objects, &node.arrays}) {
    std::sort(list->begin(), list->end());
    list->erase(std::unique(list->begin(), list->end()), list->end());
  }
  program_.nodes[static_cast<size_t>(id)] = std::move(node);
  return ok_status();
}

Status SchemaCompiler::add_plain(const Term& t, ValueNode& node) {
  static const DfaPtr kNull = word("null"), kTrue = word("true"), kFalse = word("false");
  bool null = (t.types & kTypeNull) != 0, yes = (t.types & kTypeTrue) != 0,
       no = (t.types & kTypeFalse) != 0;
  for (const Json* v : t.excluded) {
    if (v->is_null()) null = false;
    if (v->is_bool()) (v->as_bool() ? yes : no) = false;
  }
  if (null) node.terminals.push_back(terminal_index(kNull));
  if (yes) node.terminals.push_back(terminal_index(kTrue));
  if (no) node.terminals.push_back(terminal_index(kFalse));
  return ok_status();
}

Status SchemaCompiler::add_values(const Term& t, const Conj& conj, ValueNode& node) {
  std::vector<std::string> texts;
  size_t bytes = 0;
  for (const Json* v : *t.values) {
    bool fits = true;
    for (const SchemaRef& ref : conj) {
      const Verdict r = check_value(doc_, *ref.schema, *v);
      if (r == Verdict::kUnknown) {
        return error(conj, "enum", "a value cannot be checked against the keywords beside it");
      }
      fits = fits && (r == Verdict::kYes) != ref.negated;
    }
    if (!fits) continue;
    if (v->is_string()) {
      texts.push_back(v->as_string());
      bytes += texts.back().size();
      if (bytes > kEnumTextMaxBytes)
        return error(conj, "enum",
                     "texts of more than " + std::to_string(kEnumTextMaxBytes) + " bytes");
      continue;
    }
    TF_ASSIGN_OR_RETURN(const int32_t lit, literal(*v));
    const ValueNode one = program_.nodes[static_cast<size_t>(lit)];
    node.terminals.insert(node.terminals.end(), one.terminals.begin(), one.terminals.end());
    node.objects.insert(node.objects.end(), one.objects.begin(), one.objects.end());
    node.arrays.insert(node.arrays.end(), one.arrays.begin(), one.arrays.end());
  }
  if (texts.empty()) return ok_status();
  const Result<DfaPtr> dfa = dfa_words(texts);
  if (!dfa.ok()) return error(conj, "enum", dfa.status().message());
  node.texts.push_back(text_index(*dfa, 0, UINT64_MAX));
  return ok_status();
}

// The node of one value; members of objects in any order.
Result<int32_t> SchemaCompiler::literal(const Json& v) {
  if (const auto it = literals_.find(&v); it != literals_.end()) return it->second;
  const auto id = static_cast<int32_t>(program_.nodes.size());
  program_.nodes.emplace_back();
  literals_.emplace(&v, id);
  ValueNode node;
  if (v.is_null() || v.is_bool()) {
    Term t;
    t.types = v.is_null() ? kTypeNull : v.as_bool() ? kTypeTrue : kTypeFalse;
    TF_RETURN_IF_ERROR(add_plain(t, node));
  } else if (v.is_string()) {
    TF_ASSIGN_OR_RETURN(const DfaPtr dfa, dfa_words({v.as_string()}));
    node.texts.push_back(text_index(dfa, 0, UINT64_MAX));
  } else if (v.is_number()) {
    std::vector<std::string> words;
    number_words(v, words);
    TF_ASSIGN_OR_RETURN(const DfaPtr dfa, dfa_words(words));
    const uint32_t index = terminal_index(dfa);
    ambiguous_.resize(std::max<size_t>(ambiguous_.size(), index + 1), 0);
    if (words.size() > 1) ambiguous_[index] = 1;
    node.terminals.push_back(index);
  } else if (v.is_array()) {
    ArrayShape shape;
    for (const Json& item : v.as_array()) {
      TF_ASSIGN_OR_RETURN(const int32_t child, literal(item));
      shape.prefix.push_back(child);
    }
    shape.min = shape.max = static_cast<uint32_t>(shape.prefix.size());
    node.arrays.push_back(static_cast<uint32_t>(program_.arrays.size()));
    program_.arrays.push_back(std::move(shape));
  } else {
    ObjectShape shape;
    for (const auto& [name, value] : v.as_object()) {
      TF_ASSIGN_OR_RETURN(const int32_t child, literal(value));
      shape.properties.push_back({name, child, true});
    }
    shape.ordered = options_.ordered;
    node.objects.push_back(static_cast<uint32_t>(program_.objects.size()));
    program_.objects.push_back(std::move(shape));
  }
  program_.nodes[static_cast<size_t>(id)] = std::move(node);
  return id;
}

Status SchemaCompiler::add_number(const Term& t, const Conj& conj, ValueNode& node) {
  if ((t.types & (kTypeWhole | kTypeFraction)) == 0) return ok_status();
  NumberSet set = t.numbers;
  set.whole = (t.types & kTypeWhole) != 0;
  set.fraction = (t.types & kTypeFraction) != 0;
  for (const Json* v : t.excluded) {
    if (!v->is_number()) continue;
    const auto d = decimal_of(*v);
    if (!d) return error(conj, "not", "a number with too many digits");
    set.excluded.push_back(*d);
  }
  DfaPtr& known = numbers_[number_key(set)];
  if (!known) {
    const Result<DfaPtr> dfa = number_dfa(set);
    if (!dfa.ok()) return error(conj, "number", dfa.status().message());
    known = *dfa;
  }
  if (known->empty()) return ok_status();
  const uint32_t index = terminal_index(known);
  ambiguous_.resize(std::max<size_t>(ambiguous_.size(), index + 1), 0);
  if (set.fraction) ambiguous_[index] = 1;
  node.terminals.push_back(index);
  return ok_status();
}

Result<DfaPtr> SchemaCompiler::text_language(const Term& t, const Conj& conj) {
  DfaPtr dfa = dfa_universal();
  for (const DfaPtr& d : t.texts) {
    if (dfa->empty()) return dfa;
    Result<DfaPtr> both = d->empty() ? Result<DfaPtr>(d) : dfa_intersect(*dfa, *d);
    if (!both.ok()) return error(conj, "pattern", both.status().message());
    dfa = *both;
  }
  std::vector<std::string> not_these;
  for (const Json* v : t.excluded) {
    if (v->is_string()) not_these.push_back(v->as_string());
  }
  if (!not_these.empty() && !dfa->empty()) {
    TF_ASSIGN_OR_RETURN(const DfaPtr words, dfa_words(not_these));
    TF_ASSIGN_OR_RETURN(dfa, dfa_subtract(*dfa, *words));
  }
  return dfa;
}

Status SchemaCompiler::add_text(const Term& t, const Conj& conj, ValueNode& node) {
  if ((t.types & kTypeString) == 0 || t.min_length > t.max_length) return ok_status();
  TF_ASSIGN_OR_RETURN(DfaPtr dfa, text_language(t, conj));
  if (dfa->empty()) return ok_status();
  uint64_t min = t.min_length;
  if (!dfa->universal && min > 0) {
    const Result<DfaPtr> longer =
        dfa_at_least(*dfa, static_cast<uint32_t>(std::min<uint64_t>(min, UINT32_MAX)));
    if (!longer.ok()) return error(conj, "minLength", longer.status().message());
    dfa = *longer;
    min = 0;
    if (dfa->empty()) return ok_status();
  }
  if (dfa->min_chars[static_cast<size_t>(dfa->start)] > t.max_length) return ok_status();
  // A bound that no accepted text reaches would only make equal states look different.
  const bool reached = dfa->universal || dfa_longest_chars(*dfa) > t.max_length;
  node.texts.push_back(text_index(dfa, min, reached ? t.max_length : UINT64_MAX));
  return ok_status();
}

Status SchemaCompiler::add_array(const Term& t, const Conj& conj, ValueNode& node) {
  if ((t.types & kTypeArray) == 0 || t.min_items > t.max_items) return ok_status();
  if (std::any_of(t.excluded.begin(), t.excluded.end(),
                  [](const Json* v) { return v->is_array(); }))
    return error(conj, "not", "a single array cannot be excluded");
  ArrayShape shape;
  size_t fixed = 0;
  for (const auto& rule : t.arrays) fixed = std::max(fixed, rule->prefix.size());
  if (fixed > kArrayPrefixMax) return error(conj, "prefixItems", "too many positions");
  for (size_t i = 0; i < fixed; ++i) shape.prefix.push_back(node_for(terms_.item(t, i)));
  shape.rest = node_for(terms_.item(t, fixed));
  shape.min = static_cast<uint32_t>(std::min<uint64_t>(t.min_items, kNoMax - 1));
  shape.max = static_cast<uint32_t>(std::min<uint64_t>(t.max_items, kNoMax));
  TF_RETURN_IF_ERROR(add_contains(t, conj, shape, fixed));
  const auto index = static_cast<uint32_t>(program_.arrays.size());
  shape.unique = t.unique && shape.max > 1;
  if (shape.unique) unique_.emplace_back(index, conj);
  node.arrays.push_back(index);
  program_.arrays.push_back(std::move(shape));
  return ok_status();
}

Status SchemaCompiler::add_contains(const Term& t, const Conj& conj, ArrayShape& shape,
                                    size_t fixed) {
  std::vector<ContainsRule> rules;
  for (const ContainsRule& c : t.contains) {
    if (c.min > 0 || c.max != UINT32_MAX) rules.push_back(c);
  }
  if (rules.empty()) return ok_status();
  if (rules.size() > 1) return error(conj, "contains", "two of them together cannot be enforced");
  const ContainsRule& c = rules[0];
  shape.contains = true;
  shape.min_hits = c.min;
  shape.max_hits = c.max;
  for (size_t i = 0; i <= fixed; ++i) {
    Conj hit = terms_.item(t, i), miss = hit;
    hit.push_back(c.schema);
    // With an upper bound every item must be told apart; without one, any item may go uncounted.
    if (c.max != UINT32_MAX) miss.push_back({c.schema.schema, !c.schema.negated});
    const int32_t h = node_for(hit), m = node_for(miss);
    if (i < fixed) {
      shape.hit_prefix.push_back(h);
      shape.miss_prefix.push_back(m);
    } else {
      shape.hit = h;
      shape.miss = m;
    }
  }
  if (c.min > c.max) shape.max = 0, shape.min = 1;
  return ok_status();
}

}  // namespace tensorfold::grammar
