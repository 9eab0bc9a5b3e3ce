// Loading NCCL. Owner: see the header.
#include "engine/cluster/nccl/nccl_library.h"

#include <dlfcn.h>
#include <openssl/evp.h>

#include <array>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <vector>

namespace tensorfold {
namespace {

std::string sha256_of_file(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) return {};
  const std::unique_ptr<EVP_MD_CTX, decltype(&EVP_MD_CTX_free)> context(EVP_MD_CTX_new(),
                                                                        &EVP_MD_CTX_free);
  TF_CHECK(context != nullptr && EVP_DigestInit_ex(context.get(), EVP_sha256(), nullptr) == 1);
  std::vector<char> part(size_t{1} << 20U);
  while (file.read(part.data(), static_cast<std::streamsize>(part.size())) || file.gcount() > 0)
    TF_CHECK(EVP_DigestUpdate(context.get(), part.data(), static_cast<size_t>(file.gcount())) == 1);
  std::array<unsigned char, 32> digest{};
  unsigned int length = 0;
  TF_CHECK(EVP_DigestFinal_ex(context.get(), digest.data(), &length) == 1);
  std::string hex;
  for (const unsigned char byte : digest) {
    std::array<char, 3> two{};
    (void)std::snprintf(two.data(), two.size(), "%02x", byte);
    hex += two.data();
  }
  return hex;
}

template <typename F>
bool take(void* library, const char* name, F& function) {
  function = reinterpret_cast<F>(::dlsym(library, name));
  return function != nullptr;
}

}  // namespace

Result<std::shared_ptr<const NcclLibrary>> open_nccl() {
  const char* named = std::getenv("TENSORFOLD_NCCL_LIBRARY");
  const std::string wanted = named != nullptr && *named != '\0' ? named : "libnccl.so.2";
  void* library = ::dlopen(wanted.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    const char* why = ::dlerror();
    return unavailable("NCCL can't be opened: " + std::string(why != nullptr ? why : wanted));
  }
  auto nccl = std::make_shared<NcclLibrary>();
  NcclGetVersionFn get_version = nullptr;
  const bool all = take(library, "ncclGetVersion", get_version) &&
                   take(library, "ncclGetUniqueId", nccl->get_unique_id) &&
                   take(library, "ncclCommInitRankConfig", nccl->init_rank) &&
                   take(library, "ncclCommGetAsyncError", nccl->async_error) &&
                   take(library, "ncclCommAbort", nccl->abort) &&
                   take(library, "ncclAllGather", nccl->all_gather) &&
                   take(library, "ncclBroadcast", nccl->broadcast) &&
                   take(library, "ncclGetErrorString", nccl->error_string) &&
                   take(library, "ncclGetLastError", nccl->last_error);
  if (!all) return unsupported(wanted + " lacks a function that is needed: too old");
  if (get_version(&nccl->version) != kNcclSuccess || nccl->version < kNcclVersionLeast)
    return unsupported(wanted + " is NCCL version code " + std::to_string(nccl->version) +
                       ", at least " + std::to_string(kNcclVersionLeast) + " is needed");
  Dl_info where{};
  if (::dladdr(reinterpret_cast<void*>(nccl->all_gather), &where) != 0 &&
      where.dli_fname != nullptr) {
    nccl->path = where.dli_fname;
  }
  const int v = nccl->version;
  nccl->identity = std::to_string(v / 10'000) + "." + std::to_string(v / 100 % 100) + "." +
                   std::to_string(v % 100) + " sha256:" + sha256_of_file(nccl->path);
  return std::shared_ptr<const NcclLibrary>(std::move(nccl));
}

}  // namespace tensorfold
