// Growing and shrinking storages.
#pragma once

#include <c10/core/Storage.h>

namespace tn::torch_glue {

// Gives `storage` room for `bytes`; what fits of its contents stays.
void resize_storage(const c10::Storage& storage, size_t bytes);

}  // namespace tn::torch_glue
