// The table of keywords, and comparison.
#include "engine/grammar/schema_keywords.h"

#include <functional>
#include <unordered_map>

namespace tensorfold::grammar {

Holds keyword_holds(std::string_view key) {
  static const std::unordered_map<std::string_view, Holds> kTable = [] {
    std::unordered_map<std::string_view, Holds> table;
    for (const char* k :
         {"title", "description", "$comment", "deprecated", "readOnly", "writeOnly"})
      table.emplace(k, Holds::kNote);
    for (const char* k : {"enum", "const", "default", "examples"}) table.emplace(k, Holds::kValues);
    for (const char* k :
         {"items", "prefixItems", "additionalItems", "contains", "not", "allOf", "anyOf", "oneOf",
          "if", "then", "else", "additionalProperties", "propertyNames", "unevaluatedItems",
          "unevaluatedProperties", "contentSchema"})
      table.emplace(k, Holds::kSchemas);
    for (const char* k : {"properties", "patternProperties", "definitions", "$defs", "dependencies",
                          "dependentSchemas"})
      table.emplace(k, Holds::kNamedSchemas);
    return table;
  }();
  const auto it = kTable.find(key);
  return it == kTable.end() ? Holds::kOther : it->second;
}

uint64_t mix_hash(uint64_t hash, uint64_t value) {
  hash = (hash ^ value) * 0xFF51AFD7ED558CCDU;
  return hash ^ (hash >> 32);
}

uint64_t text_hash(std::string_view text) { return std::hash<std::string_view>()(text); }

uint64_t value_hash(const Json& value) {
  uint64_t hash = static_cast<uint64_t>(value.kind());
  if (value.is_array()) {
    for (const Json& item : value.as_array()) hash = mix_hash(hash, value_hash(item));
  } else if (value.is_object()) {
    for (const auto& [key, member] : value.as_object())
      hash = mix_hash(mix_hash(hash, text_hash(key)), value_hash(member));
  } else if (value.is_string() || value.is_int()) {
    hash = mix_hash(hash, text_hash(value.as_string()));
  } else if (value.is_number()) {
    hash = mix_hash(hash, std::hash<double>()(value.as_double()));
  } else if (value.is_bool()) {
    hash = mix_hash(hash, value.as_bool() ? 1 : 0);
  }
  return hash;
}

namespace {

// The next member from `i` on that is no note.
size_t skip_notes(const Json::Object& members, size_t i, bool schema) {
  while (schema && i < members.size() && keyword_holds(members[i].first) == Holds::kNote) ++i;
  return i;
}

bool members_equal(const Json& a, const Json& b, bool schema) {
  const Json::Object &x = a.as_object(), &y = b.as_object();
  size_t i = 0, j = 0;
  for (;; ++i, ++j) {
    i = skip_notes(x, i, schema);
    j = skip_notes(y, j, schema);
    if (i == x.size() || j == y.size()) return i == x.size() && j == y.size();
    if (x[i].first != y[j].first) return false;
    const Json &p = x[i].second, &q = y[j].second;
    const Holds holds = keyword_holds(x[i].first);
    if (schema && holds == Holds::kNamedSchemas && p.is_object() && q.is_object()) {
      const Json::Object &named = p.as_object(), &other = q.as_object();
      if (named.size() != other.size()) return false;
      for (size_t k = 0; k < named.size(); ++k) {
        if (named[k].first != other[k].first ||
            !schemas_equal(named[k].second, other[k].second, true))
          return false;
      }
    } else if (!schemas_equal(p, q, member_is_schema(schema, holds))) {
      return false;
    }
  }
}

}  // namespace

bool schemas_equal(const Json& a, const Json& b, bool schema) {
  if (a.kind() != b.kind()) return false;
  if (a.is_object()) return members_equal(a, b, schema);
  if (!a.is_array()) return a == b;
  const Json::Array &x = a.as_array(), &y = b.as_array();
  if (x.size() != y.size()) return false;
  for (size_t i = 0; i < x.size(); ++i) {
    if (!schemas_equal(x[i], y[i], schema)) return false;
  }
  return true;
}

}  // namespace tensorfold::grammar
