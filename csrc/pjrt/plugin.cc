#include "pjrt/plugin.h"

#include <dlfcn.h>
#include <sys/stat.h>

#include <algorithm>
#include <cstring>
#include <mutex>
#include <unordered_map>
#include <utility>

#include "pjrt/faults.h"

namespace tn {
namespace {

struct RequiredCall {
  const char* name;
  size_t offset;
};

// Everything that csrc/pjrt calls without asking. What it asks for first
// (TN_PJRT_HAS) is not here.
#define TN_REQUIRED_(Field) \
  RequiredCall { #Field, offsetof(PJRT_Api, Field) }
constexpr RequiredCall kRequired[] = {
    TN_REQUIRED_(PJRT_Error_Destroy),
    TN_REQUIRED_(PJRT_Error_Message),
    TN_REQUIRED_(PJRT_Error_GetCode),
    TN_REQUIRED_(PJRT_Plugin_Initialize),
    TN_REQUIRED_(PJRT_Event_Destroy),
    TN_REQUIRED_(PJRT_Event_IsReady),
    TN_REQUIRED_(PJRT_Event_Error),
    TN_REQUIRED_(PJRT_Event_Await),
    TN_REQUIRED_(PJRT_Event_OnReady),
    TN_REQUIRED_(PJRT_Client_Create),
    TN_REQUIRED_(PJRT_Client_Destroy),
    TN_REQUIRED_(PJRT_Client_PlatformName),
    TN_REQUIRED_(PJRT_Client_PlatformVersion),
    TN_REQUIRED_(PJRT_Client_AddressableDevices),
    TN_REQUIRED_(PJRT_Client_Compile),
    TN_REQUIRED_(PJRT_Client_BufferFromHostBuffer),
    TN_REQUIRED_(PJRT_DeviceDescription_Id),
    TN_REQUIRED_(PJRT_DeviceDescription_Kind),
    TN_REQUIRED_(PJRT_DeviceDescription_DebugString),
    TN_REQUIRED_(PJRT_Device_GetDescription),
    TN_REQUIRED_(PJRT_Executable_Destroy),
    TN_REQUIRED_(PJRT_Executable_NumOutputs),
    TN_REQUIRED_(PJRT_Executable_OutputElementTypes),
    TN_REQUIRED_(PJRT_Executable_OutputDimensions),
    TN_REQUIRED_(PJRT_Executable_Serialize),
    TN_REQUIRED_(PJRT_Executable_DeserializeAndLoad),
    TN_REQUIRED_(PJRT_LoadedExecutable_Destroy),
    TN_REQUIRED_(PJRT_LoadedExecutable_GetExecutable),
    TN_REQUIRED_(PJRT_LoadedExecutable_Execute),
    TN_REQUIRED_(PJRT_Buffer_Destroy),
    TN_REQUIRED_(PJRT_Buffer_ElementType),
    TN_REQUIRED_(PJRT_Buffer_Dimensions),
    TN_REQUIRED_(PJRT_Buffer_ReadyEvent),
    TN_REQUIRED_(PJRT_Buffer_ToHostBuffer),
    TN_REQUIRED_(PJRT_Buffer_OnDeviceSizeInBytes),
    TN_REQUIRED_(PJRT_Buffer_IsDeleted),
};
#undef TN_REQUIRED_

// Whether the struct reaches the call and it is set.
bool has_call(const PJRT_Api* api, size_t offset) {
  if (api->struct_size < offset + sizeof(void*)) return false;
  const void* pointer = nullptr;
  std::memcpy(&pointer, reinterpret_cast<const char*>(api) + offset, sizeof(pointer));
  return pointer != nullptr;
}

constexpr std::string_view kChooseAnother =
    "Set TORCH_NEURONX_PJRT_PLUGIN to the path of a PJRT plugin.";

NamedValue to_value(const PJRT_NamedValue& v) {
  switch (v.type) {
    case PJRT_NamedValue_kString:
      return std::string(v.string_value, v.value_size);
    case PJRT_NamedValue_kInt64:
      return v.int64_value;
    case PJRT_NamedValue_kInt64List:
      return std::vector<int64_t>(v.int64_array_value, v.int64_array_value + v.value_size);
    case PJRT_NamedValue_kFloat:
      return static_cast<double>(v.float_value);
    case PJRT_NamedValue_kBool:
      return v.bool_value;
  }
  return std::string("(value of an unknown type)");
}

// The one copy of a library's table, as far as both sides know it, so that tests can make calls
// fail. Never freed, as the library is never unloaded.
const PJRT_Api* copy_of(const PJRT_Api* api) {
  static auto* mutex = new std::mutex;
  static auto* copies = new std::unordered_map<const PJRT_Api*, PJRT_Api*>;
  std::lock_guard lock(*mutex);
  PJRT_Api*& copy = (*copies)[api];
  if (!copy) {
    copy = new PJRT_Api{};
    const size_t bytes = std::min(api->struct_size, sizeof(PJRT_Api));
    std::memcpy(copy, api, bytes);
    copy->struct_size = bytes;
    faults_may_change(copy);
  }
  return copy;
}

}  // namespace

Status take_error(const PJRT_Api* api, PJRT_Error* error) {
  if (error == nullptr) [[likely]]
    return Status();
  PJRT_Error_GetCode_Args code{};
  code.struct_size = PJRT_Error_GetCode_Args_STRUCT_SIZE;
  code.error = error;
  code.code = PJRT_Error_Code_UNKNOWN;
  if (PJRT_Error* second = api->PJRT_Error_GetCode(&code)) {
    code.code = PJRT_Error_Code_UNKNOWN;
    PJRT_Error_Destroy_Args destroy{PJRT_Error_Destroy_Args_STRUCT_SIZE, nullptr, second};
    api->PJRT_Error_Destroy(&destroy);
  }
  PJRT_Error_Message_Args message{};
  message.struct_size = PJRT_Error_Message_Args_STRUCT_SIZE;
  message.error = error;
  api->PJRT_Error_Message(&message);
  std::string text(message.message == nullptr ? "" : message.message,
                   message.message == nullptr ? 0 : message.message_size);
  PJRT_Error_Destroy_Args destroy{PJRT_Error_Destroy_Args_STRUCT_SIZE, nullptr, error};
  api->PJRT_Error_Destroy(&destroy);
  // An error object with code OK would read as success; it is none.
  const StatusCode status_code =
      code.code == PJRT_Error_Code_OK ? StatusCode::kUnknown : static_cast<StatusCode>(code.code);
  return Status(status_code, std::move(text));
}

Plugin::Plugin(const PJRT_Api* api, std::string path)
    : api_(copy_of(api)),
      path_(std::move(path)),
      major_(api->pjrt_api_version.major_version),
      minor_(api->pjrt_api_version.minor_version) {}

std::string Plugin::version() const {
  return std::to_string(major_) + "." + std::to_string(minor_);
}

Result<std::shared_ptr<Plugin>> Plugin::load(const std::string& path) {
  struct stat info;
  if (::stat(path.c_str(), &info) != 0) {
    return not_found("no PJRT plugin at '" + path +
                     "': the file does not exist or cannot be read. " +
                     std::string(kChooseAnother));
  }
  if (!S_ISREG(info.st_mode)) {
    return failed_precondition("'" + path +
                               "' is not a file; expected a PJRT plugin (a shared library). " +
                               std::string(kChooseAnother));
  }
  // A path without a slash would be looked up in the library path instead.
  const std::string name = path.find('/') == std::string::npos ? "./" + path : path;
  // RTLD_LOCAL keeps two plugins' copies of XLA apart.
  void* library = ::dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    const char* why = ::dlerror();
    return failed_precondition("'" + path + "' cannot be loaded as a shared library: " +
                               (why == nullptr ? "no reason given" : why) + ". " +
                               std::string(kChooseAnother));
  }
  using GetPjrtApi = const PJRT_Api* (*)();
  const auto get_api = reinterpret_cast<GetPjrtApi>(::dlsym(library, "GetPjrtApi"));
  const PJRT_Api* api = get_api == nullptr ? nullptr : get_api();
  if (api == nullptr) {
    return failed_precondition(
        "'" + path + "' is not a PJRT plugin: " +
        (get_api == nullptr ? "it does not export GetPjrtApi" : "its GetPjrtApi returned null") +
        ". " + std::string(kChooseAnother));
  }
  if (!TN_PJRT_REACHES(api, pjrt_api_version)) {
    return failed_precondition("'" + path + "' is not a PJRT plugin: its PJRT_Api has only " +
                               std::to_string(api->struct_size) +
                               " bytes, too few for a version. " + std::string(kChooseAnother));
  }
  std::shared_ptr<Plugin> plugin(new Plugin(api, path));
  const std::string who = "PJRT plugin '" + path + "' (API version " + plugin->version() + ")";
  if (plugin->major_ != PJRT_API_MAJOR) {
    return unimplemented(who + " has another major version than the one this build speaks (" +
                         std::to_string(PJRT_API_MAJOR) +
                         "). Use a plugin with that major version, or rebuild torchneuron against "
                         "the plugin's pjrt_c_api.h.");
  }
  for (const RequiredCall& call : kRequired) {
    if (!has_call(api, call.offset)) {
      return unimplemented(who + " lacks the call " + call.name +
                           ", which torchneuron needs. Use a newer build of the plugin (the oldest "
                           "API version tested is 0.81).");
    }
  }
  TN_RETURN_IF_ERROR(plugin->initialize().with_prefix(who + " failed to initialise: "));
  return plugin;
}

Status Plugin::initialize() {
  PJRT_Plugin_Initialize_Args init{};
  init.struct_size = PJRT_Plugin_Initialize_Args_STRUCT_SIZE;
  TN_RETURN_IF_ERROR(take_error(api_, api_->PJRT_Plugin_Initialize(&init)));
  if (!TN_PJRT_HAS(api_, PJRT_Plugin_Attributes)) return Status();
  PJRT_Plugin_Attributes_Args args{};
  args.struct_size = PJRT_Plugin_Attributes_Args_STRUCT_SIZE;
  const Status status = take_error(api_, api_->PJRT_Plugin_Attributes(&args));
  if (status.code() == StatusCode::kUnimplemented) return Status();
  TN_RETURN_IF_ERROR(status);
  for (size_t i = 0; i < args.num_attributes; ++i) {
    const PJRT_NamedValue& v = args.attributes[i];
    attributes_.insert_or_assign(std::string(v.name, v.name_size), to_value(v));
  }
  return Status();
}

const PJRT_Extension_Base* Plugin::find_extension(PJRT_Extension_Type type) const {
  for (const PJRT_Extension_Base* e = api_->extension_start; e != nullptr; e = e->next) {
    if (e->type == type) return e;
  }
  return nullptr;
}

}  // namespace tn
