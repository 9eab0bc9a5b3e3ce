// JSON Schema to a program's value nodes.
#pragma once

#include <string>
#include <vector>

#include "engine/grammar/program.h"
#include "engine/grammar/schema_terms.h"

namespace tensorfold::grammar {

inline constexpr size_t kSchemaNodesMax = 50'000;
inline constexpr size_t kPatternsPerObjectMax = 24;
inline constexpr size_t kArrayPrefixMax = 4'096;

struct SchemaOptions {
  bool ordered = false;  // declared members in the schema's order
  bool closed = false;   // no undeclared members where additionalProperties is not given
};

class SchemaCompiler {
 public:
  SchemaCompiler(const SchemaDoc& doc, const SchemaOptions& options, Program& program)
      : doc_(doc), options_(options), program_(program), terms_(doc) {}

  // The value node of these schemas together; kNoNode when nothing satisfies them.
  Result<int32_t> compile(const Conj& conj);
  TermBuilder& terms() { return terms_; }

 private:
  int32_t node_for(const Conj& conj);
  Result<int32_t> literal(const Json& value);
  Status expand(int32_t node, const Conj& conj);
  Status add_values(const Term& t, const Conj& conj, ValueNode& node);
  Status add_plain(const Term& t, ValueNode& node);
  Status add_number(const Term& t, const Conj& conj, ValueNode& node);
  Status add_text(const Term& t, const Conj& conj, ValueNode& node);
  Status add_array(const Term& t, const Conj& conj, ValueNode& node);
  Status add_contains(const Term& t, const Conj& conj, ArrayShape& shape, size_t fixed);
  Status add_object(const Term& t, const Conj& conj, ValueNode& node);
  Status add_others(const Term& t, const Conj& conj, ObjectShape& shape);
  Result<DfaPtr> name_language(const Conj& conj, const Term& t);
  Result<DfaPtr> names_by_patterns(const Conj& conj, const std::vector<std::string>& sources);
  Result<DfaPtr> text_language(const Term& t, const Conj& conj);
  Status error(const Conj& conj, std::string_view keyword, std::string_view why) const;
  void prune();
  bool inhabited(const ValueNode& node) const;
  bool inhabited(const ObjectShape& s) const;
  bool inhabited(const ArrayShape& s) const;
  Status prune_object(ObjectShape& s);
  Status prune_array(ArrayShape& s);
  Status finish_unique();
  bool alive(int32_t node) const { return node != kNoNode && live_[static_cast<size_t>(node)]; }
  DfaPtr shared(const DfaPtr& dfa);
  uint32_t text_index(const DfaPtr& own, uint64_t min, uint64_t max);
  uint32_t terminal_index(const DfaPtr& own);

  const SchemaDoc& doc_;
  SchemaOptions options_;
  Program& program_;
  TermBuilder terms_;
  std::map<Conj, int32_t> ids_;
  std::vector<std::pair<int32_t, Conj>> todo_;
  std::map<const Json*, int32_t> literals_;
  std::map<std::tuple<const Dfa*, uint64_t, uint64_t>, uint32_t> text_ids_;
  std::map<const Dfa*, uint32_t> terminal_ids_;
  std::map<std::vector<std::string>, DfaPtr> pattern_names_;  // by sources
  std::map<std::string, DfaPtr> numbers_;                     // by their set's key
  std::unordered_map<uint64_t, std::vector<DfaPtr>> dfas_;    // by hash
  std::vector<char> live_;
  std::vector<char> ambiguous_;                    // by dfa index: one value, several spellings
  std::vector<std::pair<uint32_t, Conj>> unique_;  // arrays whose items must differ
};

}  // namespace tensorfold::grammar
