#include "runtime/recorder.h"

#include <algorithm>
#include <utility>

#include "base/clock.h"
#include "base/hash.h"
#include "runtime/device.h"
#include "runtime/segments.h"

namespace tn {
namespace {

constexpr size_t kShortest = 2;   // launches in a sequence
constexpr size_t kUnrolled = 16;  // a loop of very few launches is unrolled to that many
constexpr size_t kMostBytes = size_t{256} << 20;  // of results that are held
constexpr uint32_t kMostVersions = 4;             // compiles of one sequence
constexpr uint32_t kMostVariants = 3;
constexpr uint32_t kMissesBeforeRest = 3;
constexpr uint32_t kFirstRest = 16;  // beginnings; doubles each time
constexpr uint32_t kMostRests = 8;

bool can_be_fused(const Kernel& kernel) {
  return kernel.fusible() && (kernel.deferred() || (kernel.state() == KernelState::kReady &&
                                                    kernel.signature().checks.empty()));
}

}  // namespace

const char* flush_name(Flush cause) {
  switch (cause) {
    case Flush::kComplete:
      return "complete";
    case Flush::kFirst:
      return "learnt";
    case Flush::kMismatch:
      return "mismatch";
    case Flush::kRead:
      return "read";
    case Flush::kEvent:
      return "event";
    case Flush::kStream:
      return "stream";
    case Flush::kMemory:
      return "memory";
    case Flush::kOff:
      return "off";
    case Flush::kNumFlushes:
      break;
  }
  return "";
}

bool Recorder::take(Launch& launch) {
  if (!launch.may_hold) {
    if (holds()) flush(Flush::kOff);
    return false;
  }
  if (launch.stream != stream_) {
    if (holds()) settle(Flush::kStream);
    stream_ = launch.stream;
    boundary_ = true;
  }
  Kernel* kernel = launch.kernel;
  if (std::optional<Loop> loop = repeats_.add(kernel, std::exchange(boundary_, false))) {
    add_loop(*loop);
  }
  if (!holds()) return begin(launch);
  const size_t at = held_.size();
  const auto fits = [&](const Sequence* s) {
    return s->kernels.size() > at && s->kernels[at] == kernel;
  };
  if (std::none_of(open_.begin(), open_.end(), fits)) {
    settle(Flush::kMismatch);
    return begin(launch);
  }
  const size_t first = slots_.size();
  hold(launch);
  std::erase_if(open_, [&](Sequence* s) {
    if (s == best_) return true;
    if (!fits(s)) {
      missed(*s);
    } else if (!flows_alike(*s, first)) {
      flows_otherwise(*s);
    } else {
      return false;
    }
    return true;
  });
  if (open_.empty()) {
    settle(Flush::kMismatch);
    return true;
  }
  for (Sequence* s : open_) {
    if (s->kernels.size() == held_.size()) best_ = s;
  }
  if (best_ == open_.front()) {
    settle(Flush::kComplete);
  } else if (bytes_ > kMostBytes) {
    settle(Flush::kMemory);
  }
  return true;
}

bool Recorder::begin(Launch& launch) {
  if (by_first_.empty()) return false;
  auto it = by_first_.find(launch.kernel);
  if (it == by_first_.end() || device_.queued()) return false;
  for (Sequence* s : it->second) {
    if (is_open(*s)) open_.push_back(s);
  }
  if (open_.empty()) return false;
  hold(launch);
  std::erase_if(open_, [&](Sequence* s) {
    if (flows_alike(*s, 0)) return false;
    flows_otherwise(*s);
    return true;
  });
  if (open_.empty()) settle(Flush::kMismatch);
  return true;
}

bool Recorder::is_open(Sequence& sequence) {
  if (sequence.retired) return false;
  if (sequence.rest) {
    --sequence.rest;
    return false;
  }
  if (!sequence.learnt) return true;
  if (!sequence.fused || sequence.fused->state() == KernelState::kPending) return false;
  const bool ready = sequence.fused->state() == KernelState::kReady;
  if (!sequence.counted) {
    sequence.counted = true;
    ++(ready ? stats_.ready : stats_.failed);
  }
  sequence.retired |= !ready;
  return ready;
}

int32_t Recorder::slot_of(DeviceStorage* storage, bool created) {
  if (storage->held_serial != serial_) {
    storage->held_serial = serial_;
    storage->held_slot = static_cast<int32_t>(storages_.size());
    storage->held.store(true, std::memory_order_relaxed);
    storages_.emplace_back(storage);
    created_.push_back(created);
    written_.push_back(created);
  }
  return storage->held_slot;
}

void Recorder::hold(Launch& launch) {
  if (held_.empty()) {
    static uint64_t serials = 0;
    serial_ = ++serials;
  }
  ++stats_.recorded;
  const size_t first = slots_.size();
  held_.push_back(
      {launch.kernel, static_cast<uint32_t>(first), static_cast<uint32_t>(numbers_.size()),
       static_cast<uint32_t>(launch.params.size()), static_cast<uint32_t>(launch.outputs.size()),
       launch.uses_rng, launch.seed, launch.offset, launch.number, Device::line_of(launch)});
  for (const LaunchParam& param : launch.params) {
    if (param.storage) {
      slots_.push_back(slot_of(param.storage, false));
    } else {
      slots_.push_back(-1);
      numbers_.emplace_back(param.number);
    }
  }
  for (DeviceStorage* output : launch.outputs) {
    slots_.push_back(slot_of(output, true));
    ++output->pending_writes;
    bytes_ += output->bytes;
  }
  for (int32_t w : launch.kernel->writes()) written_[slots_[first + w]] = true;
}

// Whether the slots from `first` on are those of the sequence.
bool Recorder::flows_alike(const Sequence& sequence, size_t first) const {
  if (!sequence.learnt) return true;
  return std::equal(slots_.begin() + static_cast<ptrdiff_t>(first), slots_.end(),
                    sequence.flow.slots.begin() + static_cast<ptrdiff_t>(first));
}

void Recorder::missed(Sequence& sequence) {
  if (++sequence.misses < kMissesBeforeRest) return;
  sequence.misses = 0;
  if (++sequence.rests > kMostRests) {
    sequence.retired = true;
  } else {
    sequence.rest = kFirstRest << sequence.rests;
  }
}

// The same launches on storages that are shared in another way: learn that way, too.
void Recorder::flows_otherwise(Sequence& sequence) {
  missed(sequence);
  if (sequence.variants == kMostVariants || sequences_.size() >= 4 * budget_) return;
  for (const Sequence* other : by_first_[sequence.kernels.front()]) {
    if (!other->learnt && other->kernels == sequence.kernels) return;
  }
  Sequence* other = insert(sequence.kernels);
  other->variants = ++sequence.variants;
}

void Recorder::settle(Flush cause) {
  size_t done = 0;
  Sequence* timed = nullptr;
  if (Sequence* best = std::exchange(best_, nullptr)) {
    std::erase(open_, best);
    if (!best->learnt && best->kernels.size() == held_.size()) timed = best;
    done = run(*best, cause);
  }
  ++stats_.flushes[static_cast<size_t>(cause)];
  for (Sequence* sequence : open_) missed(*sequence);
  const int64_t start_ns = timed ? monotonic_ns() : 0;
  launch_held(done);
  if (timed) timed->launching_ns = monotonic_ns() - start_ns;
  clear();
}

void Recorder::clear() {
  for (const Ref<DeviceStorage>& storage : storages_) {
    if (storage) storage->held.store(false, std::memory_order_relaxed);
  }
  held_.clear();
  slots_.clear();
  numbers_.clear();
  storages_.clear();
  created_.clear();
  written_.clear();
  open_.clear();
  bytes_ = 0;
}

// By slot of the first `launches`: whether somebody else has it, or a later launch that is held.
std::vector<bool> Recorder::live_slots(size_t launches) const {
  const size_t end = launches < held_.size() ? held_[launches].first : slots_.size();
  size_t count = 0;
  for (size_t i = 0; i < end; ++i) count = std::max(count, static_cast<size_t>(slots_[i] + 1));
  std::vector<bool> live(count);
  for (size_t s = 0; s < count; ++s) live[s] = storages_[s]->use_count() > 1;
  for (size_t i = end; i < slots_.size(); ++i) {
    if (slots_[i] >= 0 && static_cast<size_t>(slots_[i]) < count) live[slots_[i]] = true;
  }
  return live;
}

size_t Recorder::run(Sequence& sequence, Flush& cause) {
  const size_t size = sequence.kernels.size();
  if (!sequence.learnt) {
    learn(sequence);
    if (cause == Flush::kComplete) cause = Flush::kFirst;
    return 0;
  }
  const std::vector<bool> live = live_slots(size);
  bool missing = false;
  for (size_t s = 0; s < live.size(); ++s) {
    if (!live[s] || !sequence.flow.written[s] || sequence.flow.needed[s]) continue;
    sequence.flow.needed[s] = true;
    missing = true;
  }
  if (missing) {  // compile it again, for what is needed in either case
    request(sequence);
    return 0;
  }
  const int64_t start_ns = monotonic_ns();
  if (!launch_fused(sequence)) return 0;
  if (sequence.launching_ns) {
    stats_.saved_ns += sequence.launching_ns - (monotonic_ns() - start_ns);
  }
  sequence.misses = 0;
  stats_.fused_operators += size;
  ++stats_.fused_launches;
  return size;
}

void Recorder::learn(Sequence& sequence) {
  const size_t size = sequence.kernels.size();
  const size_t end = size < held_.size() ? held_[size].first : slots_.size();
  const std::vector<bool> live = live_slots(size);
  Dataflow& flow = sequence.flow;
  flow.slots.assign(slots_.begin(), slots_.begin() + static_cast<ptrdiff_t>(end));
  for (size_t s = 0; s < live.size(); ++s) {
    // A later launch that is held may have written it: only those of the sequence count.
    flow.created.push_back(created_[s]);
    flow.written.push_back(created_[s]);
    flow.dropped.push_back(!created_[s] && !live[s]);
  }
  for (size_t i = 0; i < size; ++i) {
    const Held& held = held_[i];
    sequence.parts.push_back({held.kernel, held.num_params, held.num_outputs, held.uses_rng});
    for (int32_t w : held.kernel->writes()) flow.written[slots_[held.first + w]] = true;
  }
  for (size_t s = 0; s < live.size(); ++s) flow.needed.push_back(flow.written[s] && live[s]);
  sequence.learnt = true;
  request(sequence);
}

void Recorder::request(Sequence& sequence) {
  sequence.fused = nullptr;
  sequence.counted = false;
  if (sequence.versions++ == kMostVersions || stats_.requested >= budget_) {
    ++stats_.over_budget;
    sequence.retired = true;
    return;
  }
  ++stats_.requested;
  requests_.push_back(&sequence);
}

bool Recorder::launch_fused(Sequence& sequence) {
  Kernel& kernel = *sequence.fused;
  std::shared_ptr<Executable> executable = kernel.resident();
  if (!executable) {  // evicted: load it again in the background
    request(sequence);
    return false;
  }
  const size_t size = sequence.kernels.size();
  const Dataflow& flow = sequence.flow;
  std::vector<LaunchParam> params;
  std::vector<DeviceStorage*> outputs;
  std::vector<Ref<DeviceBuffer>> made;
  for (size_t s = 0; s < flow.created.size(); ++s) {
    DeviceStorage* storage = storages_[s].get();
    if (flow.created[s]) {
      if (flow.needed[s]) outputs.push_back(storage);
      continue;
    }
    // Only what depends on lost contents is lost: one by one, launches find out.
    if (storage->failure) return false;
    params.push_back({storage, nullptr});
  }
  auto add_number = [&](Result<Ref<DeviceBuffer>> number) {
    if (!number.ok()) return false;
    made.push_back(std::move(number).value());
    params.push_back({nullptr, made.back().get()});
    return true;
  };
  for (size_t i = 0; i < size; ++i) {
    const Held& held = held_[i];
    const size_t end = i + 1 < held_.size() ? held_[i + 1].number : numbers_.size();
    for (size_t n = held.number; n < end; ++n) params.push_back({nullptr, numbers_[n].get()});
    if (held.uses_rng && !(add_number(device_.fresh_number(held.seed)) &&
                           add_number(device_.fresh_number(held.offset)))) {
      return false;
    }
  }
  if (!add_number(device_.number(DType::kI32, 0))) return false;
  const size_t temporaries = kernel.temporary_bytes();
  if (temporaries && !device_.memory().charge_temporaries(temporaries)) return false;
  bool refused = false;
  Launch launch;
  launch.kernel = &kernel;
  launch.stream = stream_;
  launch.params = params;
  launch.outputs = outputs;
  launch.number = held_.front().order;
  launch.line = &held_.front().line;
  launch.refused = &refused;
  device_.launch_now(launch, *executable);
  if (refused) return false;
  for (size_t i = 0; i < size; ++i) {
    const Held& held = held_[i];
    for (size_t o = 0; o < held.num_outputs; ++o) {
      --storages_[slots_[held.first + held.num_params + o]]->pending_writes;
    }
  }
  return true;
}

void Recorder::launch_held(size_t first) {
  // What no later launch uses is let go of on the way.
  std::vector<size_t> last(storages_.size(), 0);
  for (size_t i = first; i < held_.size(); ++i) {
    const size_t end = i + 1 < held_.size() ? held_[i + 1].first : slots_.size();
    for (size_t at = held_[i].first; at < end; ++at) {
      if (slots_[at] >= 0) last[slots_[at]] = i;
    }
  }
  std::vector<LaunchParam> params;
  std::vector<DeviceStorage*> outputs;
  for (size_t i = first; i < held_.size(); ++i) {
    const Held& held = held_[i];
    params.clear();
    outputs.clear();
    size_t number = held.number;
    for (size_t p = 0; p < held.num_params; ++p) {
      const int32_t slot = slots_[held.first + p];
      if (slot >= 0) {
        params.push_back({storages_[slot].get(), nullptr});
      } else {
        params.push_back({nullptr, numbers_[number++].get()});
      }
    }
    for (size_t o = 0; o < held.num_outputs; ++o) {
      outputs.push_back(storages_[slots_[held.first + held.num_params + o]].get());
      --outputs.back()->pending_writes;
    }
    Launch launch;
    launch.kernel = held.kernel;
    launch.stream = stream_;
    launch.params = params;
    launch.outputs = outputs;
    launch.uses_rng = held.uses_rng;
    launch.seed = held.seed;
    launch.offset = held.offset;
    launch.number = held.order;
    launch.line = &held.line;
    device_.launch_or_queue(launch);
    for (size_t at = held.first; at < held.first + held.num_params + held.num_outputs; ++at) {
      if (slots_[at] >= 0 && last[slots_[at]] == i) {
        Ref<DeviceStorage>& storage = storages_[slots_[at]];
        if (storage) storage->held.store(false, std::memory_order_relaxed);
        storage = {};
      }
    }
  }
}

void Recorder::add_loop(const Loop& loop) {
  for (const Kernel* kernel : loop.kernels) {
    if (kernel->state() == KernelState::kPending && !kernel->deferred()) return repeats_.again();
    if (kernel->state() == KernelState::kFailed) return;
  }
  ++stats_.loops;
  const size_t period = loop.kernels.size();
  // A loop goes round: begin where it is cut anyway, else with what comes next.
  size_t start = 0;
  auto cut_before = [&](size_t i) {
    return loop.boundary_before[i] || !can_be_fused(*loop.kernels[i]);
  };
  while (start < period && !cut_before(start)) ++start;
  const bool cut = start < period;
  if (!cut) start = 0;
  size_t rounds = 1;
  while (!cut && period * rounds < kUnrolled) ++rounds;
  std::vector<Kernel*> run;
  auto end_run = [&] {
    const size_t pieces = (run.size() + longest_ - 1) / longest_;
    size_t from = 0;
    for (size_t piece = 1; piece <= pieces; ++piece) {
      const size_t to = run.size() * piece / pieces;
      add_sequence(
          {run.begin() + static_cast<ptrdiff_t>(from), run.begin() + static_cast<ptrdiff_t>(to)});
      from = to;
    }
    run.clear();
  };
  for (size_t i = 0; i < period * rounds; ++i) {
    const size_t at = (start + i) % period;
    if (cut_before(at)) end_run();
    if (can_be_fused(*loop.kernels[at])) run.push_back(loop.kernels[at]);
  }
  end_run();
}

void Recorder::add_sequence(std::vector<Kernel*> kernels) {
  if (kernels.size() < kShortest) return;
  if (!known_.insert(hash_bytes(kernels.data(), kernels.size() * sizeof(Kernel*))).second) {
    // It comes round again: it rests no longer, although it misled elsewhere.
    for (Sequence* known : by_first_[kernels.front()]) {
      if (known->kernels != kernels) continue;
      known->rest = known->misses = 0;
      known->rests /= 2;
    }
    return;
  }
  if (sequences_.size() >= 4 * budget_) {
    ++stats_.over_budget;
    return;
  }
  insert(std::move(kernels));
}

Sequence* Recorder::insert(std::vector<Kernel*> kernels) {
  ++stats_.sequences;
  auto sequence = std::make_unique<Sequence>();
  sequence->kernels = std::move(kernels);
  std::vector<Sequence*>& list = by_first_[sequence->kernels.front()];
  const auto longer = [&](const Sequence* other) {
    return other->kernels.size() >= sequence->kernels.size();
  };
  list.insert(std::find_if_not(list.begin(), list.end(), longer), sequence.get());
  sequences_.push_back(std::move(sequence));
  return sequences_.back().get();
}

}  // namespace tn
