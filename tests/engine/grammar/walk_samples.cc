// Replies drawn from masks, for a validator that is not ours (oracle.py): one JSON line
// {"schema": index, "reply": text} each.
//
// usage: grammar_walks SCHEMAS.jsonl TOKENIZER COUNT SEED
// SCHEMAS: one schema a line. Schemas that cannot be enforced are left out; walks that do not end
// within their tokens, too. A dead end or a token that the mask allows and next() refuses is a
// failure of ours: status 1.
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iostream>
#include <random>

#include "engine/grammar/constraint.h"
#include "engine/text/tokenizer.h"

namespace {

using namespace tensorfold;

constexpr int kTokensMax = 400;
constexpr int kHurriedTokens = 40;  // from here on, whatever closes is taken

class Walker {
 public:
  Walker(const grammar::VocabImage& vocab, uint64_t seed) : vocab_(vocab), random_(seed) {
    bits_.resize(vocab.words());
    for (size_t id = 0; id < vocab.spec().bytes.size(); ++id) {
      const std::string& b = vocab.spec().bytes[id];
      if (b == "\"" || b == "}" || b == "]" || b == "0")
        closers_.push_back(static_cast<int32_t>(id));
    }
  }

  // Nothing: it did not end.
  bool walk(const MaskSource& source, std::string& text) {
    text.clear();
    MaskState state = source.start();
    const int32_t end = vocab_.spec().end_ids[0];
    for (int step = 0; step < kTokensMax; ++step) {
      if (!source.mask(state, bits_)) fail("a dead end after " + text);
      if (allowed(end) && (step > 1 || random_() % 4 == 0)) return true;
      const int32_t id = choose(step);
      if (id < 0) return allowed(end);  // nothing but the end
      const MaskState next = source.next(state, id);
      if (next == kMaskDead)
        fail("token " + std::to_string(id) + " is in the mask and refused after " + text);
      state = next;
      text += vocab_.spec().bytes[static_cast<size_t>(id)];
    }
    return false;
  }

 private:
  [[noreturn]] static void fail(const std::string& what) {
    std::cerr << what << "\n";
    std::exit(1);
  }
  bool allowed(int32_t id) const {
    return (bits_[static_cast<size_t>(id) / 32] >> (id % 32) & 1U) != 0;
  }
  int32_t choose(int step) {
    if (step > kHurriedTokens || random_() % 3 == 0) {
      for (const int32_t id : closers_) {
        if (allowed(id) && random_() % 2 == 0) return id;
      }
    }
    // A random place, and from there the next token that is allowed: not uniform, but any.
    const auto width = static_cast<uint64_t>(vocab_.spec().bytes.size());
    uint64_t at = random_() % width;
    uint64_t looked = 0;
    while (!allowed(static_cast<int32_t>(at)) ||
           vocab_.spec().bytes[static_cast<size_t>(at)].empty()) {
      if (++looked > width) return -1;
      at = (at + 1) % width;
    }
    return static_cast<int32_t>(at);
  }

  const grammar::VocabImage& vocab_;
  std::mt19937_64 random_;
  std::vector<uint32_t> bits_;
  std::vector<int32_t> closers_;
};

}  // namespace

int main(int argc, char** argv) {
  if (argc != 5) return 2;
  const auto tokenizer = Tokenizer::load(argv[2]);
  if (!tokenizer.ok()) return 2;
  const auto end = (*tokenizer)->id_of("<｜end▁of▁sentence｜>");
  const auto vocab = grammar::VocabImage::from_tokenizer(**tokenizer, 0, {*end});
  std::ifstream file(argv[1]);
  std::vector<std::pair<size_t, std::shared_ptr<const MaskSource>>> sources;
  std::string line;
  for (size_t i = 0; std::getline(file, line); ++i) {
    grammar::ConstraintSpec spec;
    spec.kind = grammar::ConstraintKind::kJsonSchema;
    spec.text = line;
    // As served, and in the specification's own meaning.
    for (const bool serving : {true, false}) {
      spec.ordered = spec.closed = serving;
      spec.whitespace = serving ? grammar::Whitespace::kPretty : grammar::Whitespace::kAny;
      auto source = grammar::compile_constraint(spec, *vocab);
      if (source.ok()) sources.emplace_back(i, *source);
    }
  }
  Walker walker(**vocab, std::strtoull(argv[4], nullptr, 10));
  const long wanted = std::atol(argv[3]);
  std::string text;
  for (long made = 0, tried = 0; made < wanted && tried < 4 * wanted; ++tried) {
    const auto& [index, source] = sources[static_cast<size_t>(tried) % sources.size()];
    if (!walker.walk(*source, text)) continue;
    ++made;
    std::cout << dump_json_python(
                     Json::object({{"schema", Json::integer(static_cast<int64_t>(index))},
                                   {"reply", Json::string(text)}}))
              << "\n";
  }
  return 0;
}
