// torch_neuronx._C: statistics, limits, history and snapshots of device memory.

#include <torch/csrc/profiler/combined_traceback.h>
#include <torch/csrc/utils/pybind.h>

#include <mutex>
#include <unordered_map>
#include <vector>

#include "bindings/parts.h"
#include "torch/ending.h"
#include "torch/memory.h"
#include "torch/pinned.h"
#include "torch/runtime.h"

// Declared in torch/csrc/profiler/python/combined_traceback.h, which includes a header
// (nlohmann/json) that the wheel does not carry.
namespace torch {
TORCH_API std::vector<pybind11::object> py_symbolize(std::vector<CapturedTraceback*>& to_symbolize);
TORCH_PYTHON_API void installCapturedTracebackPython();
}  // namespace torch

namespace tn::torch_glue {
namespace {

namespace py = pybind11;

SegmentAllocator& memory_of(int index) { return runtime().device(checked_device(index)).memory(); }

template <typename S>
py::dict stat_dict(const S& stat) {
  py::dict values;
  values["current"] = stat.current;
  values["peak"] = stat.peak;
  values["allocated"] = stat.allocated;
  values["freed"] = stat.freed;
  return values;
}

// Nested, as torch.cuda.memory_stats_as_nested_dict.
py::dict memory_stats(int index) {
  checked_device(index);
  const bool usable = is_started() && !in_bad_fork();
  const MemoryStats stats = usable ? memory_of(index).stats() : MemoryStats();
  py::dict result;
  MemoryStats::for_each(stats, [&](const char* name, const MemoryStatByPool& by_pool) {
    static constexpr const char* kPools[] = {"all", "small_pool", "large_pool"};
    py::dict pools;
    for (size_t i = 0; i < by_pool.pools.size(); ++i) {
      pools[kPools[i]] = stat_dict(by_pool.pools[i]);
    }
    result[name] = pools;
  });
  result["num_alloc_retries"] = stats.num_alloc_retries;
  result["num_ooms"] = stats.num_ooms;
  result["num_device_alloc"] = stats.num_device_alloc;
  result["num_device_free"] = stats.num_device_free;
  return result;
}

py::dict duration_dict(const c10::CachingAllocator::DurationStat& stat) {
  py::dict values;
  values["total"] = stat.total;
  values["max"] = stat.max;
  values["min"] = stat.min;
  values["count"] = stat.count;
  values["avg"] = stat.count ? stat.total / stat.count : 0;
  return values;
}

py::dict host_memory_stats() {
  const at::HostStats stats = pinned_allocator()->get_stats();
  py::dict result;
  result["active_requests"] = stat_dict(stats.active_requests);
  result["active_bytes"] = stat_dict(stats.active_bytes);
  result["allocations"] = stat_dict(stats.allocations);
  result["allocated_bytes"] = stat_dict(stats.allocated_bytes);
  result["host_alloc_time"] = duration_dict(stats.host_alloc_time);
  result["host_free_time"] = duration_dict(stats.host_free_time);
  result["num_host_alloc"] = stats.num_host_alloc;
  result["num_host_free"] = stats.num_host_free;
  return result;
}

// -- Recording ------------------------------------------------------------------------------------

bool g_cpp_stacks = false;

StackContext gather() {
  if (!Py_IsInitialized()) return nullptr;
  wait_if_interpreter_ends();
  return torch::CapturedTraceback::gather(/*python=*/true, /*script=*/true, g_cpp_stacks);
}

RecordStacks stacks_level(const std::optional<std::string>& name) {
  if (!name) return RecordStacks::kNever;
  if (*name == "state") return RecordStacks::kState;
  if (*name == "alloc") return RecordStacks::kAlloc;
  TORCH_CHECK_VALUE(*name == "all",
                    "expected context to be one of None, 'state', 'alloc', 'all', got '", *name,
                    "'");
  return RecordStacks::kAll;
}

void record_memory(const std::optional<std::string>& enabled,
                   const std::optional<std::string>& context, const std::string& stacks,
                   size_t max_entries, bool clear_history,
                   const std::vector<std::string>& skip_actions) {
  TORCH_CHECK_VALUE(!enabled || *enabled == "state" || *enabled == "all",
                    "expected enabled to be one of None, 'state', 'all', got '", *enabled, "'");
  TORCH_CHECK_VALUE(stacks == "python" || stacks == "all",
                    "expected stacks to be 'python' or 'all', got '", stacks, "'");
  MemoryRecording recording;
  recording.enabled = enabled.has_value();
  recording.events = enabled == "all";
  recording.stacks = enabled ? stacks_level(context) : RecordStacks::kNever;
  recording.max_events = max_entries;
  for (const std::string& name : skip_actions) {
    bool known = false;
    for (int i = 0; i <= static_cast<int>(MemoryAction::kOutOfMemory); ++i) {
      if (name != memory_action_name(static_cast<MemoryAction>(i))) continue;
      recording.skipped |= 1u << i;
      known = true;
    }
    TORCH_CHECK_VALUE(known, "unknown action '", name, "' in skip_actions");
  }
  recording.gather = &gather;
  if (enabled) torch::installCapturedTracebackPython();
  g_cpp_stacks = stacks == "all";
  if (clear_history && is_started()) {
    for (int i = 0; i < num_devices(); ++i) memory_of(i).clear_history();
  }
  set_memory_recording(recording);
}

// Collects stacks, symbolizes them at once, and gives the list of frames of each.
class Frames {
 public:
  void add(const StackContext& context) {
    if (!context || indices_.count(context.get())) return;
    indices_[context.get()] = stacks_.size();
    stacks_.push_back(static_cast<torch::CapturedTraceback*>(context.get()));
  }
  void symbolize() { frames_ = torch::py_symbolize(stacks_); }
  py::object of(const StackContext& context) const {
    return context ? frames_[indices_.at(context.get())] : py::list();
  }

