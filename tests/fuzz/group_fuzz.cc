// Bodies of the messages between head and workers (engine/group/messages.h): what is accepted
// encodes to the same bytes. The first byte says which.
#include <cstdint>
#include <span>

#include "engine/base/check.h"
#include "engine/group/messages.h"

namespace {

using namespace tensorfold;

template <typename T>
void same(std::span<const std::byte> body) {
  T message;
  if (!decode(body, message).ok()) return;
  const std::vector<std::byte> again = encode(message);
  TF_CHECK_EQ(again.size(), body.size());
  TF_CHECK(order_digest(again) == order_digest(body));
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  const auto body = std::as_bytes(std::span(data + 1, size - 1));
  switch (data[0] % 4) {
    case 0:
      same<Hello>(body);
      break;
    case 1:
      same<Sync>(body);
      break;
    case 2:
      same<StepOrder>(body);
      break;
    default:
      same<News>(body);
      break;
  }
  return 0;
}
