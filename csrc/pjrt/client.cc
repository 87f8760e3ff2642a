#include "pjrt/client.h"

#include <type_traits>
#include <utility>

#include "base/clock.h"
#include "base/counters.h"

namespace tn {
namespace {

// Points into `option`, which must outlive the result.
PJRT_NamedValue to_pjrt(const NamedOption& option) {
  PJRT_NamedValue v{};
  v.struct_size = PJRT_NamedValue_STRUCT_SIZE;
  v.name = option.name.data();
  v.name_size = option.name.size();
  v.value_size = 1;
  std::visit(
      [&v](const auto& value) {
        using T = std::decay_t<decltype(value)>;
        if constexpr (std::is_same_v<T, std::string>) {
          v.type = PJRT_NamedValue_kString;
          v.string_value = value.data();
          v.value_size = value.size();
        } else if constexpr (std::is_same_v<T, int64_t>) {
          v.type = PJRT_NamedValue_kInt64;
          v.int64_value = value;
        } else if constexpr (std::is_same_v<T, std::vector<int64_t>>) {
          v.type = PJRT_NamedValue_kInt64List;
          v.int64_array_value = value.data();
          v.value_size = value.size();
        } else if constexpr (std::is_same_v<T, double>) {
          v.type = PJRT_NamedValue_kFloat;
          v.float_value = static_cast<float>(value);
        } else {
          static_assert(std::is_same_v<T, bool>);
          v.type = PJRT_NamedValue_kBool;
          v.bool_value = value;
        }
      },
      option.value);
  return v;
}

PJRT_HostBufferSemantics to_pjrt(HostSemantics semantics) {
  switch (semantics) {
    case HostSemantics::kImmutableOnlyDuringCall:
      return PJRT_HostBufferSemantics_kImmutableOnlyDuringCall;
    case HostSemantics::kImmutableUntilTransferCompletes:
      return PJRT_HostBufferSemantics_kImmutableUntilTransferCompletes;
    case HostSemantics::kImmutableZeroCopy:
      return PJRT_HostBufferSemantics_kImmutableZeroCopy;
    case HostSemantics::kMutableZeroCopy:
      break;
  }
  return PJRT_HostBufferSemantics_kMutableZeroCopy;
}

}  // namespace

Client::Client(std::shared_ptr<Plugin> plugin, PJRT_Client* client)
    : plugin_(std::move(plugin)), api_(plugin_->api()), client_(client) {}

Client::~Client() {
  PJRT_Client_Destroy_Args args{PJRT_Client_Destroy_Args_STRUCT_SIZE, nullptr, client_};
  // Nothing can be done about a client that fails to shut down.
  take_error(api_, api_->PJRT_Client_Destroy(&args)).ignore();
}

Result<std::shared_ptr<Client>> Client::create(std::shared_ptr<Plugin> plugin,
                                               const std::vector<NamedOption>& options) {
  if (plugin == nullptr) return invalid_argument("Client::create: the plugin is null");
  std::vector<PJRT_NamedValue> values;
  values.reserve(options.size());
  for (const NamedOption& option : options) values.push_back(to_pjrt(option));
  PJRT_Client_Create_Args args{};
  args.struct_size = PJRT_Client_Create_Args_STRUCT_SIZE;
  args.create_options = values.data();
  args.num_options = values.size();
  TN_RETURN_IF_ERROR(take_error(plugin->api(), plugin->api()->PJRT_Client_Create(&args))
                         .with_prefix("PJRT plugin '" + plugin->path() + "' (API version " +
                                      plugin->version() + ") failed to create a client: "));
  std::shared_ptr<Client> client(new Client(std::move(plugin), args.client));
  TN_RETURN_IF_ERROR(client->read_platform());
  TN_RETURN_IF_ERROR(client->read_devices());
  return client;
}

Status Client::read_platform() {
  PJRT_Client_PlatformName_Args name{};
  name.struct_size = PJRT_Client_PlatformName_Args_STRUCT_SIZE;
  name.client = client_;
  TN_RETURN_IF_ERROR(take_error(api_, api_->PJRT_Client_PlatformName(&name)));
  platform_name_.assign(name.platform_name, name.platform_name_size);
  PJRT_Client_PlatformVersion_Args version{};
  version.struct_size = PJRT_Client_PlatformVersion_Args_STRUCT_SIZE;
  version.client = client_;
  TN_RETURN_IF_ERROR(take_error(api_, api_->PJRT_Client_PlatformVersion(&version)));
  platform_version_.assign(version.platform_version, version.platform_version_size);
  return Status();
}

Status Client::read_devices() {
  PJRT_Client_AddressableDevices_Args args{};
  args.struct_size = PJRT_Client_AddressableDevices_Args_STRUCT_SIZE;
  args.client = client_;
  TN_RETURN_IF_ERROR(take_error(api_, api_->PJRT_Client_AddressableDevices(&args)));
  devices_.assign(args.addressable_devices,
                  args.addressable_devices + args.num_addressable_devices);
  for (PJRT_Device* device : devices_) {
    PJRT_Device_GetDescription_Args get{};
    get.struct_size = PJRT_Device_GetDescription_Args_STRUCT_SIZE;
    get.device = device;
    TN_RETURN_IF_ERROR(take_error(api_, api_->PJRT_Device_GetDescription(&get)));
    PJRT_DeviceDescription_Id_Args id{};
    id.struct_size = PJRT_DeviceDescription_Id_Args_STRUCT_SIZE;
    id.device_description = get.device_description;
    TN_RETURN_IF_ERROR(take_error(api_, api_->PJRT_DeviceDescription_Id(&id)));
    PJRT_DeviceDescription_Kind_Args kind{};
    kind.struct_size = PJRT_DeviceDescription_Kind_Args_STRUCT_SIZE;
    kind.device_description = get.device_description;
    TN_RETURN_IF_ERROR(take_error(api_, api_->PJRT_DeviceDescription_Kind(&kind)));
    PJRT_DeviceDescription_DebugString_Args debug{};
    debug.struct_size = PJRT_DeviceDescription_DebugString_Args_STRUCT_SIZE;
    debug.device_description = get.device_description;
    TN_RETURN_IF_ERROR(take_error(api_, api_->PJRT_DeviceDescription_DebugString(&debug)));
    descriptions_.push_back({id.id, std::string(kind.device_kind, kind.device_kind_size),
                             std::string(debug.debug_string, debug.debug_string_size)});
  }
  return Status();
}

Result<Buffer> Client::from_host(const void* data, DType dtype, std::span<const int64_t> dims,
                                 PJRT_Device* device, HostSemantics semantics, Event* done) {
  if (done == nullptr && semantics != HostSemantics::kImmutableOnlyDuringCall) {
    return invalid_argument(
        "from_host: the plugin keeps the host memory after the call, so an event that says when "
        "it is done is needed; pass `done`, or use kImmutableOnlyDuringCall");
  }
  size_t bytes = dtype_size_bytes(dtype);
  for (int64_t n : dims) {
    if (n < 0) {
      return invalid_argument("from_host: a dimension is negative: " + std::to_string(n));
    }
    bytes *= static_cast<size_t>(n);
  }
  static constexpr char kNothing = 0;  // Some plugins refuse null, even for no bytes.
  if (data == nullptr) {
    if (bytes != 0) return invalid_argument("from_host: the host memory is null");
    data = &kNothing;
  }
  PJRT_Client_BufferFromHostBuffer_Args args{};
  args.struct_size = PJRT_Client_BufferFromHostBuffer_Args_STRUCT_SIZE;
  args.client = client_;
  args.data = data;
  args.type = dtype_to_pjrt(dtype);
  args.dims = dims.data();
  args.num_dims = dims.size();
  args.host_buffer_semantics = to_pjrt(semantics);
  args.device = device;
  TN_RETURN_IF_ERROR(take_error(api_, api_->PJRT_Client_BufferFromHostBuffer(&args)));
  Event event(api_, args.done_with_host_buffer);
  if (done != nullptr) *done = std::move(event);
  counters().h2d_transfers.add();
  counters().h2d_bytes.add(bytes);
  return Buffer(api_, args.buffer);
}

Result<Executable> Client::compile(std::string_view program,
                                   std::string_view compile_options_proto) {
  static constexpr std::string_view kFormat = "mlir";
  PJRT_Program source{};
  source.struct_size = PJRT_Program_STRUCT_SIZE;
  source.code = const_cast<char*>(program.data());  // In the API for output; only read here.
  source.code_size = program.size();
  source.format = kFormat.data();
  source.format_size = kFormat.size();
  PJRT_Client_Compile_Args args{};
  args.struct_size = PJRT_Client_Compile_Args_STRUCT_SIZE;
  args.client = client_;
  args.program = &source;
  args.compile_options = compile_options_proto.data();
  args.compile_options_size = compile_options_proto.size();
  const int64_t start_ns = monotonic_ns();
  TN_RETURN_IF_ERROR(take_error(api_, api_->PJRT_Client_Compile(&args)));
  counters().compile_ns.add(static_cast<uint64_t>(monotonic_ns() - start_ns));
  counters().compiles.add();
  return Executable::wrap(shared_from_this(), args.executable);
}

Result<Executable> Client::deserialize(std::string_view serialized,
                                       std::string_view compile_options_proto) {
  PJRT_Executable_DeserializeAndLoad_Args args{};
  args.struct_size = PJRT_Executable_DeserializeAndLoad_Args_STRUCT_SIZE;
  args.client = client_;
  args.serialized_executable = serialized.data();
  args.serialized_executable_size = serialized.size();
  if (!compile_options_proto.empty()) {
    // An older plugin would ignore the field. The header we build with is the
    // oldest version that is known to have it.
    if (plugin_->minor() < PJRT_API_MINOR) {
      return unimplemented("PJRT plugin '" + plugin_->path() + "' (API version " +
                           plugin_->version() +
                           ") cannot override the options of a serialized executable; load it "
                           "with the options it was compiled with");
    }
    args.overridden_serialized_compile_options = compile_options_proto.data();
    args.overridden_serialized_compile_options_size = compile_options_proto.size();
  }
  const int64_t start_ns = monotonic_ns();
  TN_RETURN_IF_ERROR(take_error(api_, api_->PJRT_Executable_DeserializeAndLoad(&args)));
  counters().deserialize_ns.add(static_cast<uint64_t>(monotonic_ns() - start_ns));
  counters().deserialized.add();
  return Executable::wrap(shared_from_this(), args.loaded_executable);
}

}  // namespace tn
