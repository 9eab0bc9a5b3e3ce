// What every operation shares: the stream it runs on, the workspace it is lent, and the count of
// bytes and operations that stands beside it.
//
// An operation takes one params struct of pointers and shapes, allocates nothing and never waits
// for the host. Each header <op>.h states shapes, dtypes and the formula; cpu/<op>.cc is the
// reference in the same order. Row invariance: what a row gets depends on that row's inputs alone,
// bit for bit, whatever rows share the call and however many threads run it.
#pragma once

#include <cstddef>
#include <cstdint>

namespace tensorfold {

// Where operations are queued. A backend derives its own (CPU: a bounded pool of threads).
class Stream {
 public:
  virtual ~Stream() = default;
  virtual int lanes() const = 0;  // threads (CPU) that share an operation
};

// Scratch memory of a call, owned by the caller. Each op states how much it needs.
struct Workspace {
  std::byte* data = nullptr;
  int64_t bytes = 0;
};

struct OpCost {
  int64_t bytes = 0;       // weights, cache and activations that must move at least once
  int64_t operations = 0;  // multiplies and adds, counted separately
};

inline constexpr int kRowWidthMax = 1024;  // values of a head, latent or index row

enum class ValueType : unsigned char { kBf16, kF32 };

}  // namespace tensorfold
