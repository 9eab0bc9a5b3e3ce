// EngramRows: from token ids to Engram table rows of this rank's hash columns, and the exchange of
// rows between ranks. Owned by the model.
//
// Look-backs before the sequence, at an image or past one are blocked: the pad's compressed id
// stands there, and in everything further back (docs/model.md 2.7).
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "engine/base/status.h"
#include "engine/cluster/collective.h"
#include "engine/model/config.h"
#include "engine/weights/engram_constants.h"
#include "engine/weights/weight_source.h"

namespace tensorfold {

class EngramRows {
 public:
  static Result<std::unique_ptr<EngramRows>> open(const WeightSource& source);

  // Table rows of `position` in Engram layer `index`. engram_ids: compressed ids of the sequence,
  // -1 at images. rows [columns].
  void hash(int index, std::span<const int32_t> engram_ids, int64_t position,
            std::span<int64_t> rows) const;

  // Reads this rank's columns of `rows` [n, columns], exchanges them with the other ranks and
  // writes all of them as bf16 [n, columns * width].
  Status read(int index, std::span<const int64_t> rows, Collective& collective, uint16_t* out);

 private:
  EngramConfig config_;
  Range columns_;    // of this rank
  int32_t pad_ = 0;  // compressed id of the pad token
  EngramConstants constants_;
  std::vector<std::unique_ptr<EngramTable>> tables_;  // one per Engram layer
  std::vector<int64_t> own_rows_;
  std::vector<std::byte> own_, all_;
  std::vector<float> values_;
};

}  // namespace tensorfold
