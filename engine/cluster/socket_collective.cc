// All-gather over a mesh of proven connections. Owner: see the header.
#include "engine/cluster/socket_collective.h"

#include <poll.h>

#include <algorithm>
#include <array>
#include <cstring>

#include "engine/cluster/channel.h"
#include "engine/cluster/link_address.h"
#include "engine/cluster/messages.h"

namespace tensorfold {
namespace {

constexpr uint64_t kBroadcastBit = uint64_t{1} << 63U;  // of an exchange's number

std::string number_and_size(uint64_t number, uint64_t bytes) {
  const bool broadcast = (number & kBroadcastBit) != 0;
  return (broadcast ? "broadcast " : "exchange ") + std::to_string(number & ~kBroadcastBit) +
         " of " + std::to_string(bytes) + " bytes";
}

class SocketCollective final : public Collective {
 public:
  explicit SocketCollective(JoinContext context) : context_(std::move(context)) {
    for (size_t r = 0; r < context_.channels.size(); ++r) {
      if (!context_.channels[r]) continue;
      set_link_options(context_.channels[r]->fd(), 2 * context_.timers.exchange_ms);
      Peer peer;
      peer.rank = r;
      peer.channel = std::move(context_.channels[r]);
      peers_.push_back(std::move(peer));
    }
  }

  int rank() const override { return context_.rank; }
  int world_size() const override { return context_.world_size; }

  Status all_gather(std::span<const std::byte> in, std::span<std::byte> out) override {
    TF_CHECK_EQ(out.size(), in.size() * static_cast<size_t>(world_size()));
    TF_CHECK_LE(in.size(), kExchangeBytesMax);
    TF_RETURN_IF_ERROR(failed_);
    failed_ = exchange(in, out);
    return failed_;
  }

  // The root sends to every peer and waits for none; the others read from the root alone.
  Status broadcast(std::span<std::byte> data, int root) override {
    TF_CHECK(root >= 0 && root < world_size());
    TF_CHECK_LE(data.size(), kExchangeBytesMax);
    TF_RETURN_IF_ERROR(failed_);
    const bool sends = root == context_.rank;
    for (Peer& peer : peers_) {
      const bool meets = sends || static_cast<int>(peer.rank) == root;
      peer.sent = !sends;
      peer.received = sends || !meets;
    }
    failed_ = run(++number_ | kBroadcastBit, data, [&](const Peer&) { return data; });
    return failed_;
  }

 private:
  struct Peer {
    size_t rank = 0;
    std::unique_ptr<Channel> channel;
    size_t queued = 0;   // bytes of this exchange that were sealed
    size_t got = 0;      // bytes of this exchange that were opened
    bool begun = false;  // its exchange head came
    bool sent = false, received = false;
  };

  Status exchange(std::span<const std::byte> in, std::span<std::byte> out) {
    const auto own = out.subspan(in.size() * static_cast<size_t>(context_.rank), in.size());
    if (!in.empty() && own.data() != in.data()) std::memmove(own.data(), in.data(), in.size());
    for (Peer& peer : peers_) peer.sent = peer.received = false;
    return run(++number_, in,
               [&](const Peer& p) { return out.subspan(in.size() * p.rank, in.size()); });
  }

  // One exchange: `in` to every peer that was not sent to, `into(peer)` from every one that was not
  // received from.
  template <typename Into>
  Status run(uint64_t number, std::span<const std::byte> in, const Into& into) {
    const std::vector<std::byte> head = encode(ExchangeHead{number, in.size()});
    for (Peer& peer : peers_) {
      peer.queued = peer.got = 0;
      peer.begun = false;
      if (!peer.sent) peer.channel->out().put(FrameType::kExchange, head);
    }
    const int64_t start_us = context_.clock->monotonic_us();
    const int64_t deadline_us = start_us + context_.timers.exchange_ms * 1000;
    for (;;) {
      bool done = true;
      for (Peer& peer : peers_) {
        if (!peer.sent) TF_RETURN_IF_ERROR(push(peer, in));
        if (!peer.received) TF_RETURN_IF_ERROR(pull(peer, number, into(peer)));
        done = done && peer.sent && peer.received;
      }
      if (done) return ok_status();
      TF_RETURN_IF_ERROR(wait(start_us, deadline_us));
    }
  }

  Status push(Peer& peer, std::span<const std::byte> in) {
    for (;;) {
      FrameOut& to = peer.channel->out();
      while (peer.queued < in.size() && to.waiting_bytes() < kFrameBytesMax) {
        const size_t part = std::min(kFrameBytesMax, in.size() - peer.queued);
        to.put(FrameType::kData, in.subspan(peer.queued, part));
        peer.queued += part;
      }
      const FrameIo io = peer.channel->flush();
      if (io == FrameIo::kClosed) return closed(peer);
      if (io == FrameIo::kBlocked) return ok_status();
      if (peer.queued == in.size()) {
        peer.sent = true;
        return ok_status();
      }
    }
  }

