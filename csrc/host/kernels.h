// The host kernels there are (decision D19).
#pragma once

#include <span>

#include "host/handler.h"

namespace tn::host {

struct HostKernel {
  const char* name;  // the target of its custom calls
  XLA_FFI_Handler* handler;
};

std::span<const HostKernel> host_kernels();

// attention.cc
void attention(const Call& call);
void attention_backward(const Call& call);
// convolution.cc
void convolution(const Call& call);
void convolution_backward(const Call& call);
// pooling.cc
void add_in_planes(const Call& call);
// sorting.cc
void sort(const Call& call);
void topk(const Call& call);

}  // namespace tn::host
