// See engine/model/graph_table.h.
#include "engine/model/graph_table.h"

#include <algorithm>
#include <utility>

#include "engine/base/check.h"

namespace tensorfold {

namespace {

constexpr int kPadded[] = {1, 2, 3, 4, 5, 6, 7, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384};

}  // namespace

int padded_rows(int rows) {
  for (const int padded : kPadded)
    if (rows <= padded) return padded;
  return 0;
}

int least_rows(int padded) {
  int least = 1;
  for (const int smaller : kPadded)
    if (smaller < padded) least = smaller + 1;
  return least;
}

int64_t positions_bucket(int64_t end, int64_t context) {
  int64_t bucket = end <= kGraphShortPositions ? kGraphShortPositions : kGraphBucketPositions;
  while (bucket < end) bucket *= 2;
  return std::min(bucket, context);
}

std::optional<GraphKey> graph_key(const GraphStep& step, int rows_max, int64_t context) {
  if (step.rows < 1 || step.prompt_rows > 0 || step.decoder_rows != step.rows) return std::nullopt;
  if (step.probed || step.meets_on_host) return std::nullopt;
  if (step.positions_end > context) return std::nullopt;
  const int rows = padded_rows(step.rows);
  if (rows == 0 || rows > rows_max) return std::nullopt;
  return GraphKey{rows, positions_bucket(step.positions_end, context)};
}

GraphTable::Entry* GraphTable::find(const GraphKey& key) {
  for (Entry& e : entries_)
    if (e.key == key) return &e;
  return nullptr;
}

GraphUse GraphTable::use(const GraphKey& key) {
  ++clock_;
  Entry* e = find(key);
  if (e == nullptr && entries_.size() < static_cast<size_t>(kGraphKeysMax)) {
    entries_.emplace_back();
    e = &entries_.back();
    e->key = key;
  }
  if (e == nullptr || e->refused) {
    ++stats_.queued;
    return GraphUse::kQueue;
  }
  e->last_use = clock_;
  ++e->sightings;
  if (!e->parts.empty()) {
    ++stats_.runs;
    return GraphUse::kRun;
  }
  if (e->sightings >= kGraphSightings) return GraphUse::kRecord;
  ++stats_.queued;
  return GraphUse::kQueue;
}

const GraphParts& GraphTable::parts(const GraphKey& key) const {
  for (const Entry& e : entries_)
    if (e.key == key) return e.parts;
  check_failed(__FILE__, __LINE__, "key", "no recorded step of this key");
}

void GraphTable::drop(Entry& entry) {
  stats_.bytes -= entry.bytes;
  --stats_.graphs;
  entry.parts.clear();
  entry.bytes = 0;
  entry.sightings = 0;
}

void GraphTable::make_room(int64_t bytes) {
  while (stats_.graphs > 0 &&
         (stats_.graphs + 1 > graphs_max_ || stats_.bytes + bytes > bytes_max_)) {
    Entry* oldest = nullptr;
    for (Entry& e : entries_)
      if (!e.parts.empty() && (oldest == nullptr || e.last_use < oldest->last_use)) oldest = &e;
    drop(*oldest);
    ++stats_.evicted;
  }
}

void GraphTable::keep(const GraphKey& key, GraphParts parts) {
  Entry* e = find(key);
  TF_CHECK(e != nullptr && e->parts.empty() && !parts.empty());
  int64_t bytes = 0;
  for (const std::unique_ptr<StepGraph>& part : parts) bytes += part->bytes();
  if (bytes > bytes_max_ || graphs_max_ < 1) return refuse(key);
  make_room(bytes);
  e->parts = std::move(parts);
  e->bytes = bytes;
  stats_.bytes += bytes;
  ++stats_.graphs;
  ++stats_.recorded;
}

void GraphTable::forget() {
  for (Entry& e : entries_)
    if (!e.parts.empty()) drop(e);
}

void GraphTable::refuse(const GraphKey& key) {
  Entry* e = find(key);
  TF_CHECK(e != nullptr && e->parts.empty());
  e->refused = true;
  ++stats_.refused;
}

}  // namespace tensorfold
