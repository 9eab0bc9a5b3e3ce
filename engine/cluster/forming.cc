// Common parts of forming; checks of the options. Owner: see the header.
#include "engine/cluster/forming.h"

#include "engine/cluster/handshake.h"
#include "engine/cluster/link_key.h"

namespace tensorfold {
namespace {

std::span<const std::byte> bytes_of(const std::string& text) {
  return std::as_bytes(std::span(text.data(), text.size()));
}

Status check_options(const GroupOptions& o) {
  if (o.world_size < 2 || o.world_size > kRanksMax)
    return invalid_argument("cluster.world_size: " + std::to_string(o.world_size) +
                            " is not between 2 and " + std::to_string(kRanksMax));
  if (o.rank < 0 || o.rank >= o.world_size)
    return invalid_argument("cluster.rank: " + std::to_string(o.rank) + " of " +
                            std::to_string(o.world_size) + " ranks");
  for (const auto& [name, port] :
       {std::pair("cluster.link_port", o.link_port), std::pair("cluster.head", o.head_port)}) {
    if (port < 0 || port > 65535)
      return invalid_argument(std::string(name) + ": port " + std::to_string(port));
  }
  if (o.key.size() < kLinkKeyBytesLeast || o.key.size() > kLinkKeyBytesMax)
    return invalid_argument("cluster.key_file: the key has " + std::to_string(o.key.size()) +
                            " bytes, not " + std::to_string(kLinkKeyBytesLeast) + " to " +
                            std::to_string(kLinkKeyBytesMax));
  return check_fields("fingerprint", o.fingerprint);
}

}  // namespace

Result<std::unique_ptr<GroupFormer>> GroupFormer::create(GroupOptions options, Transport& transport,
                                                         LogSink& log, const Clock& clock) {
  TF_RETURN_IF_ERROR(check_options(options));
  TF_ASSIGN_OR_RETURN(
      const LinkAddress link,
      LinkAddress::parse("cluster.link_address", options.link_address, options.link_port));
  LinkAddress head;
  if (options.rank != 0) {
    TF_ASSIGN_OR_RETURN(
        head, LinkAddress::parse("cluster.head", options.head_address, options.head_port));
    if (head.raw()->sa_family != link.raw()->sa_family)
      return invalid_argument("cluster.head: not of the same family as cluster.link_address");
  }
  FormerBase base{std::move(options), link, transport, log, clock, random_u64(), nullptr};
  const Status opened = base.open_gate();
  if (!opened.ok() && opened.code() != StatusCode::kUnavailable) return opened;
  const bool is_head = base.options.rank == 0;
  return is_head ? make_head_former(std::move(base)) : make_worker_former(std::move(base), head);
}

Status FormerBase::open_gate() {
  if (!listens() || gate) return ok_status();
  TF_ASSIGN_OR_RETURN(
      gate, LinkGate::open(link, {options.key, options.protocol, options.timers, options.rank}, log,
                           clock));
  log.info("link: listening on " + link.with_port(gate->port()).text());
  return ok_status();
}

JoinRequest FormerBase::request(ChannelUse use, uint64_t generation) const {
  JoinRequest out;
  out.use = use;
  out.rank = static_cast<uint32_t>(options.rank);
  out.world_size = static_cast<uint32_t>(options.world_size);
  out.generation = generation;
  out.instance = instance;
  if (use != ChannelUse::kControl) return out;
  if (gate) {
    out.listen_address = link.host();
    out.listen_port = static_cast<uint16_t>(gate->port());
  }
  out.fingerprint = options.fingerprint;
  return out;
}

Result<std::unique_ptr<Channel>> FormerBase::call(const LinkAddress& to, ChannelUse use,
                                                  uint64_t generation, int64_t answer_ms,
                                                  const StopFlag& stop) {
  TF_ASSIGN_OR_RETURN(Fd fd, connect_to(link, to, wait_ms(options.timers.connect_ms, stop)));
  set_link_options(fd.get(), options.timers.handshake_ms);
  const LinkWait wait = wait_ms(options.timers.handshake_ms, stop);
  TF_ASSIGN_OR_RETURN(
      std::unique_ptr<Channel> channel,
      prove_to(std::move(fd), to.text(), bytes_of(options.key), options.protocol, wait));
  if (channel->peer_protocol() != options.protocol)
    return unavailable("link protocol: " + to.text() + " has '" +
                           std::to_string(channel->peer_protocol()) + "', this rank has '" +
                           std::to_string(options.protocol) + "'",
                       "refused");
  Status io = channel->send(FrameType::kJoin, encode(request(use, generation)), wait);
  if (!io.ok()) return io.with_context("joining " + to.text());
  Result<Frame> answer = channel->receive(wait_ms(answer_ms, stop));
  if (!answer.ok()) return answer.status().with_context("joining " + to.text());
  if (answer->header.type == FrameType::kWelcome) return channel;
  const auto refusal =
      answer->header.type == FrameType::kRefusal ? decode_refusal(answer->payload) : std::nullopt;
  if (!refusal) return data_loss("an answer of " + to.text() + " can't be read");
  return unavailable(to.text() + " refused: " + refusal->text(), "refused");
}

void refuse(Channel& channel, const Refusal& why) {
  channel.out().put(FrameType::kRefusal, encode(why));
  (void)channel.flush();  // small, on a new connection: taken at once, or nobody is there
}

bool welcome(Channel& channel) {
  channel.out().put(FrameType::kWelcome, {});
  return channel.flush() == FrameIo::kReady;
}

Mesh::Mesh(int rank, int world_size, uint64_t generation)
    : heartbeats(static_cast<size_t>(world_size)),
      exchanges(static_cast<size_t>(world_size)),
      rank_(rank),
      generation_(generation) {}

bool Mesh::complete() const {
  for (size_t r = 0; r < heartbeats.size(); ++r) {
    if (static_cast<int>(r) != rank_ && (!heartbeats[r] || !exchanges[r])) return false;
  }
  return true;
}

void Mesh::add(int rank, ChannelUse use, std::unique_ptr<Channel> channel) {
  auto& places = use == ChannelUse::kHeartbeat ? heartbeats : exchanges;
  places[static_cast<size_t>(rank)] = std::move(channel);
}

std::string Mesh::answer(GateCaller caller) {
  if (!caller.channel) return caller.notice;
  const JoinRequest& r = caller.request;
  std::string wrong;
  if (r.use == ChannelUse::kControl) {
    wrong = rank_ == 0 ? "the group is complete and being connected"
                       : "this is rank " + std::to_string(rank_) + ", not the head";
  } else if (r.generation != generation_) {
    wrong = "a connection of another generation of the group";
  } else if (r.rank >= heartbeats.size() || static_cast<int>(r.rank) <= rank_) {
    wrong = "rank " + std::to_string(r.rank) + " does not connect to rank " + std::to_string(rank_);
  } else if ((r.use == ChannelUse::kHeartbeat ? heartbeats : exchanges)[r.rank]) {
    wrong = "rank " + std::to_string(r.rank) + " has this connection already";
  }
  if (wrong.empty()) {
    if (welcome(*caller.channel)) add(static_cast<int>(r.rank), r.use, std::move(caller.channel));
    return {};
  }
  refuse(*caller.channel, {wrong, {}});
  return caller.channel->peer() + " was refused: " + wrong;
}

Result<GroupParts> join_transport(FormerBase& base, Mesh& mesh,
                                  std::span<const std::byte> invitation, int64_t deadline_us,
                                  const StopFlag& stop) {
  GroupParts parts;
  parts.rank = base.options.rank;
  parts.world_size = base.options.world_size;
  parts.timers = base.options.timers;
  parts.clock = &base.clock;
  parts.health = std::make_shared<GroupHealth>();
  parts.controls.resize(static_cast<size_t>(parts.world_size));
  JoinContext context;
  context.rank = parts.rank;
  context.world_size = parts.world_size;
  context.invitation = invitation;
  context.channels = std::move(mesh.exchanges);
  context.timers = parts.timers;
  context.deadline_us = deadline_us;
  context.stop = &stop;
  context.health = parts.health;
  context.clock = &base.clock;
  Result<std::unique_ptr<Collective>> made = base.transport.join(std::move(context));
  if (!made.ok()) return made.status().with_context(base.transport.name());
  parts.collective = std::move(made).value();
  parts.heartbeats = std::move(mesh.heartbeats);
  return parts;
}

}  // namespace tensorfold