 private:
  std::unordered_map<void*, size_t> indices_;
  std::vector<torch::CapturedTraceback*> stacks_;
  std::vector<py::object> frames_;
};

const char* state_name(Block::State state) {
  switch (state) {
    case Block::State::kInUse:
      return "active_allocated";
    case Block::State::kAwaitingFree:
      return "active_awaiting_free";
    case Block::State::kFree:
    case Block::State::kBinned:
      break;
  }
  return "inactive";
}

// Copies of what a snapshot shows, taken under the allocator's lock and turned into Python after.
struct BlockCopy {
  uintptr_t address;
  size_t bytes;
  size_t requested;
  Block::State state;
  StackContext context;
  uint32_t origin;
};
struct SegmentCopy {
  int device;
  uintptr_t address;
  size_t bytes;
  size_t allocated;
  size_t active = 0;
  size_t requested = 0;
  Pool pool;
  StackContext context;
  std::vector<BlockCopy> blocks;
};

std::vector<SegmentCopy> copy_segments(int device) {
  std::vector<SegmentCopy> segments;
  memory_of(device).for_each_segment([&](const Segment& s) {
    SegmentCopy copy{.device = device,
                     .address = s.address,
                     .bytes = s.bytes,
                     .allocated = s.allocated_bytes,
                     .pool = s.pool,
                     .context = s.context,
                     .blocks = {}};
    for (const Block* b = s.first; b; b = b->after) {
      const bool used = b->state == Block::State::kInUse || b->state == Block::State::kAwaitingFree;
      copy.blocks.push_back({b->address, b->bytes, used ? b->requested : 0, b->state,
                             used ? b->context : nullptr, used ? b->origin : 0});
      if (used) copy.requested += b->requested;
      if (b->state == Block::State::kInUse) copy.active += b->bytes;
    }
    segments.push_back(std::move(copy));
  });
  return segments;
}

py::dict snapshot(bool include_traces) {
  py::list segments, traces;
  py::dict result;
  result["segments"] = segments;
  result["device_traces"] = traces;
  result["external_annotations"] = py::list();
  if (!is_started() || in_bad_fork()) return result;
  std::vector<SegmentCopy> copies;
  std::vector<std::vector<MemoryEvent>> events;
  for (int i = 0; i < num_devices(); ++i) {
    memory_of(i).note_snapshot();
    std::vector<SegmentCopy> of_device = copy_segments(i);
    std::move(of_device.begin(), of_device.end(), std::back_inserter(copies));
    events.push_back(include_traces ? memory_of(i).history() : std::vector<MemoryEvent>());
  }
  Frames frames;
  for (const SegmentCopy& segment : copies) {
    frames.add(segment.context);
    for (const BlockCopy& block : segment.blocks) frames.add(block.context);
  }
  for (const auto& of_device : events) {
    for (const MemoryEvent& event : of_device) frames.add(event.context);
  }
  frames.symbolize();

  const py::tuple pool_id = py::make_tuple(0, 0);
  for (const SegmentCopy& segment : copies) {
    py::dict s;
    s["device"] = segment.device;
    s["address"] = segment.address;
    s["total_size"] = segment.bytes;
    s["allocated_size"] = segment.allocated;
    s["active_size"] = segment.active;
    s["requested_size"] = segment.requested;
    s["stream"] = 0;
    s["segment_type"] = segment.pool == Pool::kSmall ? "small" : "large";
    s["segment_pool_id"] = pool_id;
    s["is_expandable"] = false;
    s["frames"] = frames.of(segment.context);
    py::list blocks;
    for (const BlockCopy& block : segment.blocks) {
      py::dict b;
      b["address"] = block.address;
      b["size"] = block.bytes;
      b["requested_size"] = block.requested;
      b["state"] = state_name(block.state);
      b["frames"] = frames.of(block.context);
      if (block.origin) b["origin"] = origin_text(block.origin);
      blocks.append(b);
    }
    s["blocks"] = blocks;
    segments.append(s);
  }
  for (const auto& of_device : events) {
    py::list trace;
    for (const MemoryEvent& event : of_device) {
      py::dict e;
      e["action"] = memory_action_name(event.action);
      e[event.action == MemoryAction::kOutOfMemory ? "device_free" : "addr"] = event.address;
      e["size"] = event.bytes;
      e["stream"] = 0;
      e["time_us"] = event.time_us;
      e["pool_id"] = pool_id;
      e["compile_context"] = "N/A";
      e["user_metadata"] = event.metadata;
      e["frames"] = frames.of(event.context);
      trace.append(e);
    }
    traces.append(trace);
  }
  return result;
}

// The stack that allocated the block which starts at an address; None if it was not recorded.
py::object allocation_traceback(uintptr_t address) {
  StackContext found;
  for (int i = 0; is_started() && i < num_devices(); ++i) {
    memory_of(i).for_each_segment([&](const Segment& s) {
      if (address < s.address || address >= s.address + s.bytes) return;
      for (const Block* b = s.first; b; b = b->after) {
        if (b->address == address && b->state == Block::State::kInUse) found = b->context;
      }
    });
  }
  if (!found) return py::none();
  Frames frames;
  frames.add(found);
  frames.symbolize();
  return frames.of(found);
}

// -- Blocks without tensors -----------------------------------------------------------------------

std::mutex g_raw_mutex;
std::unordered_map<uintptr_t, Ref<DeviceStorage>> g_raw;

uintptr_t raw_alloc(size_t bytes, int index) {
  index = checked_device(index);
  TORCH_CHECK_VALUE(bytes > 0, "expected a size above 0, got 0");
  Ref<DeviceStorage> storage =
      new_storage(runtime().device(index), bytes, {DType::kU8, {static_cast<int64_t>(bytes)}});
  const uintptr_t address = storage->address;
  std::lock_guard lock(g_raw_mutex);
  g_raw.emplace(address, std::move(storage));
  return address;
}

void raw_delete(uintptr_t address) {
  Ref<DeviceStorage> storage;
  {
    std::lock_guard lock(g_raw_mutex);
    auto it = g_raw.find(address);
    TORCH_CHECK(it != g_raw.end(), "invalid device pointer: ", reinterpret_cast<void*>(address),
                " (not from caching_allocator_alloc, or deleted already)");
    storage = std::move(it->second);
    g_raw.erase(it);
  }
}

}  // namespace

void bind_memory(py::module_& m) {
  m.def("memory_stats", &memory_stats);
  m.def("reset_peak_memory", [](int index) { memory_of(index).reset_peak(); });
  m.def("reset_accumulated_memory", [](int index) { memory_of(index).reset_accumulated(); });
  m.def("empty_cache", [] {
    for (int i = 0; is_started() && !in_bad_fork() && i < num_devices(); ++i) {
      memory_of(i).empty_cache();
    }
  });
  m.def("memory_info", [](int index) {
    return py::make_tuple(memory_of(index).free_bytes(), memory_of(index).capacity());
  });
  m.def("largest_free_block", [](int index) { return memory_of(index).largest_free(); });
  m.def("set_memory_fraction",
        [](int index, double fraction) { memory_of(index).set_fraction(fraction); });
  m.def("memory_fraction", [](int index) { return memory_of(index).fraction(); });
  m.def("record_memory", &record_memory);
  m.def("memory_snapshot", &snapshot);
  m.def("allocation_traceback", &allocation_traceback);
  m.def("set_memory_metadata", &set_memory_metadata);
  m.def("memory_metadata", &memory_metadata);
  m.def("host_memory_stats", &host_memory_stats);
  m.def("reset_peak_host_memory", [] { pinned_allocator()->reset_peak_stats(); });
  m.def("reset_accumulated_host_memory", [] { pinned_allocator()->reset_accumulated_stats(); });
  m.def("raw_alloc", &raw_alloc);
  m.def("raw_delete", &raw_delete);
}

}  // namespace tn::torch_glue
