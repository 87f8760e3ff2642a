#include "pjrt/ffi.h"

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace tn {
namespace {

// The extension's C interface. The header package of the PJRT C API does not carry it, so what we
// use of it is declared here: the positions are those of all its versions.
struct RegisterHandlerArgs {
  size_t struct_size;
  const char* target_name;
  size_t target_name_size;
  void* handler;
  const char* platform_name;
  size_t platform_name_size;
  uint32_t traits;
};
// As the C API counts: up to the last field, without the padding behind it.
constexpr size_t kRegisterHandlerArgsSize =
    offsetof(RegisterHandlerArgs, traits) + sizeof(RegisterHandlerArgs::traits);

struct FfiExtension {
  PJRT_Extension_Base base;
  void* register_type;
  void* add_user_data;
  PJRT_Error* (*register_handler)(RegisterHandlerArgs* args);
};

constexpr std::string_view kPlatform = "Host";  // XLA's name of the CPU

}  // namespace

Status register_ffi_handler(const Plugin& plugin, const std::string& name, void* handler) {
  const PJRT_Extension_Base* found = plugin.find_extension(PJRT_Extension_Type_FFI);
  const auto* extension = reinterpret_cast<const FfiExtension*>(found);
  const size_t reach =
      offsetof(FfiExtension, register_handler) + sizeof(extension->register_handler);
  if (found == nullptr || found->struct_size < reach || extension->register_handler == nullptr) {
    return unimplemented(
        "PJRT plugin '" + plugin.path() + "' (API version " + plugin.version() +
        ") takes no custom-call handlers: " +
        (found == nullptr ? "it has no FFI extension" : "its FFI extension cannot register any"));
  }
  RegisterHandlerArgs args{};
  args.struct_size = kRegisterHandlerArgsSize;
  args.target_name = name.data();
  args.target_name_size = name.size();
  args.handler = handler;
  args.platform_name = kPlatform.data();
  args.platform_name_size = kPlatform.size();
  return take_error(plugin.api(), extension->register_handler(&args))
      .with_prefix("PJRT plugin '" + plugin.path() + "' refused the custom-call handler '" + name +
                   "': ");
}

}  // namespace tn
