// NCCL's settings: found by the link's address, both rails of a port, no index, no NVLS whatever
// the environment says, and the user's word kept and told.
#include "engine/cluster/nccl_environment.h"

#include <boost/test/unit_test.hpp>
#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "tests/temp_folder.h"

using namespace tensorfold;

namespace {

namespace fs = std::filesystem;

// sysfs of a machine with two ports, each two PCI functions in two domains.
void make_machine(const TempFolder& folder) {
  struct Function {
    const char *rdma, *pci, *net, *state;
  };
  for (const Function& f :
       {Function{"rocep1s0f0", "0000:01:00.0", "enp1s0f0np0", "1: DOWN"},
        Function{"rocep1s0f1", "0000:01:00.1", "enp1s0f1np1", "4: ACTIVE"},
        Function{"roceP2p1s0f0", "0002:01:00.0", "enP2p1s0f0np0", "1: DOWN"},
        Function{"roceP2p1s0f1", "0002:01:00.1", "enP2p1s0f1np1", "4: ACTIVE"}}) {
    const fs::path device = folder.path(std::string("sys/devices/") + f.pci);
    fs::create_directories(device / "net" / f.net);
    const fs::path rdma = folder.path(std::string("sys/class/infiniband/") + f.rdma);
    fs::create_directories(rdma / "ports/1");
    std::ofstream(rdma / "ports/1/state") << f.state << "\n";
    fs::create_directory_symlink(device, rdma / "device");
  }
}

std::string value_of(const NcclPlan& plan, const std::string& name) {
  for (const auto& [n, value] : plan.set) {
    if (n == name) return value;
  }
  return "(not set)";
}

bool warns(const NcclPlan& plan, const std::string& part) {
  for (const std::string& line : plan.warnings) {
    if (line.find(part) != std::string::npos) return true;
  }
  return false;
}

}  // namespace

BOOST_AUTO_TEST_CASE(both_rails_of_the_port_with_the_links_address) {
  const TempFolder folder;
  make_machine(folder);
  const NcclHost host = nccl_host_of("enp1s0f1np1", folder.path());
  BOOST_TEST((host.rdma == std::vector<std::string>{"rocep1s0f1", "roceP2p1s0f1"}));
  // The twin of a port without a link is down: it is left out. An interface without RDMA has none.
  BOOST_TEST(
      (nccl_host_of("enp1s0f0np0", folder.path()).rdma == std::vector<std::string>{"rocep1s0f0"}));
  BOOST_TEST(nccl_host_of("eth0", folder.path()).rdma.empty());
  BOOST_TEST(nccl_host_of("eth0", folder.path("nowhere")).rdma.empty());
  const NcclPlan plan = plan_nccl({{"PATH", "/bin"}}, host);
  BOOST_TEST(value_of(plan, "NCCL_IB_HCA") == "=rocep1s0f1,roceP2p1s0f1");
  BOOST_TEST(value_of(plan, "NCCL_SOCKET_IFNAME") == "=enp1s0f1np1");
  BOOST_TEST(value_of(plan, "NCCL_SOCKET_FAMILY") == "AF_INET");
  BOOST_TEST(value_of(plan, "NCCL_IB_ROCE_VERSION_NUM") == "2");
  BOOST_TEST(value_of(plan, "NCCL_IB_GID_INDEX") == "(not set)");
  BOOST_TEST(value_of(plan, "NCCL_BUFFSIZE") == "(not set)");
  BOOST_TEST(plan.warnings.empty());
}

BOOST_AUTO_TEST_CASE(nvls_is_off_whatever_the_environment_says) {
  for (const char* value : {"", "0", "1", "2"}) {
    const NcclPlan plan = plan_nccl({{"NCCL_NVLS_ENABLE", value}}, {});
    BOOST_TEST(value_of(plan, "NCCL_NVLS_ENABLE") == "0");
    BOOST_TEST(plan.kept.empty());
  }
  BOOST_TEST(value_of(plan_nccl({}, {}), "NCCL_NVLS_ENABLE") == "0");
  BOOST_TEST(warns(plan_nccl({{"NCCL_NVLS_ENABLE", "1"}}, {}), "NCCL_NVLS_ENABLE=1"));
}

