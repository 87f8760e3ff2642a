// Adaptive eager's cold misses: launches that wait for kernels which nobody compiles yet, put
// together into a few executables (decision D12).
//
// Element-wise operators and moves compile together about as fast as one of them alone. So a miss
// of such a kernel is *deferred*: its launch stands in the stream's queue, and a run of such
// launches becomes one executable, a *batch*. (Products and reductions gain nothing, see
// decision 57.) Where a run ends depends on the launches around, so that what comes again (a layer,
// a step) is cut at the same places and finds its batches there. A run is taken once it has an end,
// or when something waits. A batch that fails is taken apart, and its launches go one by one.
//
// Guarded by Runtime::mutex.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "runtime/kernel.h"
#include "runtime/recorder.h"

namespace tn {

class Device;
class Stream;
struct Queued;

// A run of queued launches, and how data flow through it.
struct Run {
  Stream* stream = nullptr;
  uint64_t ticket = 0;  // of its first launch
  std::vector<Sequence::Part> parts;
  Dataflow flow;
};

struct BatchStats {
  uint64_t batches = 0;  // that stood for launches in a queue
  uint64_t operators = 0;
  uint64_t taken_apart = 0;
};

class Batches {
 public:
  explicit Batches(Device& device) : device_(device) {}

  // A launch of a deferred kernel stands in a queue.
  void enqueued() { ++fresh_; }
  // Something waits for what is queued, or asks for it.
  void hurry() { hurried_ |= fresh_ > 0; }
  bool fresh() const { return fresh_ > 0; }
  // Whether `next` should be asked.
  bool due() const { return hurried_ || fresh_ >= next_look_; }

  // A run of launches with deferred kernels among them: one that has an end, or any if something
  // waits. None: nothing is due any more; `alone` then holds the deferred kernels whose launches
  // stand in no run, if something waits.
  std::optional<Run> next(std::vector<Kernel*>& alone);
  // Makes one launch of a run, unless the queue has changed since.
  bool place(const Run& run, Kernel* kernel);
  // Whether a batch at the head of its queue can be launched as one.
  bool may_launch(const Queued& batch, bool compiled);
  // Lets go of what a batch is made of, once it is launched as one.
  static void forget_parts(Queued& batch);

  const BatchStats& stats() const { return stats_; }

 private:
  std::optional<Run> run_in(Stream& stream);
  Run describe(Stream& stream, size_t first, size_t count) const;

  Device& device_;
  size_t fresh_ = 0;
  size_t next_look_ = 0;
  bool hurried_ = false;
  BatchStats stats_;
};

}  // namespace tn
