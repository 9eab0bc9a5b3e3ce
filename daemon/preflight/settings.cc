#include "daemon/preflight/settings.h"

namespace tensorfold::preflight {

Settings settings_from(const config::Config& config, const std::string& config_file) {
  Settings out;
  out.version = TF_VERSION;
  out.config_file = config_file;
  out.listen = config.http_listen;
  out.device = config.engine_device;
  out.model_path = config.model_path;
  out.engram_path = config.model_engram_path;
  out.prepared_path = config.model_prepared_path;
  out.role = config.cluster_role;
  out.link_address = config.cluster_link_address;
  out.link_port = config.cluster_link_port;
  return out;
}

}  // namespace tensorfold::preflight
