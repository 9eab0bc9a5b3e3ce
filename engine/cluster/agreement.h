// What ranks agree on before a step's first model exchange: two words each, gathered from all.
// Owner: the engine thread, at the same place of the step on every rank.
// Deliberately does not say what the words mean: engine/group does.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "engine/base/status.h"
#include "engine/cluster/collective.h"

namespace tensorfold {

using AgreementWords = std::array<uint64_t, 2>;  // e.g. {digest of the plan, failed requests}

// By rank, this one included.
Result<std::vector<AgreementWords>> gather_words(Collective& collective,
                                                 const AgreementWords& mine);

}  // namespace tensorfold
