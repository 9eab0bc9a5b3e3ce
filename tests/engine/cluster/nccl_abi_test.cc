// engine/cluster/nccl/nccl_abi.h beside NCCL's own header, where that is: sizes, places of fields
// and numbers. Without it the test says that it is skipped. Also the real library, where it is: it
// opens, and takes our configuration.
#include "engine/cluster/nccl/nccl_abi.h"

#include <boost/test/unit_test.hpp>

#include "engine/cluster/nccl/nccl_library.h"

#if __has_include(<nccl.h>) && __has_include(<cuda_runtime.h>)
#define TF_HAVE_NCCL_HEADER
#include <nccl.h>
#endif

using namespace tensorfold;

BOOST_AUTO_TEST_CASE(as_in_the_header) {
#ifdef TF_HAVE_NCCL_HEADER
  static_assert(sizeof(NcclId) == sizeof(ncclUniqueId));
  static_assert(int{kNcclSuccess} == int{ncclSuccess});
  static_assert(int{kNcclInternalError} == int{ncclInternalError});
  static_assert(int{kNcclRemoteError} == int{ncclRemoteError});
  static_assert(int{kNcclInProgress} == int{ncclInProgress});
  static_assert(kNcclByteType == int{ncclUint8});
  static_assert(sizeof(NcclCode) == sizeof(ncclResult_t));
  static_assert(sizeof(NcclConfig) <= sizeof(ncclConfig_t));
  static_assert(offsetof(NcclConfig, size) == offsetof(ncclConfig_t, size));
  static_assert(offsetof(NcclConfig, magic) == offsetof(ncclConfig_t, magic));
  static_assert(offsetof(NcclConfig, version) == offsetof(ncclConfig_t, version));
  static_assert(offsetof(NcclConfig, blocking) == offsetof(ncclConfig_t, blocking));
  static_assert(offsetof(NcclConfig, cga_cluster_size) == offsetof(ncclConfig_t, cgaClusterSize));
  static_assert(offsetof(NcclConfig, min_ctas) == offsetof(ncclConfig_t, minCTAs));
  static_assert(offsetof(NcclConfig, max_ctas) == offsetof(ncclConfig_t, maxCTAs));
  static_assert(offsetof(NcclConfig, net_name) == offsetof(ncclConfig_t, netName));
  static_assert(offsetof(NcclConfig, split_share) == offsetof(ncclConfig_t, splitShare));
  const ncclConfig_t theirs = NCCL_CONFIG_INITIALIZER;
  BOOST_TEST(theirs.magic == kNcclConfigMagic);
  BOOST_TEST(theirs.blocking == NcclConfig{}.blocking);
#else
  BOOST_TEST_MESSAGE("skipped: NCCL's header is not there");
#endif
}

BOOST_AUTO_TEST_CASE(the_library_itself) {
  const auto nccl = open_nccl();
  if (!nccl.ok()) {
    BOOST_TEST_MESSAGE("skipped: " << nccl.status().message());
    return;
  }
  BOOST_TEST_MESSAGE((*nccl)->identity);
  // Without a GPU a communicator can't be made; a wrong configuration is another error.
  NcclId id{};
  if ((*nccl)->get_unique_id(&id) != kNcclSuccess) return;
  NcclConfig config;
  config.blocking = 0;
  config.magic = 0;
  NcclComm comm = nullptr;
  const NcclCode wrong = (*nccl)->init_rank(&comm, 1, id, 0, &config);
  BOOST_TEST((wrong != kNcclSuccess && wrong != kNcclInProgress));
}
