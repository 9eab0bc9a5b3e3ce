// Digests that say whose and what (see spill_identity.h).
#include "engine/cache/spill/spill_identity.h"

#include <openssl/evp.h>

#include <string_view>

#include "engine/base/check.h"
#include "engine/cache/spill/spill_format.h"

namespace tensorfold {
namespace {

// A byte string of (tag, length, bytes) fields: no two lists of fields give the same one.
class Fields {
 public:
  explicit Fields(std::string_view what) { text("what", what); }
  void bytes(std::string_view tag, const void* data, size_t size) {
    number_of_bytes(tag.size());
    out_.append(tag);
    number_of_bytes(size);
    out_.append(static_cast<const char*>(data), size);
  }
  void text(std::string_view tag, std::string_view value) {
    bytes(tag, value.data(), value.size());
  }
  void number(std::string_view tag, uint64_t value) { bytes(tag, &value, sizeof(value)); }

  BlockDigest sha256() const {
    BlockDigest digest{};
    unsigned int length = 0;
    TF_CHECK(EVP_Digest(out_.data(), out_.size(),
                        reinterpret_cast<unsigned char*>(digest.bytes.data()), &length,
                        EVP_sha256(), nullptr) == 1);
    TF_CHECK_EQ(static_cast<size_t>(length), digest.bytes.size());
    return digest;
  }

 private:
  void number_of_bytes(uint64_t n) { out_.append(reinterpret_cast<const char*>(&n), sizeof(n)); }
  std::string out_;
};

}  // namespace

BlockDigest SpillIdentity::digest() const {
  Fields f("tensorfoldd spill identity");
  f.number("file format", kSpillFormatVersion);
  f.text("model", model_fingerprint);
  f.text("formats", formats);
  f.number("numeric revision", numeric_revision);
  f.text("device", device);
  f.text("prefill", prefill);
  f.number("reuse replies", reuse_replies ? 1 : 0);
  f.text("index scores", index_scores);
  f.text("exchange", exchange);
  f.number("world size", static_cast<uint64_t>(world_size));
  f.number("rank", static_cast<uint64_t>(rank));
  return f.sha256();
}

}  // namespace tensorfold
