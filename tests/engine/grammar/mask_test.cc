// Masks against brute force: every token of a small vocabulary tried byte by byte by a plain
// backtracking matcher (text_match), in every state of many replies; and what walks drawn from the
// masks end in.
#include <boost/test/unit_test.hpp>
#include <random>

#include "engine/grammar/constraint.h"
#include "engine/grammar/schema_doc.h"
#include "engine/grammar/text_match.h"
#include "engine/text/tokenizer.h"
#include "tests/engine/grammar/small_vocabulary.h"

namespace tensorfold::grammar {
namespace {

bool allowed(const std::vector<uint32_t>& bits, int32_t id) {
  return ((bits[static_cast<size_t>(id) / 32] >> (id % 32)) & 1) != 0;
}

ConstraintSpec schema(const std::string& text, bool serving = false) {
  ConstraintSpec spec;
  spec.kind = ConstraintKind::kJsonSchema;
  spec.text = text;
  if (!serving) {
    spec.whitespace = Whitespace::kAny;
    spec.ordered = spec.closed = false;
  }
  return spec;
}

const char* const kSchemas[] = {
    R"({"type":"object"})",
    R"({"type":"object","properties":{"name":{"type":"string","maxLength":5},)"
    R"("kind":{"enum":["a","ab","value"]},"n":{"type":"integer","minimum":-3,)"
    R"("maximum":127}},"required":["name"],"additionalProperties":false})",
    R"({"type":"array","items":{"anyOf":[{"type":"number"},{"type":"string",)"
    R"("pattern":"^[a-h]{2,4}$"},{"type":"null"}]},"minItems":1,"maxItems":4})",
    R"({"type":"object","properties":{"name":{"type":"string"}},)"
    R"("patternProperties":{"^k":{"type":"boolean"}},)"
    R"("additionalProperties":{"type":"integer"},"minProperties":1,"maxProperties":3})",
    R"({"$ref":"#/$defs/t","$defs":{"t":{"type":"object",)"
    R"("properties":{"value":{"type":"integer"},"name":{"anyOf":[{"$ref":"#/$defs/t"},)"
    R"({"type":"null"}]}},"required":["value"],"additionalProperties":false}}})",
    R"({"oneOf":[{"properties":{"kind":{"const":"a"},"name":{"type":"string"}},)"
    R"("required":["kind"]},{"properties":{"kind":{"const":"ab"},)"
    R"("name":{"type":"integer"}},"required":["kind"]}],"type":"object"})",
    R"({"type":"array","items":{"enum":["a","ab",1,12,true]},"uniqueItems":true,"minItems":2})",
    R"({"type":"array","contains":{"const":12},"maxContains":2,"items":{"type":"integer"}})",
    R"({"type":"array","items":{"type":"string","pattern":"^[a-h]{1,3}$"},"uniqueItems":true,)"
    R"("minItems":2})",
    R"({"type":"array","items":{"type":["string","integer"]},"uniqueItems":true,"minItems":2})",
    R"({"type":"object","properties":{"name":{},"other":{}},)"
    R"("patternProperties":{"^[a-h]+$":{"type":"integer"}},"additionalProperties":false})",
    R"({"type":"array","items":{"type":"string","pattern":"^[a-z ]{0,40}$"},"maxItems":300})",
    R"({"type":"string","minLength":2,"maxLength":6})",
    R"({"type":"string","format":"date"})",
    R"({"type":"number","multipleOf":0.5,"exclusiveMinimum":-2,"maximum":20})",
    R"({"type":"object","if":{"properties":{"kind":{"const":"a"}},"required":["kind"]},)"
    R"("then":{"required":["name"]},"else":{"not":{"required":["name"]}}})",
};

// Every token in this state: the mask, next() and the matcher must agree.
void compare(const MaskSource& source, const VocabImage& vocab, const Program& program,
             MaskState state, const std::string& text) {
  std::vector<uint32_t> bits(vocab.words());
  (void)source.mask(state, bits);
  for (int32_t id = kFirst; id < vocab.spec().mask_tokens; ++id) {
    const bool in_mask = allowed(bits, id);
    const bool steps = source.next(state, id) != kMaskDead;
    BOOST_REQUIRE_MESSAGE(in_mask == steps, "mask and next differ after " << text << " for " << id);
    if (static_cast<size_t>(id) >= vocab.spec().bytes.size()) {
      BOOST_REQUIRE(!in_mask);
      continue;
    }
    const TextVerdict v = match_text(program, text + vocab.spec().bytes[static_cast<size_t>(id)]);
    BOOST_REQUIRE_MESSAGE(in_mask == (v.accepted || v.unfinished),
                          "mask and matcher differ after "
                              << text << " for token "
                              << vocab.spec().bytes[static_cast<size_t>(id)]);
  }
  BOOST_REQUIRE(allowed(bits, kEnd) == match_text(program, text).accepted);
}

// A reply drawn from the masks, with short texts preferred so that it ends.
std::string walk(const MaskSource& source, const VocabImage& vocab, std::mt19937& random,
                 bool check, const Program& program) {
  MaskState state = source.start();
  std::vector<uint32_t> bits(vocab.words());
  std::string text;
  for (int step = 0; step < 400; ++step) {
    if (check && step < 12) compare(source, vocab, program, state, text);
    BOOST_REQUIRE_MESSAGE(source.mask(state, bits), "a dead end after " << text);
    std::vector<int32_t> ids, closing;
    for (int32_t id = 0; id < vocab.spec().mask_tokens; ++id) {
      if (!allowed(bits, id)) continue;
      ids.push_back(id);
      const std::string piece = static_cast<size_t>(id) < vocab.spec().bytes.size()
                                    ? vocab.spec().bytes[static_cast<size_t>(id)]
                                    : "";
      if (piece == "\"" || piece == "}" || piece == "]" || id == kEnd) closing.push_back(id);
    }
    const bool close = !closing.empty() && random() % (step < 60 ? 4 : 1) == 0;
    const auto& from = close ? closing : ids;
    const int32_t id = from[random() % from.size()];
    if (id == kEnd) return text;
    text += vocab.spec().bytes[static_cast<size_t>(id)];
    state = source.next(state, id);
    BOOST_REQUIRE(state != kMaskDead);
  }
  return "";
}

BOOST_AUTO_TEST_CASE(masks_equal_brute_force_and_walks_are_valid) {
  const auto vocab = vocabulary();
  std::mt19937 random(7);
  int ended = 0;
  for (const char* text : kSchemas) {
    const auto compiled = compile_program(schema(text), kTextMarkerId);
    BOOST_REQUIRE_MESSAGE(compiled.ok(), text << ": " << compiled.status().message());
    const auto source = compile_constraint(schema(text), vocab);
    BOOST_REQUIRE(source.ok());
    const auto json_schema = parse_json(text);
    const auto doc = SchemaDoc::load(*json_schema);
    for (int i = 0; i < 40; ++i) {
      const std::string reply = walk(**source, *vocab, random, i < 3, *compiled->program);
      if (reply.empty()) continue;
      ++ended;
      const auto value = parse_json(reply);
      BOOST_REQUIRE_MESSAGE(value.ok(), reply);
      const Verdict v = check_value(**doc, (*doc)->root(), *value);
      BOOST_REQUIRE_MESSAGE(v != Verdict::kNo, text << " accepted " << reply);
    }
  }
  BOOST_TEST(ended > 300);
}

BOOST_AUTO_TEST_CASE(serving_defaults_keep_order_and_close_objects) {
  const auto c = compile_program(
      schema(R"({"properties":{"b":{"type":"integer"},"a":{"type":"integer"}},"required":["a"]})",
             true),
      0);
  BOOST_REQUIRE(c.ok());
  BOOST_TEST(match_text(*c->program, R"({"b": 1, "a": 2})").accepted);
  BOOST_TEST(match_text(*c->program, "{\n  \"a\": 2\n}").accepted);
  BOOST_TEST(!match_text(*c->program, R"({"a": 2, "b": 1})").accepted);
  BOOST_TEST(!match_text(*c->program, R"({"b": 1})").accepted);
  BOOST_TEST(!match_text(*c->program, R"({"a": 2, "z": 1})").accepted);
  BOOST_TEST(!match_text(*c->program, "{\n\n\"a\": 2}").accepted);
  BOOST_TEST(!match_text(*c->program, " {\"a\": 2}").accepted);
}

BOOST_AUTO_TEST_CASE(constraint_starts_after_reasoning) {
  const auto vocab = vocabulary();
  ConstraintSpec spec;
  spec.kind = ConstraintKind::kChoice;
  spec.choices = {"hello", "name"};
  spec.reasoning = true;
  const auto source = compile_constraint(spec, vocab);
  BOOST_REQUIRE(source.ok());
  MaskState s = (*source)->start();
  std::vector<uint32_t> bits(vocab->words());
  BOOST_TEST((*source)->mask(s, bits));
  BOOST_TEST(allowed(bits, kFirst + '{'));
  BOOST_TEST(allowed(bits, kThinkEnd));
  BOOST_TEST(!allowed(bits, kEnd));
  BOOST_TEST(!allowed(bits, kMarker));
  s = (*source)->next((*source)->next(s, kFirst + '{'), kThinkEnd);
  (void)(*source)->mask(s, bits);
  BOOST_TEST(!allowed(bits, kFirst + '{'));
  BOOST_TEST(allowed(bits, kFirst + 'h'));
  BOOST_TEST((*source)->next(s, kThinkEnd) == kMaskDead);
}

}  // namespace
}  // namespace tensorfold::grammar
