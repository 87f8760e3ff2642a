// Process-wide event counters. Relaxed atomics: exact totals, no ordering
// between counters.

#ifndef TN_BASE_COUNTERS_H_
#define TN_BASE_COUNTERS_H_

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <string_view>

namespace tn {

// name, what one count means.
#define TN_COUNTERS(X)                                                    \
  X(launches, "executions handed to the plugin")                          \
  X(launch_errors, "executions that the plugin refused")                  \
  X(compiles, "programs compiled by the plugin")                          \
  X(compile_ns, "nanoseconds spent in the plugin's compiler")             \
  X(deserialized, "executables loaded from their serialized form")        \
  X(deserialize_ns, "nanoseconds spent loading serialized executables")   \
  X(serialized, "executables serialized")                                 \
  X(executables_destroyed, "loaded executables released")                 \
  X(h2d_transfers, "host to device copies")                               \
  X(h2d_bytes, "bytes copied from host to device")                        \
  X(d2h_transfers, "device to host copies")                               \
  X(d2h_bytes, "bytes copied from device to host")                        \
  X(d2d_transfers, "device to device copies")                             \
  X(d2d_bytes, "bytes copied from device to device")                      \
  X(event_waits, "blocking waits for an event")                           \
  X(synchronizations, "device, stream and event synchronisations")        \
  X(memory_hits, "executables found in memory")                           \
  X(disk_hits, "executables found on disk")                               \
  X(cache_misses, "executables found nowhere")                            \
  X(cache_evictions, "executables dropped from memory to keep its bound") \
  X(donations, "arguments donated to an execution")                       \
  X(fallbacks, "operators run on the host")

// A copy of all counters, one plain field each.
struct CountersSnapshot {
#define TN_COUNTER_FIELD_(name, help) uint64_t name = 0;
  TN_COUNTERS(TN_COUNTER_FIELD_)
#undef TN_COUNTER_FIELD_

  // Calls f(name, help, value) for each counter, in declaration order.
  template <typename F>
  void for_each(F&& f) const {
#define TN_COUNTER_VISIT_(name, help) f(std::string_view(#name), std::string_view(help), name);
    TN_COUNTERS(TN_COUNTER_VISIT_)
#undef TN_COUNTER_VISIT_
  }
};

// `counters().launches.add()`.
struct Counters {
  class Counter {
   public:
    void add(uint64_t n = 1) { value_.fetch_add(n, std::memory_order_relaxed); }
    uint64_t get() const { return value_.load(std::memory_order_relaxed); }
    void reset() { value_.store(0, std::memory_order_relaxed); }

   private:
    std::atomic<uint64_t> value_{0};
  };

#define TN_COUNTER_FIELD_(name, help) Counter name;
  TN_COUNTERS(TN_COUNTER_FIELD_)
#undef TN_COUNTER_FIELD_

  CountersSnapshot snapshot() const {
    CountersSnapshot s;
#define TN_COUNTER_COPY_(name, help) s.name = name.get();
    TN_COUNTERS(TN_COUNTER_COPY_)
#undef TN_COUNTER_COPY_
    return s;
  }

  void reset() {
#define TN_COUNTER_RESET_(name, help) name.reset();
    TN_COUNTERS(TN_COUNTER_RESET_)
#undef TN_COUNTER_RESET_
  }
};

// The process's counters. Constant-initialised, so usable at any time.
inline Counters& counters() {
  static constinit Counters instance;
  return instance;
}

}  // namespace tn

#endif  // TN_BASE_COUNTERS_H_
