// Two words of every rank, by rank. Owner: see the header; deliberately compares nothing.
#include "engine/cluster/agreement.h"

#include <span>

namespace tensorfold {

Result<std::vector<AgreementWords>> gather_words(Collective& collective,
                                                 const AgreementWords& mine) {
  std::vector<AgreementWords> all(static_cast<size_t>(collective.world_size()));
  TF_RETURN_IF_ERROR(collective.all_gather(std::as_bytes(std::span<const uint64_t>(mine)),
                                           std::as_writable_bytes(std::span(all))));
  return all;
}

}  // namespace tensorfold
