// References, anchors and base URIs of a schema document.
#include "engine/grammar/schema_doc.h"

#include <algorithm>
#include <charconv>

#include "engine/grammar/regex.h"

namespace tensorfold::grammar {
namespace {

// Reference resolution of RFC 3986 5.2 as far as schema identifiers use it; no fragment.
std::string resolve_uri(const std::string& base, const std::string& ref) {
  auto scheme_end = [](const std::string& s) {
    for (size_t i = 0; i < s.size(); ++i) {
      const char c = s[i];
      if (c == ':') return i == 0 ? std::string::npos : i;
      if (!isalnum(static_cast<unsigned char>(c)) && c != '+' && c != '-' && c != '.') break;
    }
    return std::string::npos;
  };
  if (ref.empty()) return base;
  if (scheme_end(ref) != std::string::npos) return ref;
  const size_t scheme = scheme_end(base);
  const size_t authority =
      scheme != std::string::npos && base.compare(scheme, 3, "://") == 0 ? scheme + 3 : 0;
  const size_t path = authority == 0 ? 0 : std::min(base.find('/', authority), base.size());
  if (ref.size() > 1 && ref[0] == '/' && ref[1] == '/')
    return scheme == std::string::npos ? ref : base.substr(0, scheme + 1) + ref;
  if (ref[0] == '/') return base.substr(0, path) + ref;
  const size_t query = base.find('?');
  if (ref[0] == '?') return base.substr(0, query) + ref;
  const size_t last = base.rfind('/', query);
  std::string joined = (last == std::string::npos || last < path ? base.substr(0, path) + "/"
                                                                 : base.substr(0, last + 1)) +
                       ref;
  if (authority == 0 && last == std::string::npos) joined = ref;
  for (size_t at = joined.find("/./"); at != std::string::npos; at = joined.find("/./"))
    joined.erase(at, 2);
  for (size_t at = joined.find("/../"); at != std::string::npos; at = joined.find("/../")) {
    const size_t up = at == 0 ? std::string::npos : joined.rfind('/', at - 1);
    if (up == std::string::npos || up < path) {
      joined.erase(at, 3);
    } else {
      joined.erase(up, at + 3 - up);
    }
  }
  return joined;
}

std::string unescape_pointer(std::string_view token) {
  std::string out;
  for (size_t i = 0; i < token.size(); ++i) {
    if (token[i] == '%' && i + 2 < token.size()) {
      unsigned v = 0;
      const auto r = std::from_chars(token.data() + i + 1, token.data() + i + 3, v, 16);
      if (r.ec == std::errc() && r.ptr == token.data() + i + 3) {
        out.push_back(static_cast<char>(v));
        i += 2;
        continue;
      }
    }
    out.push_back(token[i]);
  }
  std::string done;
  for (size_t i = 0; i < out.size(); ++i) {
    if (out[i] == '~' && i + 1 < out.size() && (out[i + 1] == '0' || out[i + 1] == '1')) {
      done.push_back(out[++i] == '0' ? '~' : '/');
    } else {
      done.push_back(out[i]);
    }
  }
  return done;
}

std::string escape_pointer(std::string_view token) {
  std::string out;
  for (const char c : token) {
    if (c == '~') {
      out += "~0";
    } else if (c == '/') {
      out += "~1";
    } else {
      out.push_back(c);
    }
  }
  return out;
}

bool find_pointer(const Json& at, const Json& target, std::string& path) {
  if (&at == &target) return true;
  const size_t length = path.size();
  if (at.is_object()) {
    for (const auto& [key, value] : at.as_object()) {
      path += "/" + escape_pointer(key);
      if (find_pointer(value, target, path)) return true;
      path.resize(length);
    }
  } else if (at.is_array()) {
    size_t i = 0;
    for (const Json& value : at.as_array()) {
      path += "/" + std::to_string(i++);
      if (find_pointer(value, target, path)) return true;
      path.resize(length);
    }
  }
  return false;
}

int draft_of(const Json& root) {
  const Json* s = root.find("$schema");
  if (s == nullptr || !s->is_string()) return 0;
  const std::string& uri = s->as_string();
  for (const auto& [text, draft] :
       {std::pair("draft-03", 3), std::pair("draft-04", 4), std::pair("draft-06", 6),
        std::pair("draft-07", 7), std::pair("2019-09", 8), std::pair("2020-12", 9)}) {
    if (uri.find(text) != std::string::npos) return draft;
  }
  return 0;
}

// The draft that a keyword came with (8: 2019-09, 9: 2020-12); 0 for those of old.
int since(const std::string& key) {
  if (key == "const" || key == "contains" || key == "propertyNames") return 6;
  if (key == "if" || key == "then" || key == "else") return 7;
  if (key == "dependentRequired" || key == "dependentSchemas" || key == "minContains" ||
      key == "maxContains" || key == "unevaluatedProperties" || key == "unevaluatedItems")
    return 8;
  return key == "prefixItems" ? 9 : 0;
}

bool holds_values(const std::string& key) {
  return key == "enum" || key == "const" || key == "default" || key == "examples";
}

bool holds_schemas(const std::string& key) {
  for (const char* k :
       {"items", "prefixItems", "additionalItems", "contains", "not", "allOf", "anyOf", "oneOf",
        "if", "then", "else", "additionalProperties", "propertyNames", "unevaluatedItems",
        "unevaluatedProperties", "contentSchema"}) {
    if (key == k) return true;
  }
  return false;
}

bool holds_named_schemas(const std::string& key) {
  return key == "properties" || key == "patternProperties" || key == "definitions" ||
         key == "$defs" || key == "dependencies" || key == "dependentSchemas";
}

}  // namespace

const Json& SchemaDoc::always() {
  static const Json kTrue = Json::boolean(true);
  return kTrue;
}
const Json& SchemaDoc::never() {
  static const Json kFalse = Json::boolean(false);
  return kFalse;
}

Result<std::unique_ptr<SchemaDoc>> SchemaDoc::load(Json root) {
  auto doc = std::make_unique<SchemaDoc>();
  doc->root_ = std::move(root);
  if (!doc->root_.is_object() && !doc->root_.is_bool())
    return invalid_argument("schema at #: an object or a boolean expected");
  doc->draft_ = draft_of(doc->root_);
  if (doc->draft_ != 0) doc->strip(doc->root_, true);
  doc->resources_[""] = &doc->root_;
  doc->scan(doc->root_, "", true);
  return doc;
}

// Takes out the keywords that the declared draft does not have: it gives them no meaning.
void SchemaDoc::strip(Json& value, bool schema) {
  if (value.is_array()) {
    for (Json& item : value.as_array()) strip(item, schema);
    return;
  }
  if (!value.is_object()) return;
  Json::Object& members = value.as_object();
  if (schema) std::erase_if(members, [&](const auto& m) { return since(m.first) > draft_; });
  for (auto& [key, member] : members) {
    if (schema && holds_values(key)) continue;
    if (schema && holds_named_schemas(key) && member.is_object()) {
      for (auto& named : member.as_object()) strip(named.second, true);
    } else {
      strip(member, true);
    }
  }
}

void SchemaDoc::scan(const Json& value, const std::string& base, bool schema) {
  if (value.is_array()) {
    for (const Json& item : value.as_array()) scan(item, base, schema);
    return;
  }
  if (!value.is_object()) return;
  std::string here = base;
  if (schema) {
    for (const char* name : {"$id", "id"}) {
      const Json* id = value.find(name);
      if (id == nullptr || !id->is_string()) continue;
      if (name[0] == 'i' && draft_ > 4) continue;
      if (ref_stands_alone() && value.find("$ref") != nullptr) continue;
      const std::string& text = id->as_string();
      const size_t hash = text.find('#');
      here = resolve_uri(base, text.substr(0, hash));
      if (hash == std::string::npos || hash > 0) resources_.emplace(here, &value);
      if (hash != std::string::npos && hash + 1 < text.size())
        anchors_.emplace(here + text.substr(hash), &value);
    }
    for (const char* name : {"$anchor", "$dynamicAnchor"}) {
      const Json* anchor = value.find(name);
      if (anchor == nullptr || !anchor->is_string()) continue;
      anchors_.emplace(here + "#" + anchor->as_string(), &value);
      if (name[1] == 'd') ++dynamic_[anchor->as_string()];
    }
  }
  base_[&value] = here;
  for (const auto& [key, member] : value.as_object()) {
    if (schema && holds_values(key)) continue;
    if (schema && holds_named_schemas(key) && member.is_object()) {
      for (const auto& [name, child] : member.as_object()) scan(child, here, true);
      base_[&member] = here;
    } else {
      // What an unknown keyword holds can be referred to, but names nothing itself.
      scan(member, here, schema && holds_schemas(key));
    }
  }
}

Result<const Json*> SchemaDoc::walk_pointer(const Json& from, std::string_view pointer,
                                            const std::string& ref) const {
  const Json* at = &from;
  while (!pointer.empty()) {
    pointer.remove_prefix(1);
    const size_t slash = std::min(pointer.find('/'), pointer.size());
    const std::string token = unescape_pointer(pointer.substr(0, slash));
    pointer.remove_prefix(slash);
    const Json* next = at->find(token);
    if (at->is_array()) {
      size_t i = 0;
      const auto r = std::from_chars(token.data(), token.data() + token.size(), i);
      if (r.ec == std::errc() && r.ptr == token.data() + token.size() && i < at->as_array().size())
        next = &at->as_array()[i];
    }
    if (next == nullptr) return invalid_argument("\"" + ref + "\" points to nothing: no " + token);
    at = next;
  }
  if (!at->is_object() && !at->is_bool())
    return invalid_argument("\"" + ref + "\" does not point to a schema");
  return at;
}

Result<const Json*> SchemaDoc::resolve(const Json& from, const std::string& ref) const {
  const auto it = base_.find(&from);
  const std::string base = it == base_.end() ? "" : it->second;
  const size_t hash = std::min(ref.find('#'), ref.size());
  const std::string uri = resolve_uri(base, ref.substr(0, hash));
  const std::string fragment = hash < ref.size() ? ref.substr(hash + 1) : "";
  const auto resource = resources_.find(uri);
  if (resource == resources_.end()) {
    return invalid_argument("\"" + ref + "\" is outside the schema; references are not fetched");
  }
  if (fragment.empty()) return resource->second;
  if (fragment[0] == '/') return walk_pointer(*resource->second, fragment, ref);
  const auto anchor = anchors_.find(uri + "#" + fragment);
  if (anchor == anchors_.end()) return invalid_argument("\"" + ref + "\" names no anchor");
  return anchor->second;
}

Result<const Json*> SchemaDoc::dynamic_target(const Json& from, const std::string& ref) const {
  const size_t hash = ref.find('#');
  const std::string name = hash == std::string::npos ? "" : ref.substr(hash + 1);
  const auto it = dynamic_.find(name);
  if (it != dynamic_.end() && it->second > 1) {
    return invalid_argument("\"" + ref + "\" has several targets, chosen by the way it is reached");
  }
  return resolve(from, ref);
}

std::string SchemaDoc::pointer(const Json& schema) const {
  std::string path = "#";
  return find_pointer(root_, schema, path) ? path : "#";
}

Status SchemaDoc::error(const Json& schema, std::string_view keyword, std::string_view why) const {
  return invalid_argument(
      "schema at " + pointer(schema) + ": " + std::string(keyword) + ": " + std::string(why), "",
      "unsupported_schema");
}

Result<DfaPtr> SchemaDoc::pattern(const std::string& source) const {
  const auto it = patterns_.find(source);
  if (it != patterns_.end()) return it->second;
  TF_ASSIGN_OR_RETURN(DfaPtr dfa, regex_to_dfa(source, RegexMatch::kSearch));
  patterns_.emplace(source, dfa);
  return dfa;
}

}  // namespace tensorfold::grammar
