// Monotonic time.

#ifndef TN_BASE_CLOCK_H_
#define TN_BASE_CLOCK_H_

#include <chrono>
#include <cstdint>

namespace tn {

// Nanoseconds of a clock that never goes back; its zero has no meaning.
inline int64_t monotonic_ns() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

}  // namespace tn

#endif  // TN_BASE_CLOCK_H_
