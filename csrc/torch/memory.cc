#include "torch/memory.h"

#include <Python.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <cstdio>
#include <map>
#include <mutex>
#include <unordered_map>

#include "torch/ending.h"
#include "torch/python_line.h"
#include "torch/runtime.h"

namespace tn::torch_glue {
namespace {

constexpr size_t kHoldersShown = 5;

// Texts by number; they live as long as the process, as the program's lines do.
struct Origins {
  std::mutex mutex;
  std::unordered_map<std::string, uint32_t> numbers;
  std::vector<std::string> texts{""};

  uint32_t number(const std::string& text) {
    std::lock_guard lock(mutex);
    auto [it, added] = numbers.emplace(text, static_cast<uint32_t>(texts.size()));
    if (added) texts.push_back(text);
    return it->second;
  }
};

Origins& origins() {
  static Origins* instance = new Origins;
  return *instance;
}

// As PyTorch's CUDA allocator writes sizes.
std::string size_text(size_t bytes) {
  const auto value = static_cast<double>(bytes);
  char text[32];
  if (bytes <= 1024) {
    std::snprintf(text, sizeof(text), "%zu bytes", bytes);
  } else if (bytes <= size_t{1} << 20) {
    std::snprintf(text, sizeof(text), "%.2f KiB", value / 1024);
  } else if (bytes <= size_t{1} << 30) {
    std::snprintf(text, sizeof(text), "%.2f MiB", value / 1048576);
  } else {
    std::snprintf(text, sizeof(text), "%.2f GiB", value / 1073741824);
  }
  return text;
}

// Who holds most, as lines of a report.
std::string holders(const SegmentAllocator& memory) {
  struct Held {
    size_t bytes = 0;
    size_t blocks = 0;
  };
  std::map<uint32_t, Held> by_origin;
  memory.for_each_segment([&](const Segment& segment) {
    for (const Block* block = segment.first; block; block = block->after) {
      if (block->state != Block::State::kInUse && block->state != Block::State::kAwaitingFree) {
        continue;
      }
      Held& held = by_origin[block->origin];
      held.bytes += block->counted;
      ++held.blocks;
    }
  });
  std::vector<std::pair<uint32_t, Held>> order(by_origin.begin(), by_origin.end());
  std::sort(order.begin(), order.end(),
            [](const auto& a, const auto& b) { return a.second.bytes > b.second.bytes; });
  if (order.size() > kHoldersShown) order.resize(kHoldersShown);
  std::string text;
  for (const auto& [origin, held] : order) {
    text += "\n  " + size_text(held.bytes) + " in " + std::to_string(held.blocks) + " tensor(s): ";
    text += origin ? origin_text(origin)
                   : "smaller than 1 MiB each, or made outside Python "
                     "(torch.neuron.memory._record_memory_history() keeps their lines)";
  }
  return text;
}

}  // namespace

std::string origin_text(uint32_t origin) {
  std::lock_guard lock(origins().mutex);
  return origins().texts[origin];
}

Ref<DeviceStorage> place_storage(Device& device, size_t bytes, Layout layout,
                                 const StackContext& stack) {
  Block* block = nullptr;
  if (bytes) {
    block = device.memory().allocate(bytes, stack);
    if (!block) [[unlikely]]
      throw NoMemory{&device, bytes, {}};
  }
  Ref<DeviceStorage> storage(new DeviceStorage(&device, block, bytes));
  storage->layout = std::move(layout);
  return storage;
}

Ref<DeviceStorage> new_storage(Device& device, size_t bytes, Layout layout) {
  const StackContext stack = gather_stack(RecordStacks::kState);
  Ref<DeviceStorage> storage =
      with_memory_retry([&] { return place_storage(device, bytes, layout, stack); });
  if (bytes >= SegmentAllocator::kSmallLimit || stack) [[unlikely]] {
    const std::string line = python_line();
    if (!line.empty()) {
      device.memory().set_origin(storage->block, origins().number("torch.empty at " + line));
    }
  }
  return storage;
}

void note_origin(const std::vector<at::Tensor>& tensors, const std::string& operator_name) {
  const std::string line = python_line();
  const uint32_t origin = origins().number(
      operator_name + (line.empty() ? ", in a thread without Python (backward)" : " at " + line));
  for (const at::Tensor& tensor : tensors) {
    DeviceStorage* storage = storage_of(tensor);
    if (storage->block) storage->device->memory().set_origin(storage->block, origin);
  }
}

void charge_temporaries(Device& device, Kernel& kernel) {
  if (kernel.state() != KernelState::kReady) return;
  const size_t bytes = kernel.temporary_bytes();
  if (bytes && !device.memory().charge_temporaries(bytes)) {
    throw NoMemory{&device, bytes, " for temporaries of " + kernel.name()};
  }
}

void free_garbage(Device& device) {
  {
    ReleaseGil no_gil;
    std::unique_lock lock(runtime().mutex);
    device.drain(lock);
  }
  if (!Py_IsInitialized() || !PyGILState_GetThisThreadState()) return;
  wait_if_interpreter_ends();
  PyGILState_STATE gil = PyGILState_Ensure();
  PyObject *type, *value, *trace;
  PyErr_Fetch(&type, &value, &trace);
  // Unlike PyGC_Collect, also in programs that switched the collector off.
  if (PyObject* gc = PyImport_ImportModule("gc")) {
    Py_XDECREF(PyObject_CallMethod(gc, "collect", nullptr));
    Py_DECREF(gc);
  }
  PyErr_Clear();
  PyErr_Restore(type, value, trace);
  PyGILState_Release(gil);
}

void raise_out_of_memory(const NoMemory& request) {
  Device& device = *request.device;
  SegmentAllocator& memory = device.memory();
  memory.note_out_of_memory(request.bytes, gather_stack(RecordStacks::kState));
  const MemoryStats stats = memory.stats();
  const auto allocated = static_cast<size_t>(stats.allocated_bytes.all().current);
  const auto reserved = static_cast<size_t>(stats.reserved_bytes.all().current);
  const auto temporaries = static_cast<size_t>(stats.temporary_bytes.all().peak);
  std::string text = "Neuron out of memory. Tried to allocate " + size_text(request.bytes) +
                     request.purpose + ". neuron:" + std::to_string(device.index()) +
                     " has a total capacity of " + size_text(memory.capacity()) +
                     " (modelled by the target profile) of which " +
                     size_text(memory.free_bytes()) + " is free. ";
  if (memory.limit() < memory.capacity()) text += size_text(memory.limit()) + " allowed; ";
  text += "Of the reserved memory " + size_text(allocated) + " is allocated by tensors, and " +
          size_text(reserved - allocated) +
          " is reserved by PyTorch but unallocated. The largest free block has " +
          size_text(memory.largest_free()) + ". Executables' temporaries took up to " +
          size_text(temporaries) + " in one launch.";
  if (allocated) text += " Most is held by:" + holders(memory);
  TORCH_CHECK_WITH(OutOfMemoryError, false, text);
}

}  // namespace tn::torch_glue
