// Adaptive eager: sequences of launches that come again run as one executable (decision D12).
//
// Launches are made one by one, and watched, until a loop is found. Its period is cut into
// *sequences* at the places where the program waits for the device, at kernels that cannot be
// fused, and after a fixed length. From then on the launches that begin like a sequence are *held*:
// they stay here in order. Once the first holding of a sequence is complete it says how data flow
// through it and what is needed afterwards; with that it is compiled in the background, while
// launches go on one by one. When the executable is there, a complete holding whose data flow the
// same way becomes one launch. A launch that does not belong to the sequence, or whatever needs
// what is held (a read, an event, another stream), makes the held launches one by one.
//
// Guarded by Runtime::mutex.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "runtime/kernel.h"
#include "runtime/repeats.h"
#include "runtime/storage.h"

namespace tn {

class Device;
class Stream;
struct Launch;

// What ended a holding.
enum class Flush : uint8_t {
  kComplete,  // it became one launch
  kFirst,     // complete for the first time: learnt, and launched one by one
  kMismatch,  // the program went another way
  kRead,      // a value is needed, or the device is waited for
  kEvent,     // an event was recorded, waited for or queried
  kStream,    // a launch on another stream
  kMemory,    // too many bytes pending, or memory is short
  kOff,       // adaptive eager was switched off
  kNumFlushes,
};
const char* flush_name(Flush cause);

struct EagerStats {
  uint64_t recorded = 0;         // launches that were held
  uint64_t fused_operators = 0;  // of these, those that ran in fused executables
  uint64_t fused_launches = 0;
  std::array<uint64_t, static_cast<size_t>(Flush::kNumFlushes)> flushes{};
  uint64_t loops = 0;
  uint64_t sequences = 0;
  uint64_t requested = 0;  // background compiles asked for
  uint64_t ready = 0;      // fused executables that are there
  uint64_t failed = 0;
  int64_t saved_ns = 0;      // host time of launching, against one by one
  uint64_t over_budget = 0;  // sequences that were not compiled for that
};

// How data flow through a sequence. A *slot* is a storage, numbered in order of appearance.
struct Dataflow {
  // For each launch its parameters, then its outputs: the slot; -1 for a number.
  std::vector<int32_t> slots;
  std::vector<bool> created;  // by slot: an output of one of the launches
  std::vector<bool> written;  // by slot: created, or mutated
  std::vector<bool> needed;   // by slot: written and still there afterwards
  std::vector<bool> dropped;  // by slot: from before, and gone afterwards
};

// A run of launches that comes again.
struct Sequence {
  struct Part {
    Kernel* kernel;
    uint32_t num_params;
    uint32_t num_outputs;
    bool uses_rng;
  };
  std::vector<Kernel*> kernels;
  std::vector<Part> parts;  // with `flow`
  Dataflow flow;
  bool learnt = false;
  Kernel* fused = nullptr;
  bool counted = false;   // as ready or failed
  uint32_t versions = 0;  // how often it was asked for
  uint32_t misses = 0;    // in a row
  uint32_t rest = 0;      // beginnings to let pass before it is tried again
  uint32_t rests = 0;
  uint32_t variants = 0;  // sequences of the same launches whose data flow otherwise
  bool retired = false;
  int64_t launching_ns = 0;  // one by one
};

class Recorder {
 public:
  explicit Recorder(Device& device) : device_(device) {}

  // Watches a launch and takes it, if it may go on a sequence. False: the caller launches it.
  bool take(Launch& launch);
  // Launches what is held.
  void flush(Flush cause) {
    if (!held_.empty()) settle(cause);
    boundary_ = true;
  }
  bool holds() const { return !held_.empty(); }

  // The sequences that are to be compiled. The caller sets `fused`, under the lock, or retires
  // them.
  std::vector<Sequence*> take_requests() { return std::exchange(requests_, {}); }
  bool has_requests() const { return !requests_.empty(); }
  const EagerStats& stats() const { return stats_; }
  void set_budget(uint64_t sequences) { budget_ = sequences; }
  void set_longest(uint32_t launches) { longest_ = launches; }

 private:
  struct Held {
    Kernel* kernel;
    uint32_t first;   // of its slots
    uint32_t number;  // of its numbers
    uint32_t num_params;
    uint32_t num_outputs;
    bool uses_rng;
    uint64_t seed;
    uint64_t offset;
    uint64_t order;
    std::string line;
  };

  void add_loop(const Loop& loop);
  void add_sequence(std::vector<Kernel*> kernels);
  Sequence* insert(std::vector<Kernel*> kernels);
  bool begin(Launch& launch);
  bool is_open(Sequence& sequence);
  void hold(Launch& launch);
  int32_t slot_of(DeviceStorage* storage, bool created);
  bool flows_alike(const Sequence& sequence, size_t first) const;
  void missed(Sequence& sequence);
  void flows_otherwise(Sequence& sequence);
  void settle(Flush cause);
  // Tries to make the first launches that are held one; how many were.
  size_t run(Sequence& sequence, Flush& cause);
  void learn(Sequence& sequence);
  bool launch_fused(Sequence& sequence);
  void launch_held(size_t first);
  std::vector<bool> live_slots(size_t launches) const;
  void request(Sequence& sequence);
  void clear();

  Device& device_;
  Repeats repeats_;
  bool boundary_ = false;
  std::vector<std::unique_ptr<Sequence>> sequences_;
  std::unordered_map<Kernel*, std::vector<Sequence*>> by_first_;  // longest first
  std::unordered_set<uint64_t> known_;                            // hashes of sequences

  Stream* stream_ = nullptr;
  std::vector<Held> held_;
  std::vector<int32_t> slots_;
  std::vector<Ref<DeviceBuffer>> numbers_;
  std::vector<Ref<DeviceStorage>> storages_;  // by slot
  std::vector<bool> created_;
  std::vector<bool> written_;
  size_t bytes_ = 0;
  uint64_t serial_ = 0;
  std::vector<Sequence*> open_;  // those that what is held may become, longest first
  Sequence* best_ = nullptr;     // complete, while longer ones are open
  std::vector<Sequence*> requests_;
  uint64_t budget_ = 64;
  uint32_t longest_ = 128;
  EagerStats stats_;
};

}  // namespace tn
