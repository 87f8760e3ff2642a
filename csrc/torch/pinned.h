// Pinned host memory.
#pragma once

#include <ATen/core/CachingHostAllocator.h>

#include <memory>

namespace tn::torch_glue {

at::HostAllocator* pinned_allocator();
// Keeps the block of a pinned address from being given to others, though it may be released.
std::shared_ptr<void> hold_pinned(const void* pointer);
// Whether an address lies in memory that the allocator gave.
bool is_pinned(const void* pointer);

}  // namespace tn::torch_glue
