// See the header.
#include "engine/group/plan_flow.h"

#include <algorithm>
#include <string>

#include "engine/cluster/wire.h"

namespace tensorfold {
namespace {

constexpr int kHead = 0;  // its rank
constexpr size_t kSizeBytes = 8;
constexpr size_t kFirstPartBytes = kPlanFlowFirstBytes - kSizeBytes;

}  // namespace

Status PlanFlow::send(Collective& collective, std::span<const std::byte> body) {
  if (body.size() > kPlanFlowBytesMax)
    return invalid_argument("a plan of " + std::to_string(body.size()) + " bytes is over " +
                            std::to_string(kPlanFlowBytesMax));
  WireWriter out;
  out.u64(body.size());
  const size_t part = std::min(body.size(), kFirstPartBytes);
  out.bytes(body.first(part));
  first_ = out.out();
  first_.resize(kPlanFlowFirstBytes);
  TF_RETURN_IF_ERROR(collective.broadcast(first_, kHead));
  if (part == body.size()) return ok_status();
  rest_.assign(body.begin() + static_cast<ptrdiff_t>(part), body.end());
  return collective.broadcast(rest_, kHead);
}

Result<std::vector<std::byte>> PlanFlow::receive(Collective& collective) {
  first_.resize(kPlanFlowFirstBytes);
  TF_RETURN_IF_ERROR(collective.broadcast(first_, kHead));
  WireReader in(first_);
  uint64_t bytes = 0;
  if (!in.u64(bytes) || bytes > kPlanFlowBytesMax)
    return data_loss("a plan of " + std::to_string(bytes) + " bytes was broadcast, over " +
                     std::to_string(kPlanFlowBytesMax));
  const size_t part = std::min<size_t>(bytes, kFirstPartBytes);
  const auto begin = first_.begin() + static_cast<ptrdiff_t>(kSizeBytes);
  std::vector<std::byte> body(begin, begin + static_cast<ptrdiff_t>(part));
  if (part == bytes) return body;
  body.resize(bytes);
  TF_RETURN_IF_ERROR(collective.broadcast(std::span(body).subspan(part), kHead));
  return body;
}

}  // namespace tensorfold
