// EngramTable: rows of one Engram table by number, read from storage when asked for, with a
// bounded cache of rows. A table is far larger than memory; a token reads a few dozen rows.
//
// Owned by one thread at a time. A row is handed out raw (as stored, so that ranks can exchange
// the rows they read) and decoded by decode_row(). Reads of one batch go out together (io_uring
// where the kernel allows it, else pread) and duplicates within a batch are read once.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "engine/base/status.h"
#include "engine/weights/partition.h"

namespace tensorfold {

inline constexpr int64_t kEngramCacheRowsMax = int64_t{1} << 24;  // rows of one table in memory
inline constexpr int kEngramBatchRowsMax = 1 << 20;               // rows of one read()

struct EngramTableStats {
  uint64_t hits = 0;    // rows found in the cache or earlier in the same batch
  uint64_t misses = 0;  // rows read from storage
  uint64_t bytes_read = 0;
};

class EngramTable {
 public:
  virtual ~EngramTable() = default;
  // Row numbers that can be asked for: all of the table, or in a prepared image without the others'
  // columns those of this rank's hash columns.
  virtual Range rows() const = 0;
  virtual int width() const = 0;          // values per row
  virtual int64_t row_bytes() const = 0;  // of a raw row: values, then scales if it has any

  // raw [rows.size() * row_bytes()]: the rows in the order asked for. A row number out of range is
  // kInvalidArgument; a short or failed read, or a NaN in a row, names file, tensor and row.
  virtual Status read(std::span<const int64_t> rows, std::span<std::byte> raw) = 0;

  // raw [row_bytes()] -> values [width()] fp32, each exact in bf16.
  virtual void decode_row(std::span<const std::byte> raw, std::span<float> values) const = 0;

  virtual EngramTableStats stats() const = 0;
};

}  // namespace tensorfold
