// Whether a value satisfies a schema: used to choose among the values of enum and const, so that
// they agree with every other keyword. Says kUnknown rather than guess.
#include <algorithm>
#include <functional>

#include "engine/base/utf8.h"
#include "engine/grammar/decimal.h"
#include "engine/grammar/schema_doc.h"

namespace tensorfold::grammar {
namespace {

constexpr int kCheckDepthMax = 64;

Verdict both(Verdict a, Verdict b) {
  if (a == Verdict::kNo || b == Verdict::kNo) return Verdict::kNo;
  return a == Verdict::kUnknown || b == Verdict::kUnknown ? Verdict::kUnknown : Verdict::kYes;
}
Verdict of(bool yes) { return yes ? Verdict::kYes : Verdict::kNo; }
Verdict inverse(Verdict v) { return v == Verdict::kUnknown ? v : of(v == Verdict::kNo); }

bool has_type(const Json& v, std::string_view type) {
  if (type == "null") return v.is_null();
  if (type == "boolean") return v.is_bool();
  if (type == "string") return v.is_string();
  if (type == "array") return v.is_array();
  if (type == "object") return v.is_object();
  if (type == "number") return v.is_number();
  if (type == "integer") {
    if (v.is_int()) return true;
    if (!v.is_number()) return false;
    const auto d = decimal_of(v);
    return d && d->integral();
  }
  return false;
}

uint64_t characters(const std::string& text) {
  uint64_t n = 0;
  for (const char c : text) n += (static_cast<uint8_t>(c) & 0xC0U) != 0x80U ? 1U : 0U;
  return n;
}

class Checker {
 public:
  Checker(const SchemaDoc& doc, int depth) : doc_(doc), depth_(depth) {}

  Verdict check(const Json& s, const Json& v) const {
    if (s.is_bool()) return of(s.as_bool());
    if (!s.is_object()) return Verdict::kUnknown;
    if (depth_ > kCheckDepthMax) return Verdict::kUnknown;
    Verdict out = Verdict::kYes;
    if (const Json* ref = s.find("$ref"); ref != nullptr && ref->is_string()) {
      const auto target = doc_.resolve(s, ref->as_string());
      if (!target.ok()) return Verdict::kUnknown;
      out = sub(**target, v);
      if (doc_.ref_stands_alone()) return out;
    }
    for (const auto& [key, arg] : s.as_object()) {
      if (out == Verdict::kNo) return out;
      out = both(out, keyword(s, key, arg, v));
    }
    return out;
  }

 private:
  Verdict sub(const Json& s, const Json& v) const { return check_value(doc_, s, v, depth_ + 1); }

  Verdict keyword(const Json& s, const std::string& key, const Json& arg, const Json& v) const {
    if (key == "type") {
      if (arg.is_string()) return of(has_type(v, arg.as_string()));
      if (!arg.is_array()) return Verdict::kUnknown;
      for (const Json& t : arg.as_array()) {
        if (t.is_string() && has_type(v, t.as_string())) return Verdict::kYes;
      }
      return Verdict::kNo;
    }
    if (key == "const") return of(json_equal(arg, v));
    if (key == "enum" && arg.is_array()) {
      const auto& list = arg.as_array();
      const std::less<> before;  // the value may be one of the list's own
      if (!before(&v, list.data()) && before(&v, list.data() + list.size())) return Verdict::kYes;
      return of(
          std::any_of(list.begin(), list.end(), [&](const Json& x) { return json_equal(x, v); }));
    }
    if (key == "allOf" || key == "anyOf" || key == "oneOf") return combined(key, arg, v);
    if (key == "not") return inverse(sub(arg, v));
    if (key == "if") {
      const Json* branch = nullptr;
      const Verdict c = sub(arg, v);
      if (c == Verdict::kUnknown) return c;
      branch = s.find(c == Verdict::kYes ? "then" : "else");
      return branch == nullptr ? Verdict::kYes : sub(*branch, v);
    }
    if (key.rfind("unevaluated", 0) == 0 || key == "$dynamicRef" || key == "$recursiveRef")
      return Verdict::kUnknown;
    if (v.is_number()) return number(s, key, arg, v);
    if (v.is_string()) return text(key, arg, v);
    if (v.is_array()) return array(s, key, arg, v);
    if (v.is_object()) return object(s, key, arg, v);
    return Verdict::kYes;
  }

  Verdict combined(const std::string& key, const Json& arg, const Json& v) const {
    if (!arg.is_array()) return Verdict::kUnknown;
    int yes = 0, unknown = 0, no = 0;
    for (const Json& s : arg.as_array()) {
      const Verdict r = sub(s, v);
      ++(r == Verdict::kYes ? yes : r == Verdict::kNo ? no : unknown);
    }
    if (key == "allOf")
      return no > 0 ? Verdict::kNo : unknown > 0 ? Verdict::kUnknown : Verdict::kYes;
    if (key == "anyOf")
      return yes > 0 ? Verdict::kYes : unknown > 0 ? Verdict::kUnknown : Verdict::kNo;
    if (yes > 1) return Verdict::kNo;
    return unknown > 0 ? Verdict::kUnknown : of(yes == 1);
  }

  Verdict number(const Json& s, const std::string& key, const Json& arg, const Json& v) const {
    const bool low = key == "minimum" || key == "exclusiveMinimum";
    const bool high = key == "maximum" || key == "exclusiveMaximum";
    if ((!low && !high && key != "multipleOf") || !arg.is_number()) return Verdict::kYes;
    const auto a = decimal_of(v), b = decimal_of(arg);
    if (!a || !b) return Verdict::kUnknown;
    if (key == "multipleOf") {
      const auto r = is_multiple(*a, *b);
      return r ? of(*r) : Verdict::kUnknown;
    }
    const int c = low ? compare(*a, *b) : compare(*b, *a);
    const Json* open = s.find(low ? "exclusiveMinimum" : "exclusiveMaximum");
    const bool strict = key[0] == 'e' || (open != nullptr && open->is_bool() && open->as_bool());
    return of(strict ? c > 0 : c >= 0);
  }

