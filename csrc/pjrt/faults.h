// Faults for tests: makes calls of a plugin fail that would succeed.
//
// While nothing is injected, nothing here runs: a fault takes the place of the plugin's function in
// our copy of its table.
#pragma once

#include <cstdint>
#include <string>

#include "base/status.h"
#include "pjrt_c_api.h"

namespace tn {

struct Fault {
  // "execute": a launch is refused. "complete": a launch is accepted and fails later.
  // "upload", "download", "compile", "load": the call fails.
  std::string call;
  StatusCode code = StatusCode::kInternal;
  std::string message;
  uint64_t after = 0;  // calls that succeed before
  uint64_t times = 1;  // calls that fail then
};

// Thread-safe, but not beside calls of the plugin in other threads. INVALID_ARGUMENT for an unknown
// call; FAILED_PRECONDITION before a plugin was loaded. One fault a call: a new one replaces it.
Status inject_fault(const Fault& fault);
// How often injected faults made a call fail, since the last call of this.
uint64_t clear_faults();

// Called by Plugin with its table, which must live as long as the process.
void faults_may_change(PJRT_Api* api);

}  // namespace tn
