// A PJRT plugin: a shared library that answers the PJRT C API.

#ifndef TN_PJRT_PLUGIN_H_
#define TN_PJRT_PLUGIN_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "base/status.h"
#include "pjrt_c_api.h"

// Whether the plugin's struct is long enough to hold `Field`. Older plugins have
// shorter structs; reading beyond `struct_size` is undefined.
#define TN_PJRT_REACHES(api, Field) \
  ((api)->struct_size >= offsetof(PJRT_Api, Field) + sizeof((api)->Field))

// Whether the plugin has the call `Field`: long enough, and not null.
#define TN_PJRT_HAS(api, Field) (TN_PJRT_REACHES(api, Field) && (api)->Field != nullptr)

namespace tn {

// A plugin attribute or a client option.
using NamedValue = std::variant<std::string, int64_t, std::vector<int64_t>, double, bool>;

// Thread-safe after load. A loaded library is never unloaded (plugins start
// threads), so `api()` stays valid for the life of the process.
class Plugin {
 public:
  // Loads and initialises the plugin at `path`. Loading one path twice gives
  // two Plugin objects over one library. Errors: NOT_FOUND (no such file),
  // FAILED_PRECONDITION (not loadable, or not a plugin), UNIMPLEMENTED (another
  // major version, or a call we need is missing), or what its initialisation
  // answered.
  static Result<std::shared_ptr<Plugin>> load(const std::string& path);

  Plugin(const Plugin&) = delete;
  Plugin& operator=(const Plugin&) = delete;

  const PJRT_Api* api() const { return api_; }
  const std::string& path() const { return path_; }
  int major() const { return major_; }
  int minor() const { return minor_; }
  // "0.115"
  std::string version() const;
  // What the plugin says about itself, e.g. "stablehlo_current_version" as a
  // list of three integers, "xla_version".
  const std::map<std::string, NamedValue>& attributes() const { return attributes_; }

  // The first extension of `type` in the plugin's chain, or null.
  const PJRT_Extension_Base* find_extension(PJRT_Extension_Type type) const;

 private:
  Plugin(const PJRT_Api* api, std::string path);
  Status initialize();

  const PJRT_Api* api_;
  std::string path_;
  int major_ = 0;
  int minor_ = 0;
  std::map<std::string, NamedValue> attributes_;
};

// Takes ownership of `error` (null means success) and turns it into a Status
// with the plugin's code and message.
Status take_error(const PJRT_Api* api, PJRT_Error* error);

}  // namespace tn

#endif  // TN_PJRT_PLUGIN_H_
