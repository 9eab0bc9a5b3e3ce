// GraphTable: which steps are run from recorded launches, when one is recorded, and which goes when
// memory is short. Pure: it sees keys, counts and sizes, no device.
//
// A recorded step serves every step of its key: as many padded rows, and a context no longer than
// the bucket's end. What else changes from step to step (ids, positions, block tables, slices) is
// read from tables in device memory. A key is recorded when it comes up the second time: shapes
// that come once cost nothing. Owned by the model, on the engine thread.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "kernels/device.h"

namespace tensorfold {

inline constexpr int kGraphsMax = 96;  // recorded steps
inline constexpr int64_t kGraphBytesMax = int64_t{64} << 20;
inline constexpr int64_t kGraphShortPositions = 512;  // the smallest bucket: all entries are chosen
inline constexpr int64_t kGraphBucketPositions = 2048;  // the next, then twice as many
inline constexpr int kGraphKeysMax = 512;               // keys that are remembered
inline constexpr int kGraphSightings = 2;               // the one that is recorded

struct GraphKey {
  int rows = 0;           // padded
  int64_t positions = 0;  // end of the bucket
  bool operator==(const GraphKey&) const = default;
};

// What decides whether a step can be run from recorded launches.
struct GraphStep {
  int rows = 0;
  int prompt_rows = 0;
  int decoder_rows = 0;
  int64_t positions_end = 0;   // largest position + 1
  bool probed = false;         // somebody looks at values in between
  bool meets_on_host = false;  // partial results of ranks go through host memory
};

// 1..8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384; 0: more than that.
int padded_rows(int rows);
// The least row count that is padded to `padded`.
int least_rows(int padded);
// kGraphShortPositions, or the least kGraphBucketPositions * 2^k that holds `end`; at most
// `context`.
int64_t positions_bucket(int64_t end, int64_t context);
// Nothing: the step is queued launch by launch. rows_max: of the model's buffers.
std::optional<GraphKey> graph_key(const GraphStep& step, int rows_max, int64_t context);

enum class GraphUse : unsigned char { kQueue, kRecord, kRun };

// A step in the parts between which the host has to do something.
using GraphParts = std::vector<std::unique_ptr<StepGraph>>;

class GraphTable {
 public:
  explicit GraphTable(int64_t bytes_max = kGraphBytesMax, int graphs_max = kGraphsMax)
      : bytes_max_(bytes_max), graphs_max_(graphs_max) {}

  // What to do with a step of this key; counts it.
  GraphUse use(const GraphKey& key);
  // The parts of a key for which use() said kRun.
  const GraphParts& parts(const GraphKey& key) const;
  // After kRecord. What was used longest ago goes until the bounds hold; one that alone is past
  // them is dropped and never asked for again.
  void keep(const GraphKey& key, GraphParts parts);
  // After kRecord, when it failed: the key stays queued.
  void refuse(const GraphKey& key);
  // Every recorded step goes; keys that come again are recorded anew.
  void forget();

  const StepGraphStats& stats() const { return stats_; }

 private:
  struct Entry {
    GraphKey key;
    int sightings = 0;
    bool refused = false;
    int64_t last_use = 0;
    int64_t bytes = 0;
    GraphParts parts;  // empty: not recorded
  };
  Entry* find(const GraphKey& key);
  void drop(Entry& entry);
  void make_room(int64_t bytes);

  int64_t bytes_max_;
  int graphs_max_;
  int64_t clock_ = 0;
  std::vector<Entry> entries_;
  StepGraphStats stats_;
};

}  // namespace tensorfold
