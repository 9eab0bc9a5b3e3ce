// Collective over sockets: one proven connection to each peer, any number of ranks.
//
// An exchange: every rank sends {its number, its size} and its bytes to every peer, and reads the
// same from every peer, all at once (non-blocking, one poll over all), so no order of ranks can
// make a deadlock. A number or size that differs means that ranks are out of step: an error on both
// that names both, never another exchange's bytes. A broadcast is an exchange, too, in which one
// rank sends and the others read. Owner: the engine thread. Errors are for good.
// Deliberately without an algorithm for many ranks: with 2 to 4 of them, each pair directly is the
// shortest way.
#pragma once

#include <memory>

#include "engine/cluster/transport.h"

namespace tensorfold {

inline constexpr size_t kExchangeBytesMax = size_t{1} << 30;  // of one rank in one exchange

std::unique_ptr<Collective> make_socket_collective(JoinContext context);

}  // namespace tensorfold
