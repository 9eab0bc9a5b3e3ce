// What the [cluster] settings make of this process: what the engine is told, and how a rank ends.
// Pure.
#pragma once

#include "daemon/config/config.h"
#include "engine/engine.h"

namespace tensorfold {

// Of settings that check_config() took.
ClusterOptions cluster_options_of(const config::Config& config);

// Whether this rank may end without cutting a reply: a worker's head has replies of its own.
bool may_end(const ClusterOptions& options, const EngineStats& stats);
// Its STATUS line, when the ranks of the model are not together; a worker is ready then, too.
std::string waiting_text(const EngineStats& stats);

}  // namespace tensorfold
