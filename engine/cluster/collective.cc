// The part of a collective that is the same for every transport, and the one for a single rank.
// Owner: the engine thread of the rank. Deliberately knows no transport beyond a copy.
#include "engine/cluster/collective.h"

#include <cstring>

namespace tensorfold {

Status Collective::all_reduce_sum(std::span<float> data, std::vector<float>& scratch) {
  const size_t world = static_cast<size_t>(world_size());
  if (world == 1 || data.empty()) return ok_status();
  const size_t n = data.size();
  if (scratch.size() < world * n) scratch.resize(world * n);
  const std::span<float> gathered(scratch.data(), world * n);
  TF_RETURN_IF_ERROR(
      all_gather(std::as_bytes(std::span<const float>(data)), std::as_writable_bytes(gathered)));
  std::memcpy(data.data(), gathered.data(), n * sizeof(float));
  for (size_t r = 1; r < world; ++r) {
    const float* part = gathered.data() + r * n;
    for (size_t i = 0; i < n; ++i) data[i] += part[i];
  }
  return ok_status();
}

Status Collective::broadcast(std::span<std::byte> data, int root) {
  TF_CHECK(root >= 0 && root < world_size());
  if (world_size() == 1 || data.empty()) return ok_status();
  std::vector<std::byte> all(data.size() * static_cast<size_t>(world_size()));
  TF_RETURN_IF_ERROR(all_gather(data, all));
  std::memcpy(data.data(), all.data() + data.size() * static_cast<size_t>(root), data.size());
  return ok_status();
}

namespace {

class SingleCollective final : public Collective {
 public:
  int rank() const override { return 0; }
  int world_size() const override { return 1; }
  Status all_gather(std::span<const std::byte> in, std::span<std::byte> out) override {
    TF_CHECK_EQ(in.size(), out.size());
    if (!in.empty() && in.data() != out.data()) std::memmove(out.data(), in.data(), in.size());
    return ok_status();
  }
};

}  // namespace

std::unique_ptr<Collective> make_single_collective() {
  return std::make_unique<SingleCollective>();
}

}  // namespace tensorfold
