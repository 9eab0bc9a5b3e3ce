// A schema as a disjunction of terms: each term is one conjunction of plain constraints, sorted by
// the type of value they speak about. Applicators (allOf, anyOf, oneOf, not, if, dependencies,
// $ref) disappear here; what they say about members and items becomes sets of schemas that the
// compiler turns into further nodes.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <unordered_map>
#include <vector>

#include "engine/grammar/decimal.h"
#include "engine/grammar/schema_doc.h"

namespace tensorfold::grammar {

inline constexpr size_t kEnumValuesMax = 20'000;   // of one enum
inline constexpr size_t kTermsMax = 512;           // of one value
inline constexpr uint64_t kTermWorkMax = 400'000;  // merges in one schema

inline constexpr size_t kApartValuesMax = 1024;  // pairs of values compared before merging

// Bits of Term::types.
enum TypeBit : uint8_t {
  kTypeNull = 1,
  kTypeTrue = 2,
  kTypeFalse = 4,
  kTypeWhole = 8,      // numbers without a fractional part
  kTypeFraction = 16,  // other numbers
  kTypeString = 32,
  kTypeArray = 64,
  kTypeObject = 128,
};

// A schema, or its opposite.
struct SchemaRef {
  const Json* schema = nullptr;
  bool negated = false;
  bool operator<(const SchemaRef& o) const {
    return schema != o.schema ? schema < o.schema : negated < o.negated;
  }
  bool operator==(const SchemaRef& o) const = default;
};
using Conj = std::vector<SchemaRef>;  // all of these; sorted, no repeats

struct ObjectRule {
  std::vector<std::pair<std::string, SchemaRef>> properties;
  std::vector<std::pair<std::string, SchemaRef>> patterns;  // source of the pattern
  std::optional<SchemaRef> additional;                      // members none of the above names
  std::optional<SchemaRef> names;
  bool annotates = true;  // counts as evaluating members
};

struct ArrayRule {
  std::vector<SchemaRef> prefix;
  std::optional<SchemaRef> rest;
  bool annotates = true;
};

struct ContainsRule {
  SchemaRef schema;
  uint32_t min = 1, max = UINT32_MAX;
};

struct Term {
  uint8_t types = 0xFF;
  std::optional<std::vector<const Json*>> values;  // one of these
  std::vector<const Json*> excluded;
  NumberSet numbers;
  uint64_t min_length = 0, max_length = UINT64_MAX;
  std::vector<DfaPtr> texts;  // all of these
  std::vector<std::shared_ptr<const ObjectRule>> objects;
  std::vector<std::string> required;
  uint64_t min_properties = 0, max_properties = UINT64_MAX;
  std::vector<std::shared_ptr<const ArrayRule>> arrays;
  std::vector<ContainsRule> contains;
  uint64_t min_items = 0, max_items = UINT64_MAX;
  bool unique = false;
};
using Terms = std::vector<Term>;

class TermBuilder {
 public:
  explicit TermBuilder(const SchemaDoc& doc) : doc_(doc) {}

  Result<Terms> of(const SchemaRef& ref);
  Result<Terms> of(const Conj& conj);
  // Certainly no value satisfies all of these.
  Result<bool> certainly_empty(const Conj& conj, int depth);
  // What a member called `name`, or an item at `position`, must satisfy.
  Result<Conj> member(const Term& term, const std::string& name) const;
  Conj item(const Term& term, size_t position) const;
  Conj normalize(Conj conj) const;
  const SchemaDoc& doc() const { return doc_; }
  // Formats and keywords that were taken as annotations, with their places.
  const std::vector<std::string>& ignored() const { return ignored_; }

 private:
  using SharedTerms = std::shared_ptr<const Terms>;
  Result<SharedTerms> shared(const SchemaRef& ref);
  Result<Terms> positive(const Json& s);
  Result<Terms> negative(const Json& s);
  Status plain(const Json& s, Term& term);
  Status plain_number(const Json& s, Term& term);
  Status plain_text(const Json& s, Term& term);
  Status plain_array(const Json& s, Term& term);
  Status plain_object(const Json& s, Term& term);
  Status applicators(const Json& s, Terms& terms);
  Status conditions(const Json& s, Terms& terms);
  Status dependencies(const Json& s, Terms& terms);
  Status unevaluated(const Json& s, Terms& terms);
  Result<Terms> any_of(const Json& s, const Json& list);
  Result<Terms> one_of(const Json& s, const Json& list);
  Status negative_keyword(const Json& s, const std::string& key, const Json& arg, Terms& out);
  Status negative_value(const Json& s, const std::string& key, const Json& arg, Terms& out);
  Status negative_member(const Json& s, const std::string& key, const Json& arg, Terms& out);
  Status negative_array(const Json& s, const std::string& key, const Json& arg, Terms& out);
  Result<Terms> cross(const Json& s, std::string_view keyword, const Terms& a, const Terms& b);
  Status cross_in(const Json& s, std::string_view keyword, Terms& into, const SchemaRef& ref);
  Result<bool> plainly_apart(const Term& a, const Term& b, int depth);
  Result<bool> plainly_apart(const Conj& conj, int depth);
  Result<bool> term_empty(const Term& t, const Conj& conj, int depth);
  Status cannot_negate(const Json& s, std::string_view keyword) const;
  const Json& plain_of(const Json& schema) const;

  const SchemaDoc& doc_;
  std::map<SchemaRef, std::shared_ptr<const Terms>> known_;
  std::map<SchemaRef, int> open_;
  std::map<Conj, bool> empty_;
  mutable std::unordered_map<const Json*, const Json*> plain_;
  std::vector<std::string> ignored_;
  uint64_t work_ = 0;
  int depth_ = 0;
};

bool term_merge(Term& into, const Term& other);  // false: certainly nothing is left

}  // namespace tensorfold::grammar
