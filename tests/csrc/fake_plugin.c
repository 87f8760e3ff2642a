/* Libraries that are almost plugins; test_pjrt.py compiles one per FAKE_*. */
#include "pjrt_c_api.h"

static PJRT_Api api;

#ifdef FAKE_NO_ENTRY
const PJRT_Api* SomethingElse(void) { return &api; }
#else
const PJRT_Api* GetPjrtApi(void) {
#ifdef FAKE_NULL
  return 0;
#else
  api.struct_size = PJRT_Api_STRUCT_SIZE;
  api.pjrt_api_version.struct_size = PJRT_Api_Version_STRUCT_SIZE;
  api.pjrt_api_version.major_version = PJRT_API_MAJOR;
  api.pjrt_api_version.minor_version = 7;
#ifdef FAKE_MAJOR
  api.pjrt_api_version.major_version = 3;
#endif
#ifdef FAKE_SHORT
  api.struct_size = sizeof(size_t);
#endif
  return &api; /* Otherwise: every call is missing. */
#endif
}
#endif
