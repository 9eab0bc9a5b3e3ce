// Collective: how the ranks of one model exchange partial results. Every partial of the forward
// pass goes through it from the first day; for one rank it costs nothing.
//
// Partials are gathered in fp32 and added in rank order by every rank, so all ranks hold the same
// bits. Makers: one rank (here), ranks as threads of one process (tests, two-rank CPU), sockets
// and NCCL (engine/cluster).
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <vector>

#include "engine/base/status.h"

namespace tensorfold {

inline constexpr int kRanksMax = 16;

class DeviceExchange;  // engine/cluster/device_exchange.h

class Collective {
 public:
  virtual ~Collective() = default;
  virtual int rank() const = 0;
  virtual int world_size() const = 0;

  // out [world_size * bytes]: rank r's `in` at offset r * in.size(). All ranks call in the same
  // order with equal sizes. A failed peer is kUnavailable, never a hang past the deadline.
  virtual Status all_gather(std::span<const std::byte> in, std::span<std::byte> out) = 0;

  // data [n]: becomes rank `root`'s on every rank. In the same order of calls as all_gather, and
  // with the same errors. Here by way of all_gather; makers know shorter ones.
  virtual Status broadcast(std::span<std::byte> data, int root);

  // Exchanges on device memory; nullptr: this collective has none, or the ranks are apart. Stays
  // until the collective goes.
  virtual DeviceExchange* on_device() { return nullptr; }

  // data [n] fp32: becomes the sum over ranks, added in rank order: ((r0 + r1) + r2) + ...
  Status all_reduce_sum(std::span<float> data, std::vector<float>& scratch);
};

// One rank: all_gather copies.
std::unique_ptr<Collective> make_single_collective();

// `world_size` handles that meet in memory; each is used by one thread. timeout_ms bounds a wait.
std::vector<std::unique_ptr<Collective>> make_thread_collectives(int world_size, int timeout_ms);

}  // namespace tensorfold
