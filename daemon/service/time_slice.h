// The loop's turns are short and are waited for; the lanes of an engine without a GPU compute for
// as long as they may. A thread that asks for a short slice runs soon after it is woken even when
// every core is busy, and gets no more time in all than it would without.
#pragma once

#include <cstdint>

namespace tensorfold::service {

inline constexpr uint64_t kLoopSliceNs = 100'000;  // the shortest that Linux gives

// Asks for the calling thread; its priority stays as it is. Returns whether the kernel took it
// (Linux 6.12 has slices of a thread's own; an older one says yes and changes nothing). Threads
// that it starts later inherit the slice.
bool take_short_slice();

}  // namespace tensorfold::service
