#include "host/probe.h"

#include <ATen/ops/add.h>

#include <array>
#include <string>

#include "host/kernels.h"
#include "pjrt/ffi.h"

namespace tn::host {
namespace {

constexpr const char* kProbe = "torchneuron.probe";
// Programs that want a text attribute, an integer and two buffers to arrive as they were given.
constexpr std::string_view kProgram = R"(
module @probe {
  func.func public @main(%a: tensor<4xf32>) -> tensor<4xf32> {
    %0 = stablehlo.custom_call @torchneuron.probe(%a, %a) {
      api_version = 4 : i32, backend_config = {factor = 3 : i64, terms = "1,-2"},
      operand_layouts = [dense<0> : tensor<1xindex>, dense<0> : tensor<1xindex>],
      result_layouts = [dense<0> : tensor<1xindex>]
    } : (tensor<4xf32>, tensor<4xf32>) -> tensor<4xf32>
    return %0 : tensor<4xf32>
  }
}
)";

// a + factor * a + the sum of the terms.
void probe(const Call& call) {
  int64_t sum = 0;
  for (int64_t term : call.integers("terms")) sum += term;
  call.give(0, call.arg(0).add(call.arg(1), call.integer("factor")).add(sum));
}

Status register_all(const Plugin& plugin) {
  TN_RETURN_IF_ERROR(
      register_ffi_handler(plugin, kProbe, reinterpret_cast<void*>(&handler<probe>)));
  for (const HostKernel& kernel : host_kernels()) {
    TN_RETURN_IF_ERROR(
        register_ffi_handler(plugin, kernel.name, reinterpret_cast<void*>(kernel.handler)));
  }
  return Status();
}

Status run_probe(Client& client, std::string_view compile_options) {
  TN_ASSIGN_OR_RETURN(Executable program, client.compile(kProgram, compile_options));
  const std::array<float, 4> given = {1, 2, 3, 4};
  const std::array<int64_t, 1> dims = {4};
  TN_ASSIGN_OR_RETURN(Buffer argument,
                      client.from_host(given.data(), DType::kF32, dims, client.devices().front(),
                                       HostSemantics::kImmutableOnlyDuringCall, nullptr));
  PJRT_Buffer* const arguments[] = {argument.get()};
  PJRT_Buffer* output = nullptr;
  TN_RETURN_IF_ERROR(
      program.execute(arguments, 1, &output, client.devices().front(), nullptr, 0, nullptr));
  Buffer result(client.api(), output);
  std::array<float, 4> got = {};
  TN_RETURN_IF_ERROR(result.read(got.data(), sizeof(got)));
  for (size_t i = 0; i < got.size(); ++i) {
    if (got[i] != 4 * given[i] - 1) return internal_error("it gave other numbers than asked for");
  }
  return Status();
}

}  // namespace

Status enable_host_kernels(Client& client, std::string_view compile_options, int num_threads) {
  set_num_threads(num_threads);
  static const auto* registered = new Status(register_all(*client.plugin()));
  TN_RETURN_IF_ERROR(*registered);
  return run_probe(client, compile_options)
      .with_prefix("PJRT plugin '" + client.plugin()->path() + "' (API version " +
                   client.plugin()->version() +
                   ") took our custom-call handlers and failed at a "
                   "program that calls one: ");
}

}  // namespace tn::host
