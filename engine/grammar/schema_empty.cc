// Whether schemas together certainly hold for no value: what tells the branches of oneOf apart.
#include <algorithm>

#include "engine/grammar/schema_terms.h"

namespace tensorfold::grammar {

Result<bool> TermBuilder::term_empty(const Term& t, const Conj& conj, int depth) {
  if (t.values) {
    for (const Json* v : *t.values) {
      bool fits = true;
      for (const SchemaRef& ref : conj) {
        const Verdict r = check_value(doc_, *ref.schema, *v);
        if (r != Verdict::kUnknown && (r == Verdict::kYes) == ref.negated) fits = false;
      }
      if (fits) return false;
    }
    return true;
  }
  if ((t.types & (kTypeNull | kTypeTrue | kTypeFalse)) != 0) return false;
  if ((t.types & (kTypeWhole | kTypeFraction)) != 0) {
    const NumberSet& n = t.numbers;
    const int c = n.low && n.high ? compare(*n.low, *n.high) : -1;
    if (c < 0 || (c == 0 && !n.low_open && !n.high_open)) return false;
  }
  if ((t.types & kTypeString) != 0 && t.min_length <= t.max_length) {
    if (t.texts.empty()) return false;
    DfaPtr all = t.texts[0];
    for (size_t i = 1; i + 1 < t.texts.size() && !all->empty(); ++i) {
      TF_ASSIGN_OR_RETURN(all, dfa_intersect(*all, *t.texts[i]));
    }
    if (t.texts.size() == 1 ? !all->empty() : dfa_meet(*all, *t.texts.back())) return false;
  }
  if ((t.types & kTypeArray) != 0 && t.min_items <= t.max_items) {
    bool empty = false;
    for (size_t i = 0; i < std::min<uint64_t>(t.min_items, 16) && !empty; ++i) {
      TF_ASSIGN_OR_RETURN(empty, certainly_empty(item(t, i), depth - 1));
    }
    if (!empty) return false;
  }
  if ((t.types & kTypeObject) == 0) return true;
  if (t.min_properties > t.max_properties || t.required.size() > t.max_properties) return true;
  for (const std::string& name : t.required) {
    TF_ASSIGN_OR_RETURN(const Conj value, member(t, name));
    TF_ASSIGN_OR_RETURN(const bool empty, certainly_empty(value, depth - 1));
    if (empty) return true;
  }
  return false;
}

// Certainly nothing satisfies both; looked at without merging them. False says nothing.
Result<bool> TermBuilder::plainly_apart(const Term& a, const Term& b, int depth) {
  const int types = a.types & b.types;
  if (types == 0) return true;
  if (a.values && b.values) {
    if (a.values->size() * b.values->size() > kApartValuesMax) return false;
    return std::none_of(a.values->begin(), a.values->end(), [&](const Json* v) {
      return std::any_of(b.values->begin(), b.values->end(),
                         [&](const Json* w) { return json_equal(*v, *w); });
    });
  }
  if (a.values || b.values) return false;
  if (types == kTypeString && a.texts.size() == 1 && b.texts.size() == 1)
    return !dfa_meet(*a.texts[0], *b.texts[0]);
  if (types != kTypeObject) return false;
  for (const Term* t : {&a, &b}) {
    for (const std::string& name : t->required) {
      TF_ASSIGN_OR_RETURN(Conj value, member(a, name));
      TF_ASSIGN_OR_RETURN(const Conj other, member(b, name));
      value.insert(value.end(), other.begin(), other.end());
      TF_ASSIGN_OR_RETURN(const bool empty, certainly_empty(value, depth - 1));
      if (empty) return true;
    }
  }
  return false;
}

Result<bool> TermBuilder::plainly_apart(const Conj& conj, int depth) {
  if (conj.size() != 2) return false;
  const Result<SharedTerms> a = shared(conj[0]), b = shared(conj[1]);
  if (!a.ok() || !b.ok()) return false;
  for (const Term& x : **a) {
    for (const Term& y : **b) {
      TF_ASSIGN_OR_RETURN(const bool apart, plainly_apart(x, y, depth));
      if (!apart) return false;
    }
  }
  return true;
}

Result<bool> TermBuilder::certainly_empty(const Conj& raw, int depth) {
  const Conj conj = normalize(raw);
  if (conj.size() == 1 && conj[0].schema->is_bool()) return true;  // normalized: only `false` stays
  if (conj.empty() || depth <= 0) return false;
  if (const auto it = empty_.find(conj); it != empty_.end()) return it->second;
  TF_ASSIGN_OR_RETURN(const bool apart, plainly_apart(conj, depth));
  if (apart) return empty_[conj] = true;
  const Result<Terms> terms = of(conj);
  if (!terms.ok()) return false;
  bool empty = true;
  for (const Term& t : *terms) {
    TF_ASSIGN_OR_RETURN(const bool none, term_empty(t, conj, depth));
    empty = empty && none;
    if (!empty) break;
  }
  if (empty || depth >= 3) empty_[conj] = empty;
  return empty;
}

}  // namespace tensorfold::grammar
