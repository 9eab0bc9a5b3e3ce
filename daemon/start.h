// What a start decides before any socket is open: model folder, engine options, API options.
#pragma once

#include <string>

#include "daemon/api/api.h"
#include "daemon/command_line.h"
#include "daemon/http/limits.h"
#include "engine/engine.h"

namespace tensorfold {

struct Start {
  config::Config config;
  CommandLine line;  // with the settings file that is in use; for a reload
  std::string model_path, model_name;
  std::string control_path;
  int listen_fd = -1;  // of the service manager, for the API; -1: http.listen is opened
  EngineOptions engine;
  api::ApiOptions api;
  http::Limits limits;
};

// A status of code kIo or kInvalidArgument; the message names key, file or folder.
Result<Start> prepare_start(const CommandLine& line, const config::Config& config);

// The parts of `api` that a reload may change.
Result<api::ApiOptions> api_options_of(const config::Config& config, const std::string& model_name);

// Where the embedded model is: installed, or in the source tree that this was built from.
Result<std::string> embedded_model_path();

}  // namespace tensorfold