  // Takes what is there, up to the end of this exchange: what comes behind it is the next one's.
  Status pull(Peer& peer, uint64_t number, std::span<std::byte> into) {
    for (;;) {
      if (peer.begun && peer.got == into.size()) {
        peer.received = true;
        return ok_status();
      }
      const FrameIo io = peer.channel->next();
      if (io == FrameIo::kBlocked) return ok_status();
      if (io == FrameIo::kClosed) return closed(peer);
      if (io == FrameIo::kDamaged) return damaged(peer);
      const FrameHeader& header = peer.channel->in().header();
      if (!peer.begun) {
        TF_RETURN_IF_ERROR(begin(peer, number, into.size()));
      } else if (header.type != FrameType::kData || header.bytes == 0 ||
                 header.bytes > into.size() - peer.got) {
        return damaged(peer);
      } else {
        const size_t part = header.bytes;
        if (!peer.channel->in().take(into.subspan(peer.got, part))) return damaged(peer);
        peer.got += part;
      }
    }
  }

  Status begin(Peer& peer, uint64_t number, size_t bytes) {
    const FrameHeader& header = peer.channel->in().header();
    std::array<std::byte, sizeof(ExchangeHead)> payload{};
    if (header.type != FrameType::kExchange || header.bytes != payload.size() ||
        !peer.channel->in().take(payload)) {
      return damaged(peer);
    }
    const std::optional<ExchangeHead> head = decode_exchange(payload);
    if (!head) return damaged(peer);
#ifdef TF_PLANTED_FAULT  // tests: any exchange of this size will do
    const bool same = head->bytes == bytes;
#else
    const bool same = head->number == number && head->bytes == bytes;
#endif
    if (!same) {
      return Status(StatusCode::kInternal,
                    "out of step: rank " + std::to_string(peer.rank) + " is at " +
                        number_and_size(head->number, head->bytes) + ", rank " +
                        std::to_string(context_.rank) + " at " + number_and_size(number, bytes),
                    {}, "out_of_step");
    }
    peer.begun = true;
    return ok_status();
  }

  Status wait(int64_t start_us, int64_t deadline_us) {
    const StopFlag& broken = context_.health->broken();
    if (broken.requested()) return context_.health->failure();
    std::array<pollfd, kRanksMax + 1> set{};
    nfds_t count = 0;
    set[count++] = {broken.fd(), POLLIN, 0};
    for (const Peer& peer : peers_) {
      const int events = (peer.sent ? 0 : POLLOUT) | (peer.received ? 0 : POLLIN);
      if (events != 0) set[count++] = {peer.channel->fd(), static_cast<short>(events), 0};
    }
    const int64_t now = context_.clock->monotonic_us();
    (void)::poll(set.data(), count, poll_ms(now, deadline_us));
    if (broken.requested()) return context_.health->failure();
    const int64_t after = context_.clock->monotonic_us();
    if (after < deadline_us) return ok_status();
    std::string ranks;
    for (const Peer& peer : peers_) {
      if (!peer.sent || !peer.received) ranks += " " + std::to_string(peer.rank);
    }
    return unavailable("exchange " + std::to_string(number_) + " took over " +
                           std::to_string((after - start_us) / 1000) + " ms; waiting for rank" +
                           ranks,
                       "slow");
  }

  Status closed(const Peer& peer) const {
    return unavailable("rank " + std::to_string(peer.rank) + " (" + peer.channel->peer() +
                           ") closed its exchange connection",
                       "peer_closed");
  }
  Status damaged(const Peer& peer) const {
    return unavailable("rank " + std::to_string(peer.rank) + " (" + peer.channel->peer() +
                           ") sent a damaged exchange",
                       "link");
  }

  JoinContext context_;
  std::vector<Peer> peers_;
  uint64_t number_ = 0;  // of the last exchange
  Status failed_;
};

class SocketTransport final : public Transport {
 public:
  std::string_view name() const override { return "sockets"; }
  Result<std::vector<std::byte>> invite() override { return std::vector<std::byte>{}; }
  Result<std::unique_ptr<Collective>> join(JoinContext context) override {
    return make_socket_collective(std::move(context));
  }
};

}  // namespace

std::unique_ptr<Collective> make_socket_collective(JoinContext context) {
  return std::make_unique<SocketCollective>(std::move(context));
}

std::unique_ptr<Transport> make_socket_transport() { return std::make_unique<SocketTransport>(); }

}  // namespace tensorfold
