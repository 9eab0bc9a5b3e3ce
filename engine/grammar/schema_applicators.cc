// The keywords that combine schemas, as disjunctions of terms.
#include <algorithm>

#include "engine/grammar/schema_terms.h"

namespace tensorfold::grammar {
namespace {

constexpr int kEmptyDepth = 4;           // levels looked into when branches must be disjoint
constexpr size_t kAnnotateBranches = 4;  // branches of anyOf whose combinations are kept apart

// Terms of a negation evaluate nothing (unevaluatedProperties does not count them).
void silence(Terms& terms) {
  for (Term& t : terms) {
    for (auto& rule : t.objects) {
      auto copy = std::make_shared<ObjectRule>(*rule);
      copy->annotates = false;
      rule = copy;
    }
    for (auto& rule : t.arrays) {
      auto copy = std::make_shared<ArrayRule>(*rule);
      copy->annotates = false;
      rule = copy;
    }
  }
}

void append(Terms& into, Terms more) {
  for (Term& t : more) into.push_back(std::move(t));
}

Term object_with(const std::string& name) {
  Term t;
  t.types = kTypeObject;
  t.required.push_back(name);
  return t;
}

Term object_without(const std::string& name) {
  Term t;
  t.types = kTypeObject;
  auto rule = std::make_shared<ObjectRule>();
  rule->properties.emplace_back(name, SchemaRef{&SchemaDoc::never(), false});
  rule->annotates = false;
  t.objects.push_back(rule);
  return t;
}

Term of_types(int bits) {
  Term t;
  t.types = static_cast<uint8_t>(bits);
  return t;
}

constexpr int kNumberBits = kTypeWhole | kTypeFraction;

}  // namespace

Result<Terms> TermBuilder::positive(const Json& s) {
  Terms terms;
  if (const Json* ref = s.find("$ref"); ref != nullptr && ref->is_string()) {
    const auto target = doc_.resolve(s, ref->as_string());
    if (!target.ok()) return doc_.error(s, "$ref", target.status().message());
    if (doc_.ref_stands_alone()) return of(SchemaRef{*target, false});
    TF_ASSIGN_OR_RETURN(terms, of(SchemaRef{*target, false}));
  } else {
    terms.emplace_back();
  }
  Term own;
  TF_RETURN_IF_ERROR(plain(s, own));
  if (own.types == 0) return Terms();
  TF_ASSIGN_OR_RETURN(terms, cross(s, "$ref", {own}, terms));
  TF_RETURN_IF_ERROR(applicators(s, terms));
  TF_RETURN_IF_ERROR(conditions(s, terms));
  TF_RETURN_IF_ERROR(dependencies(s, terms));
  TF_RETURN_IF_ERROR(unevaluated(s, terms));
  return terms;
}

Status TermBuilder::applicators(const Json& s, Terms& terms) {
  for (const char* name : {"$dynamicRef", "$recursiveRef"}) {
    const Json* ref = s.find(name);
    if (ref == nullptr || !ref->is_string()) continue;
    const auto target = name[1] == 'd' ? doc_.dynamic_target(s, ref->as_string())
                                       : doc_.recursive_target(s, ref->as_string());
    if (!target.ok()) return doc_.error(s, name, target.status().message());
    TF_RETURN_IF_ERROR(cross_in(s, name, terms, {*target, false}));
  }
  if (const Json* list = s.find("allOf"); list != nullptr && list->is_array()) {
    for (const Json& x : list->as_array())
      TF_RETURN_IF_ERROR(cross_in(s, "allOf", terms, {&x, false}));
  }
  if (const Json* list = s.find("anyOf"); list != nullptr && list->is_array()) {
    TF_ASSIGN_OR_RETURN(const Terms any, any_of(s, *list));
    TF_ASSIGN_OR_RETURN(terms, cross(s, "anyOf", terms, any));
  }
  if (const Json* list = s.find("oneOf"); list != nullptr && list->is_array()) {
    TF_ASSIGN_OR_RETURN(const Terms one, one_of(s, *list));
    TF_ASSIGN_OR_RETURN(terms, cross(s, "oneOf", terms, one));
  }
  if (const Json* x = s.find("not")) TF_RETURN_IF_ERROR(cross_in(s, "not", terms, {x, true}));
  return ok_status();
}

Result<Terms> TermBuilder::any_of(const Json& s, const Json& list) {
  Terms out;
  const Json::Array& branches = list.as_array();
  const bool annotated =
      s.find("unevaluatedProperties") != nullptr || s.find("unevaluatedItems") != nullptr;
  if (!annotated) {
    for (const Json& x : branches) {
      TF_ASSIGN_OR_RETURN(Terms more, of(SchemaRef{&x, false}));
      append(out, std::move(more));
      if (out.size() > kTermsMax) return doc_.error(s, "anyOf", "too many combinations");
    }
    return out;
  }
  // Every set of branches that may hold together: each adds what it evaluates.
  if (branches.size() > kAnnotateBranches)
    return doc_.error(s, "anyOf", "too many branches beside unevaluated*");
  for (uint32_t set = 1; set < (1U << branches.size()); ++set) {
    Conj conj;
    for (size_t i = 0; i < branches.size(); ++i) {
      if ((set >> i) & 1U) conj.push_back({&branches[i], false});
    }
    TF_ASSIGN_OR_RETURN(Terms more, of(conj));
    append(out, std::move(more));
  }
  return out;
}

Result<Terms> TermBuilder::one_of(const Json& s, const Json& list) {
  Terms out;
  const Json::Array& branches = list.as_array();
  std::vector<std::vector<char>> apart;  // [i][j], as far as it was asked
  for (size_t i = 0; i < branches.size(); ++i) {
    TF_ASSIGN_OR_RETURN(Terms terms, of(SchemaRef{&branches[i], false}));
    apart.emplace_back();
    for (size_t j = 0; j < branches.size(); ++j) {
      apart[i].push_back(0);
      if (i == j || terms.empty()) continue;
      if (++work_ > kTermWorkMax) return doc_.error(s, "oneOf", "too many branches");
      bool disjoint = j < i && apart[j].size() > i && apart[j][i] != 0;
      if (!disjoint) {
        TF_ASSIGN_OR_RETURN(
            disjoint, certainly_empty({{&branches[i], false}, {&branches[j], false}}, kEmptyDepth));
      }
      apart[i][j] = disjoint ? 1 : 0;
      if (disjoint) continue;
      const Result<Terms> others = of(SchemaRef{&branches[j], true});
      if (!others.ok()) {
        return doc_.error(
            s, "oneOf",
            "branches " + std::to_string(i) + " and " + std::to_string(j) +
                " can both hold, and telling them apart needs: " + others.status().message());
      }
      TF_ASSIGN_OR_RETURN(terms, cross(s, "oneOf", terms, *others));
    }
    append(out, std::move(terms));
    if (out.size() > kTermsMax) return doc_.error(s, "oneOf", "too many combinations");
  }
  return out;
}

Status TermBuilder::conditions(const Json& s, Terms& terms) {
  const Json* condition = s.find("if");
  const Json* then = s.find("then");
  const Json* otherwise = s.find("else");
  if (condition == nullptr) return ok_status();
  if (then == nullptr && otherwise == nullptr && s.find("unevaluatedProperties") == nullptr &&
      s.find("unevaluatedItems") == nullptr)
    return ok_status();
  Terms yes = terms, no = terms;
  TF_RETURN_IF_ERROR(cross_in(s, "if", yes, {condition, false}));
  if (then != nullptr) TF_RETURN_IF_ERROR(cross_in(s, "then", yes, {then, false}));
  TF_RETURN_IF_ERROR(cross_in(s, "if", no, {condition, true}));
  if (otherwise != nullptr) TF_RETURN_IF_ERROR(cross_in(s, "else", no, {otherwise, false}));
  terms = std::move(yes);
  append(terms, std::move(no));
  return ok_status();
}

Status TermBuilder::dependencies(const Json& s, Terms& terms) {
  for (const char* keyword : {"dependencies", "dependentRequired", "dependentSchemas"}) {
    const Json* map = s.find(keyword);
    if (map == nullptr || !map->is_object()) continue;
    for (const auto& [name, need] : map->as_object()) {
      Terms either = {of_types(0xFF & ~kTypeObject), object_without(name)};
      Terms with = {object_with(name)};
      if (need.is_array()) {
        for (const Json& other : need.as_array()) {
          if (other.is_string()) (void)term_merge(with[0], object_with(other.as_string()));
        }
      } else if (need.is_string()) {
        (void)term_merge(with[0], object_with(need.as_string()));
      } else {
        TF_RETURN_IF_ERROR(cross_in(s, keyword, with, {&need, false}));
      }
      append(either, std::move(with));
      TF_ASSIGN_OR_RETURN(terms, cross(s, keyword, terms, either));
    }
  }
  return ok_status();
}

// What no keyword of this schema has evaluated: per term, the rest of the rules it is made of.
Status TermBuilder::unevaluated(const Json& s, Terms& terms) {
  if (const Json* u = s.find("unevaluatedProperties")) {
    for (Term& t : terms) {
      auto rest = std::make_shared<ObjectRule>();
      bool all = false;
      for (const auto& rule : t.objects) {
        if (!rule->annotates) continue;
        for (const auto& p : rule->properties)
          rest->properties.emplace_back(p.first, SchemaRef{&SchemaDoc::always(), false});
        for (const auto& p : rule->patterns)
          rest->patterns.emplace_back(p.first, SchemaRef{&SchemaDoc::always(), false});
        all = all || rule->additional.has_value();
      }
      if (all) continue;
      rest->additional = SchemaRef{u, false};
      t.objects.push_back(rest);
    }
  }
  const Json* u = s.find("unevaluatedItems");
  if (u == nullptr) return ok_status();
  for (Term& t : terms) {
    if (!t.contains.empty())
      return doc_.error(s, "unevaluatedItems", "beside contains cannot be enforced");
    auto rest = std::make_shared<ArrayRule>();
    bool all = false;
    for (const auto& rule : t.arrays) {
      if (!rule->annotates) continue;
      while (rest->prefix.size() < rule->prefix.size())
        rest->prefix.push_back({&SchemaDoc::always(), false});
      all = all || rule->rest.has_value();
    }
    if (all) continue;
    rest->rest = SchemaRef{u, false};
    t.arrays.push_back(rest);
  }
  return ok_status();
}

Status TermBuilder::cannot_negate(const Json& s, std::string_view keyword) const {
  return doc_.error(s, keyword, "its opposite (not, oneOf or if needs it) cannot be enforced");
}

Result<Terms> TermBuilder::negative(const Json& s) {
  Terms out;
  const Json* ref = s.find("$ref");
  if (ref != nullptr && ref->is_string()) {
    const auto target = doc_.resolve(s, ref->as_string());
    if (!target.ok()) return doc_.error(s, "$ref", target.status().message());
    TF_ASSIGN_OR_RETURN(out, of(SchemaRef{*target, true}));
    if (doc_.ref_stands_alone()) return out;
  }
  for (const auto& [key, arg] : s.as_object()) {
    TF_RETURN_IF_ERROR(negative_keyword(s, key, arg, out));
    if (out.size() > kTermsMax) return doc_.error(s, key, "too many combinations");
  }
  silence(out);
  return out;
}

Status TermBuilder::negative_keyword(const Json& s, const std::string& key, const Json& arg,
                                     Terms& out) {
  if (key == "type") {
    Term own;
    Json::Object only = {{"type", arg}};
    const Json schema = Json::object(std::move(only));
    TF_RETURN_IF_ERROR(plain(schema, own));
    if (own.types != 0xFF) out.push_back(of_types(0xFF & ~own.types));
  } else if (key == "const" || key == "enum") {
    Term t;
    if (key == "const") {
      t.excluded.push_back(&arg);
    } else if (arg.is_array()) {
      for (const Json& v : arg.as_array()) t.excluded.push_back(&v);
    }
    out.push_back(std::move(t));
  } else if (key == "allOf" || key == "anyOf" || key == "oneOf") {
    if (!arg.is_array()) return cannot_negate(s, key);
    Terms none(1);
    for (const Json& x : arg.as_array()) {
      if (key != "allOf") {
        TF_RETURN_IF_ERROR(cross_in(s, key, none, {&x, true}));
        continue;
      }
      TF_ASSIGN_OR_RETURN(Terms more, of(SchemaRef{&x, true}));
      append(out, std::move(more));
    }
    if (key == "allOf") return ok_status();
    append(out, std::move(none));
    for (size_t i = 0; key == "oneOf" && i < arg.as_array().size(); ++i) {
      for (size_t j = 0; j < i; ++j) {
        TF_ASSIGN_OR_RETURN(Terms two,
                            of(Conj{{&arg.as_array()[i], false}, {&arg.as_array()[j], false}}));
        append(out, std::move(two));
        if (out.size() > kTermsMax) return doc_.error(s, key, "too many combinations");
      }
    }
  } else if (key == "not") {
    TF_ASSIGN_OR_RETURN(Terms more, of(SchemaRef{&arg, false}));
    append(out, std::move(more));
  } else if (key == "if") {
    for (const bool holds : {true, false}) {
      const Json* branch = s.find(holds ? "then" : "else");
      if (branch == nullptr) continue;
      TF_ASSIGN_OR_RETURN(Terms both, of(Conj{{&arg, !holds}, {branch, true}}));
      append(out, std::move(both));
    }
  } else {
    return negative_value(s, key, arg, out);
  }
  return ok_status();
}

Status TermBuilder::negative_value(const Json& s, const std::string& key, const Json& arg,
                                   Terms& out) {
  if (key == "minimum" || key == "maximum" || key == "exclusiveMinimum" ||
      key == "exclusiveMaximum") {
    if (arg.is_bool()) return ok_status();  // part of minimum or maximum
    const bool low = key == "minimum" || key == "exclusiveMinimum";
    const Json* flag = s.find(low ? "exclusiveMinimum" : "exclusiveMaximum");
    const bool open = key[0] == 'e' || (flag != nullptr && flag->is_bool() && flag->as_bool());
    const auto d = arg.is_number() ? decimal_of(arg) : std::nullopt;
    if (!d) return cannot_negate(s, key);
    Term t = of_types(kNumberBits);
    (low ? t.numbers.high : t.numbers.low) = *d;
    (low ? t.numbers.high_open : t.numbers.low_open) = !open;
    out.push_back(std::move(t));
  } else if (key == "pattern") {
    if (!arg.is_string()) return cannot_negate(s, key);
    const auto dfa = doc_.pattern(arg.as_string());
    if (!dfa.ok()) return doc_.error(s, key, dfa.status().message());
    TF_ASSIGN_OR_RETURN(const DfaPtr other, dfa_subtract(*dfa_universal(), **dfa));
    Term t = of_types(kTypeString);
    t.texts.push_back(other);
    out.push_back(std::move(t));
  } else if (key == "format") {
    if (arg.is_string() && !format_rule(arg.as_string()).dfa &&
        !format_rule(arg.as_string()).refused && arg.as_string() != "int32" &&
        arg.as_string() != "int64")
      return ok_status();
    return cannot_negate(s, key);
  } else if (key == "multipleOf" || key.rfind("unevaluated", 0) == 0 || key == "$dynamicRef" ||
             key == "$recursiveRef") {
    return cannot_negate(s, key);
  } else {
    TF_RETURN_IF_ERROR(negative_array(s, key, arg, out));
    return negative_member(s, key, arg, out);
  }
  return ok_status();
}

Status TermBuilder::negative_array(const Json& s, const std::string& key, const Json& arg,
                                   Terms& out) {
  Term t = of_types(kTypeArray);
  auto rule = std::make_shared<ArrayRule>();
  if (key == "uniqueItems") {
    return arg.is_bool() && !arg.as_bool() ? ok_status() : cannot_negate(s, key);
  }
  const bool tuple = (key == "items" || key == "prefixItems") && arg.is_array();
  if (tuple) {
    for (size_t i = 0; i < arg.as_array().size(); ++i) {
      Term one = t;
      auto at = std::make_shared<ArrayRule>();
      at->prefix.assign(i, {&SchemaDoc::always(), false});
      at->prefix.push_back({&arg.as_array()[i], true});
      one.arrays.push_back(at);
      one.min_items = i + 1;
      out.push_back(std::move(one));
    }
    return ok_status();
  }
  if (key == "items" || key == "additionalItems") {
    const Json* items = s.find("items");
    const bool applies = key == "items" || (items != nullptr && items->is_array());
    if (!applies || (arg.is_bool() && arg.as_bool())) return ok_status();
    if (key == "additionalItems" || s.find("prefixItems") != nullptr) return cannot_negate(s, key);
    t.contains.push_back({{&arg, true}});
    out.push_back(std::move(t));
  } else if (key == "contains") {
    if (s.find("minContains") != nullptr || s.find("maxContains") != nullptr)
      return cannot_negate(s, key);
    rule->rest = SchemaRef{&arg, true};
    t.arrays.push_back(rule);
    out.push_back(std::move(t));
  } else if (key == "minItems" && arg.is_number()) {
    if (arg.as_double() <= 0) return ok_status();
    t.max_items = static_cast<uint64_t>(arg.as_double()) - 1;
    out.push_back(std::move(t));
  } else if (key == "maxItems" && arg.is_number()) {
    t.min_items = static_cast<uint64_t>(arg.as_double()) + 1;
    out.push_back(std::move(t));
  }
  return ok_status();
}

Status TermBuilder::negative_member(const Json& s, const std::string& key, const Json& arg,
                                    Terms& out) {
  if (key == "required" && arg.is_array()) {
    for (const Json& name : arg.as_array()) {
      if (name.is_string()) out.push_back(object_without(name.as_string()));
    }
  } else if (key == "properties" && arg.is_object()) {
    for (const auto& [name, child] : arg.as_object()) {
      const Conj plain = normalize({{&child, true}});
      if (plain.size() == 1 && plain[0].schema->is_bool()) continue;  // cannot be violated
      Term t = object_with(name);
      auto rule = std::make_shared<ObjectRule>();
      rule->properties.emplace_back(name, SchemaRef{&child, true});
      t.objects.push_back(rule);
      out.push_back(std::move(t));
    }
  } else if (key == "additionalProperties" || key == "propertyNames") {
    const Conj plain = normalize({{&arg, true}});
    if (plain.size() == 1 && plain[0].schema->is_bool()) return ok_status();
    return cannot_negate(s, key);
  } else if (key == "patternProperties") {
    if (arg.is_object() && arg.as_object().empty()) return ok_status();
    return cannot_negate(s, key);
  } else if (key == "minProperties" || key == "maxProperties" || key == "minLength" ||
             key == "maxLength") {
    if (!arg.is_number()) return cannot_negate(s, key);
    const bool text = key.size() == 9;
    const bool min = key[1] == 'i';
    if (min && arg.as_double() <= 0) return ok_status();
    const auto n = static_cast<uint64_t>(arg.as_double());
    Term t = of_types(text ? kTypeString : kTypeObject);
    if (text) {
      min ? t.max_length = n - 1 : t.min_length = n + 1;
    } else {
      min ? t.max_properties = n - 1 : t.min_properties = n + 1;
    }
    out.push_back(std::move(t));
  } else if (key == "dependencies" || key == "dependentRequired" || key == "dependentSchemas") {
    if (!arg.is_object()) return cannot_negate(s, key);
    for (const auto& [name, need] : arg.as_object()) {
      if (!need.is_array()) {
        Terms with = {object_with(name)};
        TF_RETURN_IF_ERROR(cross_in(s, key, with, {&need, true}));
        append(out, std::move(with));
        continue;
      }
      for (const Json& other : need.as_array()) {
        Term t = object_with(name);
        if (other.is_string() && term_merge(t, object_without(other.as_string())))
          out.push_back(std::move(t));
      }
    }
  }
  return ok_status();
}

}  // namespace tensorfold::grammar
