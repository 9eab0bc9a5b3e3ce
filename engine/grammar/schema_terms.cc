// Merging of terms, and the keywords that speak about one value directly.
#include "engine/grammar/schema_terms.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <set>
#include <sstream>

namespace tensorfold::grammar {
namespace {

constexpr const char* kKnownKeywords =
    "type enum const minimum maximum multipleOf minLength maxLength pattern format items "
    "prefixItems minItems maxItems uniqueItems contains minContains maxContains "
    "properties required not allOf anyOf oneOf if then else dependencies propertyNames "
    "additionalItems $ref $defs definitions $id id $anchor $schema title description "
    "default examples $comment readOnly writeOnly deprecated $vocabulary exclusiveMinimum "
    "exclusiveMaximum minProperties maxProperties patternProperties additionalProperties "
    "dependentRequired dependentSchemas unevaluatedItems unevaluatedProperties "
    "$dynamicRef $dynamicAnchor $recursiveRef $recursiveAnchor contentEncoding "
    "contentMediaType contentSchema ";

const std::set<std::string, std::less<>>& known_keywords() {
  static const std::set<std::string, std::less<>> kKnown = [] {
    std::istringstream words(kKnownKeywords);
    return std::set<std::string, std::less<>>(std::istream_iterator<std::string>(words), {});
  }();
  return kKnown;
}

std::optional<uint8_t> type_bits(const std::string& name) {
  if (name == "null") return kTypeNull;
  if (name == "boolean") return kTypeTrue | kTypeFalse;
  if (name == "integer") return kTypeWhole;
  if (name == "number") return kTypeWhole | kTypeFraction;
  if (name == "string") return kTypeString;
  if (name == "array") return kTypeArray;
  if (name == "object") return kTypeObject;
  return std::nullopt;
}

// A non-negative whole number, also as 2.0.
std::optional<uint64_t> count_of(const Json& v) {
  if (!v.is_number()) return std::nullopt;
  const double d = v.as_double();
  if (!(d >= 0) || d != std::floor(d)) return std::nullopt;
  return d > 1e15 ? uint64_t{1'000'000'000'000'000} : static_cast<uint64_t>(d);
}

void narrow_low(NumberSet& n, const Decimal& low, bool open) {
  const int c = n.low ? compare(low, *n.low) : 1;
  if (c < 0) return;
  n.low_open = c == 0 ? n.low_open || open : open;
  n.low = low;
}

void narrow_high(NumberSet& n, const Decimal& high, bool open) {
  const int c = n.high ? compare(*n.high, high) : 1;
  if (c < 0) return;
  n.high_open = c == 0 ? n.high_open || open : open;
  n.high = high;
}

template <typename T>
void append(std::vector<T>& into, const std::vector<T>& more) {
  into.insert(into.end(), more.begin(), more.end());
}

}  // namespace

bool term_merge(Term& a, const Term& b) {
  a.types &= b.types;
  if (a.types == 0) return false;
  if (b.values) {
    if (!a.values) {
      a.values = b.values;
    } else {
      std::vector<const Json*> both;
      for (const Json* v : *a.values) {
        if (std::any_of(b.values->begin(), b.values->end(),
                        [&](const Json* w) { return json_equal(*v, *w); }))
          both.push_back(v);
      }
      a.values = std::move(both);
    }
    if (a.values->empty()) return false;
  }
  append(a.excluded, b.excluded);
  if (b.numbers.low) narrow_low(a.numbers, *b.numbers.low, b.numbers.low_open);
  if (b.numbers.high) narrow_high(a.numbers, *b.numbers.high, b.numbers.high_open);
  append(a.numbers.multiples, b.numbers.multiples);
  a.min_length = std::max(a.min_length, b.min_length);
  a.max_length = std::min(a.max_length, b.max_length);
  for (const DfaPtr& t : b.texts) {
    if (std::find(a.texts.begin(), a.texts.end(), t) == a.texts.end()) a.texts.push_back(t);
  }
  for (const auto& o : b.objects) {
    if (std::find(a.objects.begin(), a.objects.end(), o) == a.objects.end()) a.objects.push_back(o);
  }
  for (const auto& r : b.required) {
    if (std::find(a.required.begin(), a.required.end(), r) == a.required.end())
      a.required.push_back(r);
  }
  a.min_properties = std::max(a.min_properties, b.min_properties);
  a.max_properties = std::min(a.max_properties, b.max_properties);
  for (const auto& r : b.arrays) {
    if (std::find(a.arrays.begin(), a.arrays.end(), r) == a.arrays.end()) a.arrays.push_back(r);
  }
  append(a.contains, b.contains);
  a.min_items = std::max(a.min_items, b.min_items);
  a.max_items = std::min(a.max_items, b.max_items);
  a.unique = a.unique || b.unique;
  return true;
}

Status TermBuilder::plain(const Json& s, Term& term) {
  for (const auto& [key, arg] : s.as_object()) {
    if (known_keywords().count(key) == 0 && key.rfind("x-", 0) != 0)
      ignored_.push_back("unknown keyword \"" + key + "\"");
    if (key == "type") {
      uint8_t bits = 0;
      Json::Array one(1, arg);
      for (const Json& t : arg.is_array() ? arg.as_array() : one) {
        const auto b = t.is_string() ? type_bits(t.as_string()) : std::nullopt;
        if (!b) return doc_.error(s, "type", "not the name of a type");
        bits = static_cast<uint8_t>(bits | *b);
      }
      term.types &= bits;
    } else if (key == "const" || key == "enum") {
      Term with;
      with.values.emplace();
      if (key == "const") {
        with.values->push_back(&arg);
      } else {
        if (!arg.is_array()) return doc_.error(s, "enum", "a list expected");
        if (arg.as_array().size() > kEnumValuesMax) {
          return doc_.error(s, "enum", "more than " + std::to_string(kEnumValuesMax) + " values");
        }
        for (const Json& v : arg.as_array()) with.values->push_back(&v);
      }
      if (!term_merge(term, with)) term.types = 0;
    }
  }
  TF_RETURN_IF_ERROR(plain_number(s, term));
  TF_RETURN_IF_ERROR(plain_text(s, term));
  TF_RETURN_IF_ERROR(plain_array(s, term));
  return plain_object(s, term);
}

Status TermBuilder::plain_number(const Json& s, Term& term) {
  for (const bool low : {true, false}) {
    const Json* bound = s.find(low ? "minimum" : "maximum");
    const Json* open = s.find(low ? "exclusiveMinimum" : "exclusiveMaximum");
    for (const Json* b : {bound, open}) {
      if (b == nullptr || (b == open && b->is_bool())) continue;
      const std::string name = b == bound ? (low ? "minimum" : "maximum")
                                          : (low ? "exclusiveMinimum" : "exclusiveMaximum");
      if (!b->is_number()) return doc_.error(s, name, "a number expected");
      const auto d = decimal_of(*b);
      if (!d) return doc_.error(s, name, "too many digits to be enforced");
      const bool strict = b == open || (open != nullptr && open->is_bool() && open->as_bool());
      low ? narrow_low(term.numbers, *d, strict) : narrow_high(term.numbers, *d, strict);
    }
  }
  if (const Json* m = s.find("multipleOf")) {
    const auto d = m->is_number() ? decimal_of(*m) : std::nullopt;
    if (!d || d->zero() || d->negative)
      return doc_.error(s, "multipleOf", "a number above 0 expected");
    term.numbers.multiples.push_back(*d);
  }
  if (const Json* f = s.find("format"); f != nullptr && f->is_string()) {
    const bool wide = f->as_string() == "int64";
    if (f->as_string() != "int32" && !wide) return ok_status();
    if ((term.types & kTypeFraction) != 0) return ok_status();
    narrow_low(term.numbers, *parse_decimal(wide ? "-9223372036854775808" : "-2147483648"), false);
    narrow_high(term.numbers, *parse_decimal(wide ? "9223372036854775807" : "2147483647"), false);
  }
  return ok_status();
}

Status TermBuilder::plain_text(const Json& s, Term& term) {
  for (const bool min : {true, false}) {
    const std::string name = min ? "minLength" : "maxLength";
    const Json* v = s.find(name);
    if (v == nullptr) continue;
    const auto n = count_of(*v);
    if (!n) return doc_.error(s, name, "a whole number expected");
    min ? term.min_length = *n : term.max_length = *n;
  }
  if (const Json* p = s.find("pattern")) {
    if (!p->is_string()) return doc_.error(s, "pattern", "text expected");
    const auto dfa = doc_.pattern(p->as_string());
    if (!dfa.ok()) return doc_.error(s, "pattern", dfa.status().message());
    term.texts.push_back(*dfa);
  }
  const Json* f = s.find("format");
  if (f == nullptr || !f->is_string()) return ok_status();
  if ((term.types & kTypeString) == 0) return ok_status();
  const FormatRule rule = format_rule(f->as_string());
  if (rule.refused) {
    return doc_.error(s, "format", "\"" + f->as_string() + "\" cannot be enforced");
  }
  if (rule.dfa) {
    term.texts.push_back(rule.dfa);
    term.max_length = std::min<uint64_t>(
        term.max_length, rule.max_chars == UINT32_MAX ? UINT64_MAX : rule.max_chars);
  } else {
    ignored_.push_back("format \"" + f->as_string() + "\"");
  }
  return ok_status();
}

Status TermBuilder::plain_array(const Json& s, Term& term) {
  for (const bool min : {true, false}) {
    const std::string name = min ? "minItems" : "maxItems";
    const Json* v = s.find(name);
    if (v == nullptr) continue;
    const auto n = count_of(*v);
    if (!n) return doc_.error(s, name, "a whole number expected");
    min ? term.min_items = *n : term.max_items = *n;
  }
  if (const Json* u = s.find("uniqueItems"); u != nullptr && u->is_bool())
    term.unique = u->as_bool();
  auto rule = std::make_shared<ArrayRule>();
  const Json* items = s.find("items");
  const Json* prefix = s.find("prefixItems");
  const Json* rest = items;
  if (items != nullptr && items->is_array()) {
    prefix = items;
    rest = s.find("additionalItems");
  }
  if (prefix != nullptr) {
    if (!prefix->is_array()) return doc_.error(s, "prefixItems", "a list expected");
    for (const Json& p : prefix->as_array()) rule->prefix.push_back({&p, false});
  }
  if (rest != nullptr) rule->rest = SchemaRef{rest, false};
  if (prefix != nullptr || rest != nullptr) term.arrays.push_back(rule);
  const Json* contains = s.find("contains");
  if (contains == nullptr) return ok_status();
  ContainsRule c{{contains, false}};
  const Json* least = s.find("minContains");
  const Json* most = s.find("maxContains");
  if (least != nullptr)
    c.min = static_cast<uint32_t>(std::min<uint64_t>(count_of(*least).value_or(1), UINT32_MAX));
  if (most != nullptr)
    c.max =
        static_cast<uint32_t>(std::min<uint64_t>(count_of(*most).value_or(UINT32_MAX), UINT32_MAX));
  term.contains.push_back(c);
  return ok_status();
}

Status TermBuilder::plain_object(const Json& s, Term& term) {
  for (const bool min : {true, false}) {
    const std::string name = min ? "minProperties" : "maxProperties";
    const Json* v = s.find(name);
    if (v == nullptr) continue;
    const auto n = count_of(*v);
    if (!n) return doc_.error(s, name, "a whole number expected");
    min ? term.min_properties = *n : term.max_properties = *n;
  }
  if (const Json* r = s.find("required"); r != nullptr && r->is_array()) {
    for (const Json& name : r->as_array()) {
      if (!name.is_string()) return doc_.error(s, "required", "names expected");
      if (std::find(term.required.begin(), term.required.end(), name.as_string()) ==
          term.required.end())
        term.required.push_back(name.as_string());
    }
  }
  auto rule = std::make_shared<ObjectRule>();
  bool any = false;
  if (const Json* p = s.find("properties")) {
    if (!p->is_object()) return doc_.error(s, "properties", "an object expected");
    for (const auto& [name, child] : p->as_object())
      rule->properties.emplace_back(name, SchemaRef{&child, false});
    any = true;
  }
  if (const Json* p = s.find("patternProperties")) {
    if (!p->is_object()) return doc_.error(s, "patternProperties", "an object expected");
    for (const auto& [source, child] : p->as_object()) {
      const auto dfa = doc_.names(source);
      if (!dfa.ok()) return doc_.error(s, "patternProperties", dfa.status().message());
      rule->patterns.emplace_back(source, SchemaRef{&child, false});
    }
    any = true;
  }
  if (const Json* a = s.find("additionalProperties")) {
    rule->additional = SchemaRef{a, false};
    any = true;
  }
  if (const Json* n = s.find("propertyNames")) {
    rule->names = SchemaRef{n, false};
    any = true;
  }
  if (any) term.objects.push_back(rule);
  return ok_status();
}

// What a schema is without lone references, and the first one that says the same.
const Json& TermBuilder::plain_of(const Json& schema) const {
  const auto [it, fresh] = plain_.try_emplace(&schema, nullptr);
  if (!fresh) return *it->second;
  const Json* at = &schema;
  for (int hops = 0; hops < 64 && at->is_object(); ++hops) {
    const Json* target = at->find("$ref");
    if (target == nullptr || !target->is_string()) break;
    if (at->as_object().size() != 1 && !doc_.ref_stands_alone()) break;
    const auto to = doc_.resolve(*at, target->as_string());
    if (!to.ok()) break;
    at = *to;
  }
  return *(it->second = &doc_.first_alike(*at));
}

Conj TermBuilder::normalize(Conj conj) const {
  Conj out;
  for (SchemaRef ref : conj) {
    ref.schema = &plain_of(*ref.schema);
    bool always = ref.schema->is_object() && ref.schema->as_object().empty();
    if (ref.schema->is_bool()) always = ref.schema->as_bool();
    const bool never = ref.schema->is_bool() && !ref.schema->as_bool();
    if (always || never) {
      if (always != ref.negated) continue;
      return {{&SchemaDoc::never(), false}};
    }
    out.push_back(ref);
  }
  std::sort(out.begin(), out.end());
  out.erase(std::unique(out.begin(), out.end()), out.end());
  return out;
}

Result<Conj> TermBuilder::member(const Term& term, const std::string& name) const {
  Conj out;
  for (const auto& rule : term.objects) {
    bool named = false;
    for (const auto& [key, ref] : rule->properties) {
      if (key != name) continue;
      named = true;
      out.push_back(ref);
    }
    for (const auto& [source, ref] : rule->patterns) {
      TF_ASSIGN_OR_RETURN(const CharDfaPtr dfa, doc_.names(source));
      if (chars_run(*dfa, name) == 0) continue;
      named = true;
      out.push_back(ref);
    }
    if (!named && rule->additional) out.push_back(*rule->additional);
  }
  return normalize(std::move(out));
}

Conj TermBuilder::item(const Term& term, size_t position) const {
  Conj out;
  for (const auto& rule : term.arrays) {
    if (position < rule->prefix.size()) {
      out.push_back(rule->prefix[position]);
    } else if (rule->rest) {
      out.push_back(*rule->rest);
    }
  }
  return normalize(std::move(out));
}

Result<Terms> TermBuilder::cross(const Json& s, std::string_view keyword, const Terms& a,
                                 const Terms& b) {
  Terms out;
  for (const Term& x : a) {
    for (const Term& y : b) {
      if (++work_ > kTermWorkMax) return doc_.error(s, keyword, "too many combinations");
      Term both = x;
      if (term_merge(both, y)) out.push_back(std::move(both));
      if (out.size() > kTermsMax) return doc_.error(s, keyword, "too many combinations");
    }
  }
  return out;
}

Status TermBuilder::cross_in(const Json& s, std::string_view keyword, Terms& into,
                             const SchemaRef& ref) {
  TF_ASSIGN_OR_RETURN(const SharedTerms more, shared(ref));
  TF_ASSIGN_OR_RETURN(into, cross(s, keyword, into, *more));
  return ok_status();
}

Result<Terms> TermBuilder::of(const Conj& conj) {
  if (conj.size() == 1) return of(conj[0]);
  Terms out(1);
  for (size_t i = 0; i < conj.size(); ++i) {
    if (i == 0) {
      TF_ASSIGN_OR_RETURN(out, of(conj[0]));
    } else {
      TF_RETURN_IF_ERROR(cross_in(*conj[i].schema, "allOf", out, conj[i]));
    }
  }
  return out;
}

Result<Terms> TermBuilder::of(const SchemaRef& ref) {
  TF_ASSIGN_OR_RETURN(const SharedTerms terms, shared(ref));
  return *terms;
}

Result<TermBuilder::SharedTerms> TermBuilder::shared(const SchemaRef& any) {
  const SchemaRef ref{&doc_.first_alike(*any.schema), any.negated};
  if (const auto it = known_.find(ref); it != known_.end()) return it->second;
  const Json& s = *ref.schema;
  if (s.is_bool())
    return std::make_shared<const Terms>(s.as_bool() != ref.negated ? Terms(1) : Terms());
  if (!s.is_object()) return doc_.error(s, "schema", "an object or a boolean expected");
  if (open_[ref] > 0 || depth_ > kJsonDepthMax) {
    return doc_.error(s, "$ref", "leads back to itself without a member or item between");
  }
  ++open_[ref];
  ++depth_;
  Result<Terms> terms = ref.negated ? negative(s) : positive(s);
  --depth_;
  --open_[ref];
  if (!terms.ok()) return terms.status();
  return known_[ref] = std::make_shared<const Terms>(std::move(*terms));
}

}  // namespace tensorfold::grammar
