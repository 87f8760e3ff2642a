#include "host/kernels.h"

namespace tn::host {
namespace {

constexpr HostKernel kKernels[] = {
    {"torchneuron.add_in_planes", handler<add_in_planes>},
    {"torchneuron.attention", handler<attention>},
    {"torchneuron.attention_backward", handler<attention_backward>},
    {"torchneuron.convolution", handler<convolution>},
    {"torchneuron.convolution_backward", handler<convolution_backward>},
    {"torchneuron.sort", handler<sort>},
    {"torchneuron.topk", handler<topk>},
};

}  // namespace

std::span<const HostKernel> host_kernels() { return kKernels; }

}  // namespace tn::host
