// Pinned host memory.
#pragma once

#include <c10/core/Allocator.h>

namespace tn::torch_glue {

c10::Allocator* pinned_allocator();
// Whether an address lies in memory that the allocator gave.
bool is_pinned(const void* pointer);

}  // namespace tn::torch_glue
