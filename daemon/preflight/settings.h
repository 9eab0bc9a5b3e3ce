// What the checks need of the service's settings, taken from them.
#pragma once

#include <string>

#include "daemon/config/config.h"
#include "daemon/preflight/check.h"

namespace tensorfold::preflight {

Settings settings_from(const config::Config& config, const std::string& config_file);

}  // namespace tensorfold::preflight
