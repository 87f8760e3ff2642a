// A plugin's runtime instance: devices, uploads, compilation.

#ifndef TN_PJRT_CLIENT_H_
#define TN_PJRT_CLIENT_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "buffer.h"
#include "dtype.h"
#include "event.h"
#include "executable.h"
#include "pjrt_c_api.h"
#include "plugin.h"

namespace tn {

// An option of client creation; names are the plugin's own.
struct NamedOption {
  std::string name;
  NamedValue value;
};

struct DeviceDescription {
  int id = -1;
  std::string kind;   // e.g. "cpu"
  std::string debug;  // the plugin's debug string
};

// When the caller may touch or free the host memory of an upload.
enum class HostSemantics {
  // After from_host returns (the plugin copies).
  kImmutableOnlyDuringCall,
  // After the event `done`.
  kImmutableUntilTransferCompletes,
  // After the buffer, and all that uses it, is gone and `done` is ready: the
  // plugin may use the memory itself. It must be aligned as the plugin wants
  // (64 bytes for XLA's CPU plugins), else it is copied.
  kImmutableZeroCopy,
  // As kImmutableZeroCopy, but programs may write the memory: donating the
  // buffer works in place.
  kMutableZeroCopy,
};

// Thread-safe. Held by shared_ptr: executables keep it alive; buffers and
// events do not and must be gone before the last reference.
class Client : public std::enable_shared_from_this<Client> {
 public:
  // An option that the plugin does not know is its business: some fail, some
  // ignore it.
  static Result<std::shared_ptr<Client>> create(std::shared_ptr<Plugin> plugin,
                                                const std::vector<NamedOption>& options);
  ~Client();
  Client(const Client&) = delete;
  Client& operator=(const Client&) = delete;

  const std::shared_ptr<Plugin>& plugin() const { return plugin_; }
  const PJRT_Api* api() const { return api_; }
  PJRT_Client* get() const { return client_; }
  const std::string& platform_name() const { return platform_name_; }
  const std::string& platform_version() const { return platform_version_; }

  // Addressable devices, in the plugin's order; owned by the client.
  const std::vector<PJRT_Device*>& devices() const { return devices_; }
  // Parallel to devices().
  const std::vector<DeviceDescription>& descriptions() const { return descriptions_; }

  // Copies dense row-major host data to a device. `data` may be null only when
  // a dimension is 0. `done` (may be null for kImmutableOnlyDuringCall only)
  // receives the event that says when `data` may be touched again.
  Result<Buffer> from_host(const void* data, DType dtype, std::span<const int64_t> dims,
                           PJRT_Device* device, HostSemantics semantics, Event* done);

  // Compiles a StableHLO portable artifact (or MLIR text) with a serialized
  // CompileOptionsProto. Blocks; hold no lock that a launch needs.
  Result<Executable> compile(std::string_view program, std::string_view compile_options_proto);

  // Loads what Executable::serialize gave, on the same plugin build. An empty
  // proto keeps the options it was compiled with; a given one is used where the
  // plugin's API has the field, else UNIMPLEMENTED.
  Result<Executable> deserialize(std::string_view serialized,
                                 std::string_view compile_options_proto);

 private:
  Client(std::shared_ptr<Plugin> plugin, PJRT_Client* client);
  Status read_platform();
  Status read_devices();

  std::shared_ptr<Plugin> plugin_;
  const PJRT_Api* api_;
  PJRT_Client* client_;
  std::string platform_name_;
  std::string platform_version_;
  std::vector<PJRT_Device*> devices_;
  std::vector<DeviceDescription> descriptions_;
};

}  // namespace tn

#endif  // TN_PJRT_CLIENT_H_
