// What a stranger or a broken peer can send over the link: the handshake's accepting side (nothing
// but a proof of the key gets by), frames, and the bodies of frames, whose accepted forms must
// encode to the same bytes. The first byte says which.
#include <array>
#include <cstdint>
#include <cstring>
#include <span>
#include <string_view>
#include <vector>

#include "engine/base/check.h"
#include "engine/cluster/frame.h"
#include "engine/cluster/handshake.h"
#include "engine/cluster/messages.h"

namespace {

using namespace tensorfold;

constexpr std::string_view kKey = "a key of the fuzz target, not used elsewhere";

void handshake(std::span<const std::byte> in) {
  const std::array<std::byte, kLinkNonceBytes> nonce{};
  AcceptHandshake accept(std::as_bytes(std::span(kKey.data(), kKey.size())), 1, nonce);
  size_t sent = 0;
  while (accept.wants() > 0 && in.size() >= accept.wants()) {
    const size_t wants = accept.wants();
    sent += wants;
    TF_CHECK_LE(sent, kUnprovenBytesMax);
    TF_CHECK(accept.consume(in.first(wants)) != AcceptHandshake::Step::kProven);
    in = in.subspan(wants);
    TF_CHECK_LE(accept.take_output().size(), kPreambleBytes);
  }
}

void frames(std::span<const std::byte> in) {
  FrameIn reader(LinkDigest{});
  reader.feed(in);
  size_t opened = 0;
  std::vector<std::byte> payload;
  while (reader.next(-1) == FrameIo::kReady) {
    payload.resize(reader.header().bytes);
    if (!reader.take(payload)) break;
    opened += kFrameHeaderBytes + payload.size() + kFrameTagBytes;
  }
  TF_CHECK_LE(opened, in.size());
}

template <typename Decode, typename Encode>
void body(std::span<const std::byte> in, Decode&& decode, Encode&& encode_again) {
  const auto value = decode(in);
  if (!value) return;
  const std::vector<std::byte> again = encode_again(*value);
  TF_CHECK_EQ(again.size(), in.size());
  TF_CHECK(in.empty() || std::memcmp(again.data(), in.data(), in.size()) == 0);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  const auto in = std::as_bytes(std::span(data, size)).subspan(1);
  const auto again = [](const auto& value) { return encode(value); };
  switch (data[0] % 9) {
    case 0:
      handshake(in);
      break;
    case 1:
      frames(in);
      break;
    case 2:
      body(in, decode_join, again);
      break;
    case 3:
      body(in, decode_refusal, again);
      break;
    case 4:
      body(in, decode_roster, again);
      break;
    case 5:
      body(in, decode_beat, again);
      break;
    case 6:
      body(in, decode_exchange, again);
      break;
    case 7:
      body(in, decode_fields, [](const LinkFields& f) { return encode_fields(f); });
      break;
    default:
      body(in, decode_text, [](const std::string& t) { return encode_text(t); });
  }
  return 0;
}
