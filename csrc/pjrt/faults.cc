#include "pjrt/faults.h"

#include <mutex>
#include <unordered_map>
#include <unordered_set>
#include <utility>

namespace tn {
namespace {

// What a failed call returns in place of the plugin's error object.
struct FakeError {
  StatusCode code;
  std::string message;
};

struct State {
  std::mutex mutex;
  PJRT_Api* table = nullptr;  // ours: calls go through it
  PJRT_Api real;              // as the plugin gave it
  std::unordered_map<std::string, Fault> faults;
  std::unordered_set<const void*> errors;                // FakeErrors that are alive
  std::unordered_map<const PJRT_Event*, Fault> failing;  // events of launches that fail later
  uint64_t failures = 0;
};

State& state() {
  static State* instance = new State;
  return *instance;
}

PJRT_Error* new_error(const Fault& fault) {
  auto* error = new FakeError{fault.code, fault.message};
  state().errors.insert(error);
  return reinterpret_cast<PJRT_Error*>(error);
}

// Whether this call of `call` is to fail, and with what.
bool takes_turn(const char* call, Fault& fault) {
  auto found = state().faults.find(call);
  if (found == state().faults.end()) return false;
  if (found->second.after > 0) {
    --found->second.after;
    return false;
  }
  if (found->second.times == 0) return false;
  --found->second.times;
  ++state().failures;
  fault = found->second;
  return true;
}

PJRT_Error* fails(const char* call) {
  std::lock_guard lock(state().mutex);
  Fault fault;
  return takes_turn(call, fault) ? new_error(fault) : nullptr;
}

FakeError* fake(const PJRT_Error* error) {
  std::lock_guard lock(state().mutex);
  if (!state().errors.contains(error)) return nullptr;
  return reinterpret_cast<FakeError*>(const_cast<PJRT_Error*>(error));
}

void error_message(PJRT_Error_Message_Args* args) {
  if (const FakeError* error = fake(args->error)) {
    args->message = error->message.data();
    args->message_size = error->message.size();
    return;
  }
  state().real.PJRT_Error_Message(args);
}

PJRT_Error* error_code(PJRT_Error_GetCode_Args* args) {
  if (const FakeError* error = fake(args->error)) {
    args->code = static_cast<PJRT_Error_Code>(error->code);
    return nullptr;
  }
  return state().real.PJRT_Error_GetCode(args);
}

void error_destroy(PJRT_Error_Destroy_Args* args) {
  if (FakeError* error = fake(args->error)) {
    std::lock_guard lock(state().mutex);
    state().errors.erase(error);
    delete error;
    return;
  }
  state().real.PJRT_Error_Destroy(args);
}

PJRT_Error* execute(PJRT_LoadedExecutable_Execute_Args* args) {
  if (PJRT_Error* error = fails("execute")) return error;
  PJRT_Error* error = state().real.PJRT_LoadedExecutable_Execute(args);
  if (error || !args->device_complete_events) return error;
  std::lock_guard lock(state().mutex);
  Fault fault;
  if (takes_turn("complete", fault)) state().failing[args->device_complete_events[0]] = fault;
  return nullptr;
}

PJRT_Error* failure_of(const PJRT_Event* event) {
  std::lock_guard lock(state().mutex);
  auto found = state().failing.find(event);
  return found == state().failing.end() ? nullptr : new_error(found->second);
}

PJRT_Error* event_error(PJRT_Event_Error_Args* args) {
  if (PJRT_Error* error = failure_of(args->event)) return error;
  return state().real.PJRT_Event_Error(args);
}

PJRT_Error* event_await(PJRT_Event_Await_Args* args) {
  PJRT_Error* error = state().real.PJRT_Event_Await(args);
  if (error) return error;
  return failure_of(args->event);
}

PJRT_Error* event_destroy(PJRT_Event_Destroy_Args* args) {
  {
    std::lock_guard lock(state().mutex);
    state().failing.erase(args->event);
  }
  return state().real.PJRT_Event_Destroy(args);
}

PJRT_Error* upload(PJRT_Client_BufferFromHostBuffer_Args* args) {
  if (PJRT_Error* error = fails("upload")) return error;
  return state().real.PJRT_Client_BufferFromHostBuffer(args);
}

PJRT_Error* download(PJRT_Buffer_ToHostBuffer_Args* args) {
  if (PJRT_Error* error = fails("download")) return error;
  return state().real.PJRT_Buffer_ToHostBuffer(args);
}

PJRT_Error* compile(PJRT_Client_Compile_Args* args) {
  if (PJRT_Error* error = fails("compile")) return error;
  return state().real.PJRT_Client_Compile(args);
}

PJRT_Error* load(PJRT_Executable_DeserializeAndLoad_Args* args) {
  if (PJRT_Error* error = fails("load")) return error;
  return state().real.PJRT_Executable_DeserializeAndLoad(args);
}

constexpr const char* kCalls[] = {"execute", "complete", "upload", "download", "compile", "load"};

}  // namespace

void faults_may_change(PJRT_Api* api) {
  std::lock_guard lock(state().mutex);
  state().table = api;
  state().real = *api;
}

Status inject_fault(const Fault& fault) {
  std::lock_guard lock(state().mutex);
  bool known = false;
  for (const char* call : kCalls) known = known || fault.call == call;
  if (!known) {
    return invalid_argument("no fault for '" + fault.call +
                            "'; there are execute, complete, upload, download, compile and load");
  }
  PJRT_Api* table = state().table;
  if (!table) return failed_precondition("no plugin is loaded that could fail");
  state().faults[fault.call] = fault;
  table->PJRT_Error_Message = &error_message;
  table->PJRT_Error_GetCode = &error_code;
  table->PJRT_Error_Destroy = &error_destroy;
  table->PJRT_Event_Error = &event_error;
  table->PJRT_Event_Await = &event_await;
  table->PJRT_Event_Destroy = &event_destroy;
  table->PJRT_LoadedExecutable_Execute = &execute;
  table->PJRT_Client_BufferFromHostBuffer = &upload;
  table->PJRT_Buffer_ToHostBuffer = &download;
  table->PJRT_Client_Compile = &compile;
  table->PJRT_Executable_DeserializeAndLoad = &load;
  return Status();
}

// The functions that know our errors and events stay: some may be alive.
uint64_t clear_faults() {
  std::lock_guard lock(state().mutex);
  state().faults.clear();
  if (PJRT_Api* table = state().table) {
    const PJRT_Api& real = state().real;
    table->PJRT_LoadedExecutable_Execute = real.PJRT_LoadedExecutable_Execute;
    table->PJRT_Client_BufferFromHostBuffer = real.PJRT_Client_BufferFromHostBuffer;
    table->PJRT_Buffer_ToHostBuffer = real.PJRT_Buffer_ToHostBuffer;
    table->PJRT_Client_Compile = real.PJRT_Client_Compile;
    table->PJRT_Executable_DeserializeAndLoad = real.PJRT_Executable_DeserializeAndLoad;
  }
  return std::exchange(state().failures, 0);
}

}  // namespace tn
