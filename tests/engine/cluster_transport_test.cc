// Which transport ranks get: by their device, and as cluster.transport says; what of it must be
// equal on all ranks; and one line when NCCL is wanted and is not there.
#include "engine/cluster_transport.h"

#include <boost/test/unit_test.hpp>
#include <cstdlib>

using namespace tensorfold;

namespace {

EngineOptions options_of(const char* transport) {
  EngineOptions options;
  options.cluster.role = ClusterOptions::Role::kHead;
  options.cluster.world_size = 2;
  options.cluster.transport = transport;
  return options;
}

std::string field(const TransportChoice& choice, const std::string& name) {
  for (const auto& [n, value] : choice.fingerprint)
    if (n == name) return value;
  return "(none)";
}

}  // namespace

BOOST_AUTO_TEST_CASE(ranks_on_cpus_use_sockets) {
  for (const char* said : {"auto", "sockets", ""}) {
    const auto choice = choose_transport(options_of(said), cpu_device());
    BOOST_REQUIRE(choice.ok());
    BOOST_TEST(choice->transport->name() == "sockets");
    BOOST_TEST(field(*choice, "transport") == "sockets");
    BOOST_TEST(field(*choice, "NCCL library") == "(none)");
  }
  const auto refused = choose_transport(options_of("nccl"), cpu_device());
  BOOST_TEST((refused.status().code() == StatusCode::kInvalidArgument));
  BOOST_TEST(refused.status().message().find("cpu") != std::string::npos);
}

BOOST_AUTO_TEST_CASE(ranks_on_other_devices_use_nccl) {
  (void)::setenv("TENSORFOLD_CUDA_LIBRARY", TF_HOST_DEVICE_LIBRARY, 1);
  const auto opened = open_device("cuda");
  BOOST_REQUIRE_MESSAGE(opened.ok(), opened.status().message());
  const std::shared_ptr<Device> device = *opened;
  (void)::setenv("TENSORFOLD_NCCL_LIBRARY", TF_FAKE_NCCL, 1);
  (void)::setenv("NCCL_ALGO", "Ring", 1);
  for (const char* said : {"auto", "nccl"}) {
    const auto choice = choose_transport(options_of(said), *device);
    BOOST_REQUIRE_MESSAGE(choice.ok(), choice.status().message());
    BOOST_TEST(choice->transport->name() == "NCCL");
    BOOST_TEST(field(*choice, "NCCL library").starts_with("2.28.9 sha256:"));
    BOOST_TEST(field(*choice, "NCCL settings").find("NCCL_ALGO=Ring") != std::string::npos);
  }
  BOOST_TEST(choose_transport(options_of("sockets"), *device)->transport->name() == "sockets");
  (void)::setenv("TENSORFOLD_NCCL_LIBRARY", "/nowhere/libnccl.so.2", 1);
  const Status gone = choose_transport(options_of("auto"), *device).status();
  BOOST_TEST((gone.code() == StatusCode::kUnavailable));
  BOOST_TEST(gone.message().find("/nowhere/libnccl.so.2") != std::string::npos);
  BOOST_TEST(gone.message().find("cluster.transport") != std::string::npos);
}
