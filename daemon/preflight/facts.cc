#include "daemon/preflight/facts.h"

#include <openssl/evp.h>

#include <array>
#include <set>

#include "daemon/preflight/link.h"
#include "daemon/preflight/text.h"

namespace tensorfold::preflight {
namespace {

constexpr int64_t kHeaderBytesMax = int64_t{128} << 20;

class Digest {
 public:
  Digest() : context_(EVP_MD_CTX_new()) {
    TF_CHECK(context_ != nullptr && EVP_DigestInit_ex(context_, EVP_sha256(), nullptr) == 1);
  }
  ~Digest() { EVP_MD_CTX_free(context_); }
  Digest(const Digest&) = delete;
  Digest& operator=(const Digest&) = delete;
  // With its length, so that parts do not run into each other.
  void add(const std::string& part) {
    const std::string length = std::to_string(part.size()) + ":";
    TF_CHECK(EVP_DigestUpdate(context_, length.data(), length.size()) == 1);
    TF_CHECK(EVP_DigestUpdate(context_, part.data(), part.size()) == 1);
  }
  std::string hex() {
    std::array<unsigned char, EVP_MAX_MD_SIZE> bytes = {};
    unsigned int count = 0;
    TF_CHECK(EVP_DigestFinal_ex(context_, bytes.data(), &count) == 1);
    std::string out;
    for (unsigned int i = 0; i < count; ++i) {
      out += "0123456789abcdef"[bytes[i] >> 4];
      out += "0123456789abcdef"[bytes[i] & 15];
    }
    return out;
  }

 private:
  EVP_MD_CTX* context_;
};

// The header of a safetensors file, or what there is of it.
std::string header_of(const Machine& machine, const std::string& path) {
  std::string head = machine.read_head(path, 8).value_or("");
  if (head.size() < 8) return head;
  uint64_t length = 0;
  for (size_t i = 8; i-- > 0;) length = length << 8 | static_cast<unsigned char>(head[i]);
  if (length > static_cast<uint64_t>(kHeaderBytesMax)) return head;
  return machine.read_head(path, 8 + static_cast<int64_t>(length)).value_or("");
}

void add_folder(const Machine& machine, const std::string& folder, Digest& digest) {
  for (const std::string& name : machine.list(folder)) {
    const std::string path = concat({folder, "/", name});
    if (name.ends_with(".safetensors")) {
      digest.add(name);
      digest.add(std::to_string(machine.file_bytes(path).value_or(-1)));
      digest.add(header_of(machine, path));
    } else if (name == "config.json" || name == "tokenizer.json" ||
               name == "model.safetensors.index.json") {
      digest.add(name);
      digest.add(machine.read(path).value_or(""));
    }
  }
}

}  // namespace

std::string nccl_version(const Machine& machine) {
  constexpr std::string_view kStart = "libnccl.so.";
  for (const char* folder : {"/usr/lib/aarch64-linux-gnu/", "/usr/lib/x86_64-linux-gnu/",
                             "/usr/local/lib/", "/usr/lib/tensorfoldd/"}) {
    const std::string target = machine.link(folder + std::string(kStart) + "2");
    const std::string name = target.substr(target.rfind('/') + 1);
    if (starts_with(name, kStart)) return name.substr(kStart.size());
  }
  return "";
}

std::string link_firmware(const Machine& machine) {
  std::set<std::string> seen;
  for (const RdmaPort& port : rdma_ports(machine)) {
    const std::string version = machine.line("/sys/class/infiniband/" + port.device + "/fw_ver");
    if (!version.empty()) seen.insert(version);
  }
  return join({seen.begin(), seen.end()}, ", ");
}

std::string weights_fingerprint(const Machine& machine, const Settings& settings) {
  if (settings.model_path.empty()) return "";
  Digest digest;
  add_folder(machine, settings.model_path, digest);
  if (!settings.engram_path.empty() && settings.engram_path != settings.model_path) {
    add_folder(machine, settings.engram_path, digest);
  }
  return digest.hex();
}

std::vector<LinkEnd> link_ends(const Machine& machine) {
  std::vector<LinkEnd> out;
  for (const RdmaPort& port : rdma_ports(machine)) {
    if (!port.active() || port.netdev.empty()) continue;
    for (const Interface& interface : machine.interfaces()) {
      if (interface.name != port.netdev) continue;
      const auto mtu = to_int(machine.line("/sys/class/net/" + port.netdev + "/mtu"));
      out.push_back({port.netdev, interface.address, interface.prefix, mtu.value_or(0)});
    }
  }
  return out;
}

Json machine_json(const Context& context) {
  const Machine& machine = context.machine;
  Json::Array links;
  for (const LinkEnd& end : link_ends(machine)) {
    links.push_back(Json::object({{"interface", Json::string(end.netdev)},
                                  {"address", Json::string(end.address)},
                                  {"prefix", Json::integer(end.prefix)},
                                  {"mtu", Json::integer(end.mtu)}}));
  }
  return Json::object({{"version", Json::string(context.settings.version)},
                       {"kernel", Json::string(machine.line("/proc/sys/kernel/osrelease"))},
                       {"driver", Json::string(driver_version(machine))},
                       {"nccl", Json::string(nccl_version(machine))},
                       {"firmware", Json::string(link_firmware(machine))},
                       {"weights", Json::string(weights_fingerprint(machine, context.settings))},
                       {"links", Json::array(std::move(links))},
                       {"unix_ms", Json::integer(machine.unix_ms())},
                       {"spark", Json::boolean(context.spark)}});
}

std::vector<LinkEnd> link_ends_of(const Json& machine) {
  std::vector<LinkEnd> out;
  const Json* links = machine.find("links");
  if (links == nullptr || !links->is_array()) return out;
  for (const Json& row : links->as_array()) {
    const Json *netdev = row.find("interface"), *address = row.find("address"),
               *prefix = row.find("prefix"), *mtu = row.find("mtu");
    const bool good = netdev != nullptr && netdev->is_string() && address != nullptr &&
                      address->is_string() && prefix != nullptr && prefix->is_int() &&
                      mtu != nullptr && mtu->is_int();
    if (!good || !ipv4(address->as_string())) continue;
    out.push_back({netdev->as_string(), address->as_string(),
                   static_cast<int>(prefix->as_int64().value_or(32)), mtu->as_int64().value_or(0)});
  }
  return out;
}

}  // namespace tensorfold::preflight
