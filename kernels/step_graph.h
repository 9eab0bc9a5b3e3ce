// StepGraph: launches that a device recorded, to be queued again by one call. They run with the
// arguments that they were recorded with; what they read from device memory is what lies there
// then.
//
// Made by Device::end_graph, run by Device::run_graph; may be destroyed while it runs (the
// destructor waits then). Owned by whoever recorded it; it goes before its stream.
#pragma once

#include <cstdint>

namespace tensorfold {

class StepGraph {
 public:
  virtual ~StepGraph() = default;
  virtual int nodes() const = 0;
  virtual int64_t bytes() const = 0;  // of device memory, an estimate
};

// What became of the steps of generated rows.
struct StepGraphStats {
  int64_t queued = 0;  // launch by launch
  int64_t runs = 0;    // from recorded launches
  int64_t recorded = 0;
  int64_t evicted = 0;
  int64_t refused = 0;  // keys that could not be recorded
  int64_t graphs = 0;   // recorded steps at hand
  int64_t bytes = 0;
};

}  // namespace tensorfold