BOOST_AUTO_TEST_CASE(the_users_word_is_kept_and_told) {
  NcclHost host;
  host.interface = "eth1";
  host.six = true;
  host.rdma = {"mlx5_0", "mlx5_1"};
  host.confs = {"/etc/nccl.conf"};
  const NcclPlan plan = plan_nccl({{"NCCL_IB_HCA", "=mlx5_0"},
                                   {"NCCL_IB_GID_INDEX", "3"},
                                   {"NCCL_SOCKET_IFNAME", ""},
                                   {"NCCL_DEBUG", "INFO"}},
                                  host);
  BOOST_TEST(value_of(plan, "NCCL_IB_HCA") == "(not set)");
  BOOST_TEST(value_of(plan, "NCCL_SOCKET_IFNAME") == "=eth1");
  BOOST_TEST(value_of(plan, "NCCL_SOCKET_FAMILY") == "AF_INET6");
  BOOST_TEST((plan.unset == std::vector<std::string>{"NCCL_SOCKET_IFNAME"}));
  BOOST_TEST(plan.kept.size() == 3U);
  BOOST_TEST(warns(plan, "NCCL_IB_GID_INDEX=3 is fixed"));
  BOOST_TEST(warns(plan, "NCCL_SOCKET_IFNAME is set to nothing"));
  BOOST_TEST(warns(plan, "leaves out mlx5_1: both rails are =mlx5_0,mlx5_1"));
  BOOST_TEST(warns(plan, "/etc/nccl.conf"));
}

BOOST_AUTO_TEST_CASE(the_interface_is_found_by_address_and_the_plan_applied) {
  const auto host = find_nccl_host("127.0.0.1");
  BOOST_REQUIRE_MESSAGE(host.ok(), host.status().to_string());
  BOOST_TEST(host->interface == "lo");
  BOOST_TEST((find_nccl_host("192.0.2.77").status().code() == StatusCode::kNotFound));
  BOOST_TEST((find_nccl_host("spark").status().code() == StatusCode::kInvalidArgument));
  (void)::setenv("NCCL_IB_GID_INDEX", "", 1);
  (void)::setenv("NCCL_NVLS_ENABLE", "1", 1);
  apply_nccl(plan_nccl({{"NCCL_IB_GID_INDEX", ""}, {"NCCL_NVLS_ENABLE", "1"}}, *host), null_log());
  BOOST_TEST(std::getenv("NCCL_IB_GID_INDEX") == nullptr);
  BOOST_TEST(std::string(std::getenv("NCCL_NVLS_ENABLE")) == "0");
  BOOST_TEST(std::string(std::getenv("NCCL_SOCKET_IFNAME")) == "=lo");
}

BOOST_AUTO_TEST_CASE(what_ranks_must_agree_on_is_without_a_machines_own_names) {
  BOOST_TEST(nccl_settings({{"NCCL_PROTO", "Simple"},
                            {"NCCL_ALGO", "Ring"},
                            {"NCCL_BUFFSIZE", ""},
                            {"NCCL_IB_HCA", "=mlx5_0"},
                            {"NCCL_DEBUG", "INFO"},
                            {"HOME", "/root"}}) == "NCCL_ALGO=Ring NCCL_PROTO=Simple");
}

BOOST_AUTO_TEST_CASE(without_the_address_only_multicast_is_settled) {
  const NcclPlan plan = plan_nccl({}, NcclHost{});
  BOOST_TEST(value_of(plan, "NCCL_NVLS_ENABLE") == "0");
  BOOST_TEST(plan.set.size() == 1U);
}
