// What the keywords of JSON Schema hold, and whether two schemas say the same. Pure; any thread.
#pragma once

#include <cstdint>
#include <string_view>

#include "engine/base/json.h"

namespace tensorfold::grammar {

enum class Holds : unsigned char {
  kOther,         // nothing that names a schema
  kNote,          // text for people: says nothing about values
  kValues,        // values, not schemas
  kSchemas,       // a schema or a list of them
  kNamedSchemas,  // schemas by name
};
Holds keyword_holds(std::string_view key);

// What a member of a value is: a schema, or a value that only a reference can make one.
inline bool member_is_schema(bool schema, Holds holds) {
  return schema && holds == Holds::kSchemas;
}

uint64_t mix_hash(uint64_t hash, uint64_t value);
uint64_t text_hash(std::string_view text);
uint64_t value_hash(const Json& value);  // equal for equal values

// Member by member in this order, but for notes. `schema`: whether they are schemas or only values.
bool schemas_equal(const Json& a, const Json& b, bool schema);

}  // namespace tensorfold::grammar