  Verdict text(const std::string& key, const Json& arg, const Json& v) const {
    if (key == "pattern" && arg.is_string()) {
      const auto dfa = doc_.names(arg.as_string());
      return dfa.ok() ? of(chars_run(**dfa, v.as_string()) != 0) : Verdict::kUnknown;
    }
    if (key == "format" && arg.is_string()) {
      const FormatRule rule = format_rule(arg.as_string());
      if (rule.refused) return Verdict::kUnknown;
      if (!rule.dfa) return Verdict::kYes;
      return of(dfa_run(*rule.dfa, v.as_string()) != 0 &&
                characters(v.as_string()) <= rule.max_chars);
    }
    return count(key, arg, "minLength", "maxLength", characters(v.as_string()));
  }

  static Verdict count(const std::string& key, const Json& arg, std::string_view min,
                       std::string_view max, uint64_t n) {
    if ((key != min && key != max) || !arg.is_number()) return Verdict::kYes;
    const double limit = arg.as_double();
    return of(key == min ? static_cast<double>(n) >= limit : static_cast<double>(n) <= limit);
  }

  Verdict array(const Json& s, const std::string& key, const Json& arg, const Json& v) const {
    const Json::Array& items = v.as_array();
    const Json* prefix = s.find("prefixItems");
    if (const Json* i = s.find("items"); i != nullptr && i->is_array()) prefix = i;
    const size_t fixed = prefix != nullptr && prefix->is_array() ? prefix->as_array().size() : 0;
    Verdict out = Verdict::kYes;
    if ((key == "prefixItems" || key == "items") && arg.is_array()) {
      for (size_t i = 0; i < std::min(fixed, items.size()); ++i)
        out = both(out, sub(arg.as_array()[i], items[i]));
      return out;
    }
    if (key == "items" || (key == "additionalItems" && fixed > 0)) {
      for (size_t i = fixed; i < items.size(); ++i) out = both(out, sub(arg, items[i]));
      return out;
    }
    if (key == "uniqueItems" && arg.is_bool() && arg.as_bool()) {
      for (size_t i = 0; i < items.size(); ++i) {
        for (size_t j = 0; j < i; ++j) {
          if (json_equal(items[i], items[j])) return Verdict::kNo;
        }
      }
    }
    if (key == "contains") return Verdict::kUnknown;
    return count(key, arg, "minItems", "maxItems", items.size());
  }

  Verdict object(const Json& s, const std::string& key, const Json& arg, const Json& v) const {
    const Json::Object& members = v.as_object();
    Verdict out = Verdict::kYes;
    if (key == "required" && arg.is_array()) {
      for (const Json& name : arg.as_array()) {
        if (name.is_string() && v.find(name.as_string()) == nullptr) return Verdict::kNo;
      }
      return out;
    }
    if (key == "properties" && arg.is_object()) {
      for (const auto& [name, child] : arg.as_object()) {
        if (const Json* m = v.find(name)) out = both(out, sub(child, *m));
      }
      return out;
    }
    if (key == "patternProperties" || key == "additionalProperties") {
      for (const auto& [name, value] : members) out = both(out, matched(s, key, arg, name, value));
      return out;
    }
    if (key == "propertyNames") {
      for (const auto& member : members) out = both(out, sub(arg, Json::string(member.first)));
      return out;
    }
    if (key == "dependencies" || key.rfind("dependent", 0) == 0) return Verdict::kUnknown;
    return count(key, arg, "minProperties", "maxProperties", members.size());
  }

  Verdict matched(const Json& s, const std::string& key, const Json& arg, const std::string& name,
                  const Json& value) const {
    Verdict out = Verdict::kYes;
    const Json* properties = s.find("properties");
    bool taken = properties != nullptr && properties->find(name) != nullptr;
    const Json* patterns = s.find("patternProperties");
    if (patterns != nullptr && patterns->is_object()) {
      for (const auto& [source, child] : patterns->as_object()) {
        const auto dfa = doc_.names(source);
        if (!dfa.ok()) return Verdict::kUnknown;
        if (chars_run(**dfa, name) == 0) continue;
        taken = true;
        if (key == "patternProperties") out = both(out, sub(child, value));
      }
    }
    if (key == "additionalProperties" && !taken) out = sub(arg, value);
    return out;
  }

  const SchemaDoc& doc_;
  int depth_;
};

}  // namespace

Verdict check_value(const SchemaDoc& doc, const Json& schema, const Json& value, int depth) {
  return Checker(doc, depth).check(schema, value);
}

bool json_equal(const Json& a, const Json& b) {
  if (a.is_number() && b.is_number()) {
    const auto x = decimal_of(a), y = decimal_of(b);
    return x && y ? compare(*x, *y) == 0 : a == b;
  }
  if (a.kind() != b.kind()) return false;
  if (a.is_array()) {
    return std::equal(a.as_array().begin(), a.as_array().end(), b.as_array().begin(),
                      b.as_array().end(), json_equal);
  }
  if (!a.is_object()) return a == b;
  if (a.as_object().size() != b.as_object().size()) return false;
  for (const auto& [key, value] : a.as_object()) {
    const Json* other = b.find(key);
    if (other == nullptr || !json_equal(value, *other)) return false;
  }
  return true;
}

}  // namespace tensorfold::grammar
