// A compiled program that is loaded on a client's devices.

#ifndef TN_PJRT_EXECUTABLE_H_
#define TN_PJRT_EXECUTABLE_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/status.h"
#include "dtype.h"
#include "pjrt_c_api.h"

namespace tn {

class Client;

// What a plugin says about the memory of an executable, in bytes. -1: the
// plugin's struct does not reach that field.
struct CompiledMemoryStats {
  int64_t generated_code_bytes = -1;
  int64_t argument_bytes = -1;
  int64_t output_bytes = -1;
  int64_t alias_bytes = -1;  // of the arguments, reused for outputs
  int64_t temp_bytes = -1;
};

struct OutputSpec {
  DType dtype;
  std::vector<int64_t> dims;
};

// Owns a PJRT_LoadedExecutable and the PJRT_Executable beneath it; keeps its
// client alive. Move-only. Const calls are thread-safe. Destroying it with
// launches in flight is safe.
class Executable {
 public:
  Executable() = default;
  Executable(Executable&& other) noexcept;
  Executable& operator=(Executable&& other) noexcept;
  ~Executable();

  bool is_null() const { return loaded_ == nullptr; }
  PJRT_LoadedExecutable* get() const { return loaded_; }
  void reset();

  size_t num_outputs() const { return num_outputs_; }
  // Shape and type of each output, read from the plugin when it was loaded.
  const std::vector<OutputSpec>& outputs() const { return outputs_; }
  // Size of the machine code, or 0 when the plugin does not say.
  size_t generated_code_bytes() const;
  Result<CompiledMemoryStats> memory_stats() const;

  // Native code for this plugin build and this kind of machine.
  Result<std::string> serialize() const;

  // Enqueues one launch; returns when it is enqueued (a plugin may run small
  // programs within the call). Allocates nothing itself.
  //
  // args: num_args live buffers. Those that the program marks as donatable are
  //   consumed (also when the call fails, depending on the plugin: ask
  //   Buffer::is_deleted) unless their index is in non_donatable.
  // outputs: room for num_outputs() buffers, which the caller owns afterwards.
  //   Untouched contents are set to null on error.
  // execute_device: null runs on the device of the compile options; portable
  //   executables need one.
  // complete_event: when not null, receives an event that the caller owns
  //   (null on error). Asking costs time; the outputs' ready events say the
  //   same about success.
  Status execute(PJRT_Buffer* const* args, size_t num_args, PJRT_Buffer** outputs,
                 PJRT_Device* execute_device, const int64_t* non_donatable,
                 size_t num_non_donatable, PJRT_Event** complete_event) const;

 private:
  friend class Client;
  // Takes ownership of `loaded`.
  static Result<Executable> wrap(std::shared_ptr<Client> client, PJRT_LoadedExecutable* loaded);
  Status read_outputs();

  std::shared_ptr<Client> client_;
  const PJRT_Api* api_ = nullptr;
  PJRT_LoadedExecutable* loaded_ = nullptr;
  PJRT_Executable* executable_ = nullptr;
  size_t num_outputs_ = 0;
  std::vector<OutputSpec> outputs_;
};

}  // namespace tn

#endif  // TN_PJRT_EXECUTABLE_H_
