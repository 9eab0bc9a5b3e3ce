// References, anchors and base URIs of a schema document.
#include "engine/grammar/schema_doc.h"

#include <algorithm>
#include <charconv>

#include "engine/grammar/regex.h"
#include "engine/grammar/schema_keywords.h"

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

bool is_recursive(const Json& schema) {
  const Json* anchor = schema.find("$recursiveAnchor");
  return anchor != nullptr && anchor->is_bool() && anchor->as_bool();
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
  (void)doc->scan(doc->root_, 0, true);
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
    const Holds holds = keyword_holds(key);
    if (schema && holds == Holds::kValues) continue;
    if (schema && holds == Holds::kNamedSchemas && member.is_object()) {
      for (auto& named : member.as_object()) strip(named.second, true);
    } else {
      strip(member, true);
    }
  }
}

// The base URI inside `value`, and what it can be referred to as.
uint32_t SchemaDoc::name(const Json& value, uint32_t base) {
  uint32_t here = base;
  for (const char* name : {"$id", "id"}) {
    const Json* id = value.find(name);
    if (id == nullptr || !id->is_string()) continue;
    if (name[0] == 'i' && draft_ > 4) continue;
    if (ref_stands_alone() && value.find("$ref") != nullptr) continue;
    const std::string& text = id->as_string();
    const size_t hash = text.find('#');
    bases_.push_back(resolve_uri(bases_[base], text.substr(0, hash)));
    here = static_cast<uint32_t>(bases_.size()) - 1;
    if (hash > 0) resources_.emplace(bases_[here], &value);
    if (hash != std::string::npos && hash + 1 < text.size())
      anchors_.emplace(bases_[here] + text.substr(hash), &value);
  }
  for (const char* name : {"$anchor", "$dynamicAnchor"}) {
    const Json* anchor = value.find(name);
    if (anchor == nullptr || !anchor->is_string()) continue;
    anchors_.emplace(bases_[here] + "#" + anchor->as_string(), &value);
    if (name[1] == 'd') ++dynamic_[anchor->as_string()];
  }
  if (is_recursive(value)) ++recursive_;
  return here;
}

// Notes the place of everything that a reference can reach. Returns a hash, equal for what is.
uint64_t SchemaDoc::scan(const Json& value, uint32_t base, bool schema) {
  uint64_t hash = schema ? 1 : 2;
  if (value.is_array()) {
    for (const Json& item : value.as_array()) hash = mix_hash(hash, scan(item, base, schema));
    return hash;
  }
  if (!value.is_object()) return value_hash(value);
  const uint32_t here = schema ? name(value, base) : base;
  for (const auto& [key, member] : value.as_object()) {
    const Holds holds = keyword_holds(key);
    uint64_t of_member = 0;
    if (schema && holds == Holds::kValues) {
      of_member = value_hash(member);
    } else if (schema && holds == Holds::kNamedSchemas && member.is_object()) {
      for (const auto& [name, child] : member.as_object())
        of_member = mix_hash(mix_hash(of_member, text_hash(name)), scan(child, here, true));
      places_[&member] = {here, false, of_member, nullptr};
    } else {
      // What an unknown keyword holds can be referred to, but names nothing itself.
      of_member = scan(member, here, member_is_schema(schema, holds));
    }
    if (!schema || holds != Holds::kNote)
      hash = mix_hash(mix_hash(hash, text_hash(key)), of_member);
  }
  places_[&value] = {here, schema, hash, nullptr};
  return hash;
}

const Json& SchemaDoc::first_alike(const Json& schema) const {
  const auto it = places_.find(&schema);
  if (it == places_.end()) return schema;
  Place& place = it->second;
  if (place.alike != nullptr) return *place.alike;
  std::vector<const Json*>& known = alike_[place.hash];
  for (const Json* other : known) {
    const Place& at = places_.at(other);
    if (at.schema != place.schema || bases_[at.base] != bases_[place.base] ||
        !schemas_equal(*other, schema, place.schema))
      continue;
    place.alike = other;
    return *other;
  }
  if (known.size() < kAlikeLookedMax) known.push_back(&schema);
  place.alike = &schema;
  return schema;
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
    if (next == nullptr)
      return invalid_argument(
          std::string("\"").append(ref).append("\" points to nothing: no ").append(token));
    at = next;
  }
  if (!at->is_object() && !at->is_bool())
    return invalid_argument("\"" + ref + "\" does not point to a schema");
  return at;
}

Result<const Json*> SchemaDoc::resolve(const Json& from, const std::string& ref) const {
  const auto it = places_.find(&from);
  const std::string& base = bases_[it == places_.end() ? 0 : it->second.base];
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

// Every way begins at the document's root: with an anchor there it is the outermost.
Result<const Json*> SchemaDoc::recursive_target(const Json& from, const std::string& ref) const {
  TF_ASSIGN_OR_RETURN(const Json* const named, resolve(from, ref));
  if (!is_recursive(*named)) return named;
  if (is_recursive(root_)) return &root_;
  if (recursive_ == 1) return named;
  return invalid_argument("\"" + ref + "\" has several targets, chosen by the way it is reached");
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
  TF_ASSIGN_OR_RETURN(const CharDfaPtr chars, names(source));
  TF_ASSIGN_OR_RETURN(DfaPtr dfa, chars_to_bytes(*chars));
  patterns_.emplace(source, dfa);
  return dfa;
}

Result<CharDfaPtr> SchemaDoc::names(const std::string& source) const {
  const auto it = names_.find(source);
  if (it != names_.end()) return it->second;
  TF_ASSIGN_OR_RETURN(CharDfaPtr dfa, regex_to_chars(source, RegexMatch::kSearch));
  names_.emplace(source, dfa);
  return dfa;
}

}  // namespace tensorfold::grammar
