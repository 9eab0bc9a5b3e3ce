// Files on disk hold bits of the kernels that made them. When those bits move, kNumericRevision
// must move too, or an old file would be continued by new kernels. Here the bits are all records
// that the golden mini model's prompt and greedy reply leave, and the reply itself.
#include <fstream>

#include "engine/base/json.h"
#include "engine/cache/spill/spill_identity.h"
#include "engine/weights/file.h"
#include "tests/engine/cache_serving.h"

using namespace tensorfold;
using namespace tensorfold::scripted;

namespace {

constexpr int kPromptTokens = 300;
constexpr int kReplyTokens = 8;

// Hashes what it is given to write.
class HashingTier final : public CacheTier {
 public:
  bool spill(const CacheNote& note, std::span<const int32_t> ids,
             std::span<const int32_t> engram_ids, std::span<const std::byte> bytes) override {
    ++records;
    hash.update(note.name.hex());
    hash.update(std::as_bytes(ids));
    hash.update(std::as_bytes(engram_ids));
    hash.update(bytes);
    return true;
  }
  void stage(const CacheNote&) override {}
  Staged staged(const BlockDigest&, CacheNote::Kind) const override { return Staged::kMissing; }
  const CacheRecord* record(const BlockDigest&, CacheNote::Kind) const override { return nullptr; }
  void unstage(const BlockDigest&, CacheNote::Kind) override {}
  std::vector<TierEvent> take_events() override { return {}; }
  void forget(const CacheNote&) override {}
  void flush() override {}

  Sha256 hash;
  int records = 0;
};

// `spoil`: another prompt, so other bits.
std::string digest_of_bits(bool spoil) {
  HashingTier tier;
  const auto collective = make_single_collective();
  ModelOptions o;
  o.model_path = TF_TEST_DATA "/golden/mini_native";
  o.slots = 1;
  o.context = kServingContext;
  o.pool_blocks = 24;
  o.rows_max = 2048;
  o.snapshot_bytes = int64_t{64} << 20;
  o.threads = 1;
  o.tier = &tier;
  const auto model = Model::load(o, *collective);
  BOOST_REQUIRE_MESSAGE(model.ok(), model.status().message());
  ServingOptions serving;
  serving.tier = &tier;
  Request request;
  request.max_tokens = kReplyTokens;
  request.ignore_eos = true;
  request.sampling.temperature = 0.0;
  std::vector<TokenId> ids;
  for (int i = 0; i < kPromptTokens; ++i) ids.push_back(10 + (i * 37 + (spoil ? 1 : 0)) % 900);
  request.prompt.ids = std::move(ids);
  const Reply reply = Serving(**model, serving).run_one(request);
  tier.hash.update(std::as_bytes(std::span(reply.ids)));
  BOOST_TEST(tier.records >= 4);  // a whole block, partial ones, rings
  return tier.hash.hex();
}

}  // namespace

BOOST_AUTO_TEST_CASE(bits_and_revision_move_together) {
  std::ifstream in(TF_TEST_DATA "/spill/numeric_revision.json");
  const std::string text((std::istreambuf_iterator<char>(in)), {});
  const auto recorded = parse_json(text);
  BOOST_REQUIRE(recorded.ok());
  const std::string digest = digest_of_bits(false);
  const auto revision = *recorded->find("revision")->as_int64();
  const bool same = digest == recorded->find("digest")->as_string();
  BOOST_TEST(same,
             "the bits of cached state are "
                 << digest
                 << ", recorded were others: add 1 to "
                    "kNumericRevision (engine/cache/spill/spill_identity.h) and record both in "
                    "tests/data/spill/numeric_revision.json");
  BOOST_TEST(revision == kNumericRevision);
}

BOOST_AUTO_TEST_CASE(other_bits_are_seen) {
  BOOST_TEST(digest_of_bits(true) != digest_of_bits(false));
}
