// A JSON Schema document: its subschemas, their base URIs, and what their references mean.
// Immutable after load. Nothing is ever fetched: a reference must end inside the document.
#pragma once

#include <map>
#include <set>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "engine/base/json.h"
#include "engine/grammar/char_dfa.h"

namespace tensorfold::grammar {

inline constexpr size_t kSchemaMaxBytes = size_t{4} << 20;
inline constexpr size_t kAlikeLookedMax = 16;  // subschemas with one hash that are compared
inline constexpr size_t kEnumTextMaxBytes = size_t{2} << 20;  // of all enum values together

class SchemaDoc {
 public:
  static Result<std::unique_ptr<SchemaDoc>> load(Json root);

  const Json& root() const { return root_; }
  // "$ref" siblings are ignored up to draft 7, as those drafts say.
  bool ref_stands_alone() const { return draft_ != 0 && draft_ <= 7; }
  bool draft4() const { return draft_ == 4; }
  // The schema that `ref` (written inside `from`) names. kInvalidArgument when it is elsewhere.
  Result<const Json*> resolve(const Json& from, const std::string& ref) const;
  // Of all subschemas that say the same in the same place of names, the one asked about first: so
  // that what is written twice is compiled once. Descriptions and titles do not count.
  const Json& first_alike(const Json& schema) const;
  // JSON pointer of a subschema, for messages ("#/properties/a").
  std::string pointer(const Json& schema) const;
  // An error about `keyword` of `schema`.
  Status error(const Json& schema, std::string_view keyword, std::string_view why) const;
  // A pattern's automaton, kept: over bytes, and over characters.
  Result<DfaPtr> pattern(const std::string& source) const;
  Result<CharDfaPtr> names(const std::string& source) const;
  static const Json& always();
  static const Json& never();
  Result<const Json*> dynamic_target(const Json& from, const std::string& ref) const;
  // "$recursiveRef": the resource that `ref` names, or the outermost one on the way to it, if both
  // say "$recursiveAnchor".
  Result<const Json*> recursive_target(const Json& from, const std::string& ref) const;

 private:
  void strip(Json& value, bool schema);
  struct Place {
    uint32_t base = 0;    // into bases_
    bool schema = false;  // else a value that only a reference can make one
    uint64_t hash = 0;
    const Json* alike = nullptr;  // null: not asked for yet
  };

  uint32_t name(const Json& value, uint32_t base);
  uint64_t scan(const Json& value, uint32_t base, bool schema);
  Result<const Json*> walk_pointer(const Json& from, std::string_view pointer,
                                   const std::string& ref) const;
  Json root_;
  int draft_ = 0;                          // 0: not said
  std::vector<std::string> bases_ = {""};  // base URIs
  mutable std::unordered_map<const Json*, Place> places_;
  mutable std::unordered_map<uint64_t, std::vector<const Json*>> alike_;  // by hash
  std::map<std::string, const Json*> resources_;                          // absolute URI -> schema
  std::map<std::string, const Json*> anchors_;                            // URI#name -> schema
  std::map<std::string, int> dynamic_;  // how many $dynamicAnchor have a name
  int recursive_ = 0;                   // how many $recursiveAnchor are true
  mutable std::map<std::string, DfaPtr> patterns_;
  mutable std::map<std::string, CharDfaPtr> names_;
};

// What a value literally is under a schema: yes, no, or not decidable here.
enum class Verdict : unsigned char { kNo, kYes, kUnknown };
Verdict check_value(const SchemaDoc& doc, const Json& schema, const Json& value, int depth = 0);

bool json_equal(const Json& a, const Json& b);  // as JSON Schema compares: 1 equals 1.0

// The automaton of a format, with a bound on characters where the format has one.
struct FormatRule {
  DfaPtr dfa;  // null: the format says nothing about strings we know of
  uint32_t max_chars = UINT32_MAX;
  bool refused = false;  // known, and not a regular language
};
FormatRule format_rule(std::string_view name);

}  // namespace tensorfold::grammar
