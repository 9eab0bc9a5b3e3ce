// The cluster's part of GET /status: every rank, as it tells of itself. Pure.
#pragma once

#include "daemon/api/json_out.h"
#include "engine/engine.h"

namespace tensorfold::control {

// The member "cluster"; nothing for a process that has the whole model.
void put_cluster(api::JsonOut& json, const EngineStats& stats);

}  // namespace tensorfold::control
