#include "pjrt/executable.h"

#include <utility>

#include "base/counters.h"
#include "pjrt/client.h"
#include "pjrt/plugin.h"

namespace tn {

Executable::Executable(Executable&& other) noexcept
    : client_(std::move(other.client_)),
      api_(other.api_),
      loaded_(std::exchange(other.loaded_, nullptr)),
      executable_(std::exchange(other.executable_, nullptr)),
      num_outputs_(std::exchange(other.num_outputs_, 0)),
      outputs_(std::move(other.outputs_)) {}

Executable& Executable::operator=(Executable&& other) noexcept {
  if (this != &other) {
    reset();
    client_ = std::move(other.client_);
    api_ = other.api_;
    loaded_ = std::exchange(other.loaded_, nullptr);
    executable_ = std::exchange(other.executable_, nullptr);
    num_outputs_ = std::exchange(other.num_outputs_, 0);
    outputs_ = std::move(other.outputs_);
  }
  return *this;
}

Executable::~Executable() { reset(); }

void Executable::reset() {
  // Nothing can be done about an executable that fails to be freed.
  if (PJRT_Executable* executable = std::exchange(executable_, nullptr)) {
    PJRT_Executable_Destroy_Args args{PJRT_Executable_Destroy_Args_STRUCT_SIZE, nullptr,
                                      executable};
    take_error(api_, api_->PJRT_Executable_Destroy(&args)).ignore();
  }
  if (PJRT_LoadedExecutable* loaded = std::exchange(loaded_, nullptr)) {
    PJRT_LoadedExecutable_Destroy_Args args{PJRT_LoadedExecutable_Destroy_Args_STRUCT_SIZE, nullptr,
                                            loaded};
    take_error(api_, api_->PJRT_LoadedExecutable_Destroy(&args)).ignore();
    counters().executables_destroyed.add();
  }
  num_outputs_ = 0;
  outputs_.clear();
  client_.reset();  // Last: it may be the client's last reference.
}

Result<Executable> Executable::wrap(std::shared_ptr<Client> client, PJRT_LoadedExecutable* loaded) {
  Executable result;
  result.api_ = client->api();
  result.client_ = std::move(client);
  result.loaded_ = loaded;
  PJRT_LoadedExecutable_GetExecutable_Args args{};
  args.struct_size = PJRT_LoadedExecutable_GetExecutable_Args_STRUCT_SIZE;
  args.loaded_executable = loaded;
  TN_RETURN_IF_ERROR(
      take_error(result.api_, result.api_->PJRT_LoadedExecutable_GetExecutable(&args)));
  result.executable_ = args.executable;
  TN_RETURN_IF_ERROR(result.read_outputs());
  return result;
}

Status Executable::read_outputs() {
  PJRT_Executable_NumOutputs_Args count{};
  count.struct_size = PJRT_Executable_NumOutputs_Args_STRUCT_SIZE;
  count.executable = executable_;
  TN_RETURN_IF_ERROR(take_error(api_, api_->PJRT_Executable_NumOutputs(&count)));
  num_outputs_ = count.num_outputs;

  PJRT_Executable_OutputElementTypes_Args types{};
  types.struct_size = PJRT_Executable_OutputElementTypes_Args_STRUCT_SIZE;
  types.executable = executable_;
  TN_RETURN_IF_ERROR(take_error(api_, api_->PJRT_Executable_OutputElementTypes(&types)));
  PJRT_Executable_OutputDimensions_Args shapes{};
  shapes.struct_size = PJRT_Executable_OutputDimensions_Args_STRUCT_SIZE;
  shapes.executable = executable_;
  TN_RETURN_IF_ERROR(take_error(api_, api_->PJRT_Executable_OutputDimensions(&shapes)));
  if (types.num_output_types != num_outputs_ || shapes.num_outputs != num_outputs_) {
    return internal_error("the plugin reports " + std::to_string(num_outputs_) + " outputs, but " +
                          std::to_string(types.num_output_types) + " output types and " +
                          std::to_string(shapes.num_outputs) + " output shapes");
  }
  outputs_.reserve(num_outputs_);
  const int64_t* dim = shapes.dims;
  for (size_t i = 0; i < num_outputs_; ++i) {
    const std::optional<DType> dtype = dtype_from_pjrt(types.output_types[i]);
    if (!dtype) {
      return unimplemented("output " + std::to_string(i) + " has PJRT element type " +
                           std::to_string(types.output_types[i]) +
                           ", which has no PyTorch counterpart");
    }
    outputs_.push_back({*dtype, std::vector<int64_t>(dim, dim + shapes.dim_sizes[i])});
    dim += shapes.dim_sizes[i];
  }
  return Status();
}

size_t Executable::generated_code_bytes() const {
  if (executable_ == nullptr || !TN_PJRT_HAS(api_, PJRT_Executable_SizeOfGeneratedCodeInBytes)) {
    return 0;
  }
  PJRT_Executable_SizeOfGeneratedCodeInBytes_Args args{};
  args.struct_size = PJRT_Executable_SizeOfGeneratedCodeInBytes_Args_STRUCT_SIZE;
  args.executable = executable_;
  const Status status = take_error(api_, api_->PJRT_Executable_SizeOfGeneratedCodeInBytes(&args));
  return status.ok() && args.size_in_bytes > 0 ? static_cast<size_t>(args.size_in_bytes) : 0;
}

Result<CompiledMemoryStats> Executable::memory_stats() const {
  if (executable_ == nullptr) return failed_precondition("memory_stats of a null executable");
  if (!TN_PJRT_HAS(api_, PJRT_Executable_GetCompiledMemoryStats)) {
    return unimplemented("the plugin has no PJRT_Executable_GetCompiledMemoryStats");
  }
  PJRT_Executable_GetCompiledMemoryStats_Args args{};
  args.struct_size = PJRT_Executable_GetCompiledMemoryStats_Args_STRUCT_SIZE;
  args.executable = executable_;
  args.generated_code_size_in_bytes = -1;
  args.argument_size_in_bytes = -1;
  args.output_size_in_bytes = -1;
  args.alias_size_in_bytes = -1;
  args.temp_size_in_bytes = -1;
  TN_RETURN_IF_ERROR(take_error(api_, api_->PJRT_Executable_GetCompiledMemoryStats(&args)));
  CompiledMemoryStats stats;
  stats.generated_code_bytes = args.generated_code_size_in_bytes;
  stats.argument_bytes = args.argument_size_in_bytes;
  stats.output_bytes = args.output_size_in_bytes;
  stats.alias_bytes = args.alias_size_in_bytes;
  stats.temp_bytes = args.temp_size_in_bytes;
  return stats;
}

Result<std::string> Executable::serialize() const {
  if (executable_ == nullptr) return failed_precondition("serialize of a null executable");
  PJRT_Executable_Serialize_Args args{};
  args.struct_size = PJRT_Executable_Serialize_Args_STRUCT_SIZE;
  args.executable = executable_;
  TN_RETURN_IF_ERROR(take_error(api_, api_->PJRT_Executable_Serialize(&args)));
  std::string bytes(args.serialized_bytes, args.serialized_bytes_size);
  if (args.serialized_executable_deleter != nullptr) {
    args.serialized_executable_deleter(args.serialized_executable);
  }
  counters().serialized.add();
  return bytes;
}

Status Executable::execute(PJRT_Buffer* const* args, size_t num_args, PJRT_Buffer** outputs,
                           PJRT_Device* execute_device, const int64_t* non_donatable,
                           size_t num_non_donatable, PJRT_Event** complete_event) const {
  if (loaded_ == nullptr) [[unlikely]] {
    return failed_precondition("execute of a null executable");
  }
  PJRT_ExecuteOptions options{};
  options.struct_size = PJRT_ExecuteOptions_STRUCT_SIZE;
  options.non_donatable_input_indices = non_donatable;
  options.num_non_donatable_input_indices = num_non_donatable;

  PJRT_LoadedExecutable_Execute_Args execute{};
  execute.struct_size = PJRT_LoadedExecutable_Execute_Args_STRUCT_SIZE;
  execute.executable = loaded_;
  execute.options = &options;
  execute.argument_lists = &args;
  execute.num_devices = 1;
  execute.num_args = num_args;
  execute.output_lists = &outputs;
  execute.device_complete_events = complete_event;
  execute.execute_device = execute_device;

  if (PJRT_Error* error = api_->PJRT_LoadedExecutable_Execute(&execute)) [[unlikely]] {
    counters().launch_errors.add();
    for (size_t i = 0; i < num_outputs_; ++i) outputs[i] = nullptr;
    if (complete_event != nullptr) *complete_event = nullptr;
    return take_error(api_, error);
  }
  counters().launches.add();
  return Status();
}

}  // namespace tn
