// Recurrent networks. PyTorch composes nn.LSTM, nn.GRU and nn.RNN step by step on a device without
// kernels of its own; here a layer and direction is one operator, neuron::rnn_layer, whose steps
// run inside one executable. What that operator does not take keeps PyTorch's way: projections,
// packed sequences, tensor subclasses, mixed dtypes.

#include <ATen/Functions.h>
#include <ATen/autocast_mode.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/TorchDispatchUtils.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/gru_native.h>
#include <ATen/ops/lstm_native.h>
#include <ATen/ops/rnn_relu_native.h>
#include <ATen/ops/rnn_tanh_native.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/library.h>

#include <array>
#include <string>
#include <string_view>
#include <tuple>
#include <vector>

#include "torch/dispatch/overloads.h"

namespace tn::torch_glue {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;
using Maybe = std::optional<at::Tensor>;
using Five = std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor, at::Tensor>;
using Seven =
    std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor, at::Tensor, at::Tensor, at::Tensor>;

int64_t gates_of(std::string_view mode) { return mode == "lstm" ? 4 : mode == "gru" ? 3 : 1; }

Five call_layer(const at::Tensor& input, const at::Tensor& hx, const Maybe& cx,
                const at::Tensor& w_ih, const at::Tensor& w_hh, const Maybe& b_ih,
                const Maybe& b_hh, c10::string_view mode, bool reverse, bool train) {
  static const auto op = c10::Dispatcher::singleton()
                             .findSchemaOrThrow("neuron::rnn_layer", "")
                             .typed<Five(const at::Tensor&, const at::Tensor&, const Maybe&,
                                         const at::Tensor&, const at::Tensor&, const Maybe&,
                                         const Maybe&, c10::string_view, bool, bool)>();
  return op.call(input, hx, cx, w_ih, w_hh, b_ih, b_hh, mode, reverse, train);
}

Seven call_layer_backward(const Maybe& grad_output, const Maybe& grad_hy, const Maybe& grad_cy,
                          const at::Tensor& input, const at::Tensor& hx, const Maybe& cx,
                          const at::Tensor& w_ih, const at::Tensor& w_hh, const at::Tensor& output,
                          const at::Tensor& gates, const at::Tensor& cells, c10::string_view mode,
                          bool reverse, std::array<bool, 7> wanted) {
  static const auto op =
      c10::Dispatcher::singleton()
          .findSchemaOrThrow("neuron::rnn_layer_backward", "")
          .typed<Seven(const Maybe&, const Maybe&, const Maybe&, const at::Tensor&,
                       const at::Tensor&, const Maybe&, const at::Tensor&, const at::Tensor&,
                       const at::Tensor&, const at::Tensor&, const at::Tensor&, c10::string_view,
                       bool, std::array<bool, 7>)>();
  return op.call(grad_output, grad_hy, grad_cy, input, hx, cx, w_ih, w_hh, output, gates, cells,
                 mode, reverse, wanted);
}

// Shapes

Five layer_meta(const at::Tensor& input, const at::Tensor& hx, const Maybe&, const at::Tensor&,
                const at::Tensor&, const Maybe&, const Maybe&, c10::string_view mode, bool,
                bool train) {
  const c10::SymInt steps = input.sym_size(0), batch = input.sym_size(1), hidden = hx.sym_size(1);
  const bool lstm = mode == "lstm", gated = lstm || mode == "gru";
  const at::Tensor empty = input.new_empty({0});
  return {input.new_empty_symint({steps, batch, hidden}), input.new_empty_symint({batch, hidden}),
          lstm ? input.new_empty_symint({batch, hidden}) : empty,
          train && gated ? input.new_empty_symint({steps, batch, 4 * hidden}) : empty.clone(),
          train && lstm ? input.new_empty_symint({steps, batch, hidden}) : empty.clone()};
}

Seven layer_backward_meta(const Maybe&, const Maybe&, const Maybe&, const at::Tensor& input,
                          const at::Tensor& hx, const Maybe&, const at::Tensor& w_ih,
                          const at::Tensor& w_hh, const at::Tensor&, const at::Tensor&,
                          const at::Tensor&, c10::string_view, bool, std::array<bool, 7> wanted) {
  const auto like = [&](size_t i, const at::Tensor& x) {
    return wanted[i] ? x.new_empty_symint(x.sym_sizes()) : at::Tensor();
  };
  const auto bias = [&](size_t i) {
    return wanted[i] ? w_hh.new_empty_symint({w_hh.sym_size(0)}) : at::Tensor();
  };
  return {like(0, input), like(1, hx), like(2, hx), like(3, w_ih), like(4, w_hh), bias(5), bias(6)};
}

// Gradients

// The layer in operators that have derivatives of every order and kind: what gradients of
// gradients, forward-mode AD and torch.func go through.
std::tuple<at::Tensor, at::Tensor, at::Tensor> layer_by_steps(
    const at::Tensor& input, const at::Tensor& hx, const at::Tensor& cx, const at::Tensor& w_ih,
    const at::Tensor& w_hh, const at::Tensor& b_ih, const at::Tensor& b_hh, std::string_view mode,
    bool reverse) {
  const auto linear = [](const at::Tensor& x, const at::Tensor& w, const at::Tensor& b) {
    return at::linear(x, w, b.defined() ? Maybe(b) : Maybe());
  };
  const std::vector<at::Tensor> gates_in = linear(input, w_ih, b_ih).unbind(0);
  const size_t steps = gates_in.size();
  std::vector<at::Tensor> outputs(steps);
  at::Tensor h = hx, c = cx;
  for (size_t i = 0; i < steps; ++i) {
    const size_t t = reverse ? steps - 1 - i : i;
    const at::Tensor hidden = linear(h, w_hh, b_hh);
    if (mode == "gru") {
      const std::vector<at::Tensor> a = gates_in[t].chunk(3, 1), b = hidden.chunk(3, 1);
      const at::Tensor z = at::sigmoid(a[1] + b[1]);
      const at::Tensor n = at::tanh(a[2] + at::sigmoid(a[0] + b[0]) * b[2]);
      h = n + z * (h - n);
    } else if (mode == "lstm") {
      const std::vector<at::Tensor> g = (gates_in[t] + hidden).chunk(4, 1);
      c = at::sigmoid(g[1]) * c + at::sigmoid(g[0]) * at::tanh(g[2]);
      h = at::sigmoid(g[3]) * at::tanh(c);
    } else {
      const at::Tensor x = gates_in[t] + hidden;
      h = mode == "rnn_tanh" ? at::tanh(x) : at::relu(x);
    }
    outputs[t] = h;
  }
  return {at::stack(outputs), h, c};
}

variable_list differentiable_gradients(const variable_list& grads, const variable_list& inputs,
                                       std::string_view mode, bool reverse) {
  // One input may have been computed from another: gradients end at views of them.
  variable_list views, wanted, outputs, grad_outputs;
  for (const at::Tensor& x : inputs) {
    views.push_back(x.defined() ? x.view_as(x) : x);
    if (x.defined() && x.requires_grad()) wanted.push_back(views.back());
  }
  const auto [output, hy, cy] = layer_by_steps(views[0], views[1], views[2], views[3], views[4],
                                               views[5], views[6], mode, reverse);
  const std::array<at::Tensor, 3> results = {output, hy, cy};
  for (size_t i = 0; i < 3; ++i) {
    if (!grads[i].defined()) continue;
    outputs.push_back(results[i]);
    grad_outputs.push_back(grads[i]);
  }
  variable_list found = torch::autograd::grad(outputs, wanted, grad_outputs, /*retain_graph=*/true,
                                              /*create_graph=*/true, /*allow_unused=*/true);
  variable_list result(7);
  size_t next = 0;
  for (size_t i = 0; i < inputs.size(); ++i) {
    if (inputs[i].defined() && inputs[i].requires_grad()) result[i] = found[next++];
  }
  return result;
}

Maybe maybe(const at::Tensor& x) { return x.defined() ? Maybe(x) : Maybe(); }

class RnnLayer final : public torch::autograd::Function<RnnLayer> {
 public:
  static variable_list forward(AutogradContext* ctx, const at::Tensor& input, const at::Tensor& hx,
                               const Maybe& cx, const at::Tensor& w_ih, const at::Tensor& w_hh,
                               const Maybe& b_ih, const Maybe& b_hh, const std::string& mode,
                               bool reverse) {
    const at::AutoDispatchBelowADInplaceOrView below;
    auto [output, hy, cy, gates, cells] =
        call_layer(input, hx, cx, w_ih, w_hh, b_ih, b_hh, mode, reverse, /*train=*/true);
    ctx->set_materialize_grads(false);
    ctx->saved_data["mode"] = mode;
    ctx->saved_data["reverse"] = reverse;
    ctx->save_for_backward({input, hx, cx.value_or(at::Tensor()), w_ih, w_hh,
                            b_ih.value_or(at::Tensor()), b_hh.value_or(at::Tensor()), output, gates,
                            cells});
    variable_list constant = {gates, cells};
    if (mode != "lstm") constant.push_back(cy);
    ctx->mark_non_differentiable(constant);
    return {output, hy, cy, gates, cells};
  }

  static variable_list backward(AutogradContext* ctx, variable_list grads) {
    const variable_list saved = ctx->get_saved_variables();
    const std::string mode = ctx->saved_data["mode"].toStringRef();
    const bool reverse = ctx->saved_data["reverse"].toBool();
    if (mode != "lstm") grads[2] = at::Tensor();
    variable_list result(9);
    if (!grads[0].defined() && !grads[1].defined() && !grads[2].defined()) return result;
    if (at::GradMode::is_enabled()) {
      const variable_list found =
          differentiable_gradients(grads, {saved.begin(), saved.begin() + 7}, mode, reverse);
      std::copy(found.begin(), found.end(), result.begin());
      return result;
    }
    std::array<bool, 7> wanted;
    for (size_t i = 0, edge = 0; i < 7; ++i) {  // absent arguments have no edge
      wanted[i] = saved[i].defined() && ctx->needs_input_grad(edge++);
    }
    std::tie(result[0], result[1], result[2], result[3], result[4], result[5], result[6]) =
        call_layer_backward(maybe(grads[0]), maybe(grads[1]), maybe(grads[2]), saved[0], saved[1],
                            maybe(saved[2]), saved[3], saved[4], saved[7], saved[8], saved[9], mode,
                            reverse, wanted);
    return result;
  }
};

bool needs_gradient(std::initializer_list<const Maybe*> tensors) {
  return at::GradMode::is_enabled() &&
         std::any_of(tensors.begin(), tensors.end(),
                     [](const Maybe* x) { return *x && (*x)->defined() && (*x)->requires_grad(); });
}

Five layer_autograd(const at::Tensor& input, const at::Tensor& hx, const Maybe& cx,
                    const at::Tensor& w_ih, const at::Tensor& w_hh, const Maybe& b_ih,
                    const Maybe& b_hh, c10::string_view mode, bool reverse, bool train) {
  const Maybe a(input), b(hx), c(w_ih), d(w_hh);
  if (!needs_gradient({&a, &b, &cx, &c, &d, &b_ih, &b_hh})) {
    const at::AutoDispatchBelowADInplaceOrView below;
    return call_layer(input, hx, cx, w_ih, w_hh, b_ih, b_hh, mode, reverse, train);
  }
  variable_list r = RnnLayer::apply(input, hx, cx, w_ih, w_hh, b_ih, b_hh,
                                    std::string(mode.data(), mode.size()), reverse);
  return {r[0], r[1], r[2], r[3], r[4]};
}

// Networks

struct Network {
  const at::Tensor& input;
  at::TensorList states;  // hx, and for "lstm" cx
  at::TensorList params;
  bool has_biases;
  int64_t num_layers;
  double dropout;
  bool train;
  bool bidirectional;
  bool batch_first;
  std::string_view mode;

  int64_t directions() const { return bidirectional ? 2 : 1; }
  size_t params_per_layer() const { return has_biases ? 4 : 2; }
};

bool takes_tensor(const at::Tensor& x, const at::Tensor& input, bool tracing) {
  return x.defined() && x.device() == input.device() && x.scalar_type() == input.scalar_type() &&
         x.layout() == at::kStrided && (tracing || !at::impl::tensor_has_dispatch(x));
}

// torch.func's transforms take no autograd::Function.
bool inside_torch_func() {
  using c10::impl::tls_is_dispatch_key_included;
  return tls_is_dispatch_key_included(c10::DispatchKey::FuncTorchDynamicLayerFrontMode) ||
         tls_is_dispatch_key_included(c10::DispatchKey::FuncTorchDynamicLayerBackMode);
}

bool has_tangent(const Network& n) {
  const auto carries = [](const at::Tensor& x) { return x._fw_grad(/*level=*/0).defined(); };
  return carries(n.input) || std::any_of(n.states.begin(), n.states.end(), carries) ||
         std::any_of(n.params.begin(), n.params.end(), carries);
}

// Whether it runs here; wrong arguments go PyTorch's way, which words the errors.
bool takes(const Network& n) {
  const at::Tensor& x = n.input;
  const bool tracing = c10::impl::dispatch_mode_enabled();
  if (!x.defined() || x.dim() != 3 || !at::isFloatingType(x.scalar_type()) ||
      at::isFloat8Type(x.scalar_type()) || !takes_tensor(x, x, tracing)) {
    return false;
  }
  for (const at::Tensor& state : n.states) {
    if (!takes_tensor(state, x, tracing) || state.dim() != 3) return false;
  }
  const at::Tensor& hx = n.states[0];
  const c10::SymInt batch = x.sym_size(n.batch_first ? 0 : 1), hidden = hx.sym_size(2);
  const int64_t runs = n.num_layers * n.directions();
  if (n.num_layers < 1 || n.params.size() != runs * n.params_per_layer() || x.sym_numel() == 0 ||
      hidden == 0) {
    return false;
  }
  for (const at::Tensor& state : n.states) {
    if (state.sym_sizes() != c10::SymIntArrayRef({runs, batch, hidden})) return false;
  }
  const c10::SymInt rows = gates_of(n.mode) * hidden;
  for (size_t i = 0; i < n.params.size(); ++i) {
    const at::Tensor& p = n.params[i];
    if (!takes_tensor(p, x, tracing)) return false;
    const size_t which = i % n.params_per_layer();
    const bool first = i < n.directions() * n.params_per_layer();
    const c10::SymInt columns =
        which == 1 ? hidden : (first ? x.sym_size(2) : n.directions() * hidden);
    const bool fits = which < 2 ? p.sym_sizes() == c10::SymIntArrayRef({rows, columns})
                                : p.sym_sizes() == c10::SymIntArrayRef({rows});
    if (!fits) return false;
  }
  return true;
}

at::Tensor stacked(const std::vector<at::Tensor>& states) {
  return states.size() == 1 ? states[0].unsqueeze(0) : at::stack(states);
}

std::tuple<at::Tensor, at::Tensor, at::Tensor> run(const Network& n) {
  at::Tensor x = n.batch_first ? n.input.transpose(0, 1) : n.input;
  const bool lstm = n.mode == "lstm", by_steps = inside_torch_func() || has_tangent(n);
  const c10::string_view mode(n.mode.data(), n.mode.size());
  const std::vector<at::Tensor> hx = n.states[0].unbind(0);
  const std::vector<at::Tensor> cx = lstm ? n.states[1].unbind(0) : std::vector<at::Tensor>();
  std::vector<at::Tensor> hy, cy;
  for (int64_t layer = 0; layer < n.num_layers; ++layer) {
    std::vector<at::Tensor> outputs;
    for (int64_t direction = 0; direction < n.directions(); ++direction) {
      const size_t i = hy.size();
      const at::Tensor* p = n.params.data() + i * n.params_per_layer();
      const at::Tensor c = lstm ? cx[i] : at::Tensor();
      const at::Tensor b_ih = n.has_biases ? p[2] : at::Tensor();
      const at::Tensor b_hh = n.has_biases ? p[3] : at::Tensor();
      if (by_steps) {
        auto [output, h, new_c] =
            layer_by_steps(x, hx[i], c, p[0], p[1], b_ih, b_hh, n.mode, direction == 1);
        outputs.push_back(output);
        hy.push_back(h);
        cy.push_back(new_c);
        continue;
      }
      auto [output, h, new_c, gates, cells] =
          call_layer(x, hx[i], maybe(c), p[0], p[1], maybe(b_ih), maybe(b_hh), mode, direction == 1,
                     /*train=*/false);
      outputs.push_back(output);
      hy.push_back(h);
      cy.push_back(new_c);
    }
    x = outputs.size() == 1 ? outputs[0] : at::cat(outputs, -1);
    if (n.dropout != 0 && n.train && layer + 1 < n.num_layers) {
      x = at::dropout(x, n.dropout, /*train=*/true);
    }
  }
  if (n.batch_first) x = x.transpose(0, 1);
  return {x, stacked(hy), lstm ? stacked(cy) : at::Tensor()};
}

std::tuple<at::Tensor, at::Tensor, at::Tensor> neuron_lstm(const at::Tensor& input,
                                                           at::TensorList hx, at::TensorList params,
                                                           bool has_biases, int64_t num_layers,
                                                           double dropout, bool train,
                                                           bool bidirectional, bool batch_first) {
  const Network network{input,   hx,    params,        has_biases,  num_layers,
                        dropout, train, bidirectional, batch_first, "lstm"};
  if (hx.size() == 2 && takes(network)) return run(network);
  return at::native::lstm(input, hx, params, has_biases, num_layers, dropout, train, bidirectional,
                          batch_first);
}

using OneState = std::tuple<at::Tensor, at::Tensor> (*)(const at::Tensor&, const at::Tensor&,
                                                        at::TensorList, bool, int64_t, double, bool,
                                                        bool, bool);

OneState composed(std::string_view mode) {
  if (mode == "gru") return &at::native::gru;
  return mode == "rnn_tanh" ? static_cast<OneState>(&at::native::rnn_tanh)
                            : static_cast<OneState>(&at::native::rnn_relu);
}

constexpr char kGru[] = "gru";
constexpr char kRnnTanh[] = "rnn_tanh";
constexpr char kRnnRelu[] = "rnn_relu";

template <const char* mode>
std::tuple<at::Tensor, at::Tensor> neuron_one_state(const at::Tensor& input, const at::Tensor& hx,
                                                    at::TensorList params, bool has_biases,
                                                    int64_t num_layers, double dropout, bool train,
                                                    bool bidirectional, bool batch_first) {
  const Network network{input,   hx,    params,        has_biases,  num_layers,
                        dropout, train, bidirectional, batch_first, mode};
  if (takes(network)) {
    auto [output, hy, cy] = run(network);
    return {output, hy};
  }
  return composed(mode)(input, hx, params, has_biases, num_layers, dropout, train, bidirectional,
                        batch_first);
}

// Autocast: all of it in the lower precision, as on CUDA, so that the operator takes it.

template <typename T>  // a tensor, or a list, of which a vector comes back
auto lowered(const T& x) {
  return at::autocast::cached_cast(
      at::autocast::get_lower_precision_fp_from_device_type(at::kPrivateUse1), x, at::kPrivateUse1);
}

std::tuple<at::Tensor, at::Tensor, at::Tensor> autocast_lstm(
    const at::Tensor& input, at::TensorList hx, at::TensorList params, bool has_biases,
    int64_t num_layers, double dropout, bool train, bool bidirectional, bool batch_first) {
  const c10::impl::ExcludeDispatchKeyGuard outside(c10::DispatchKey::AutocastPrivateUse1);
  return at::lstm(lowered(input), lowered(hx), lowered(params), has_biases, num_layers, dropout,
                  train, bidirectional, batch_first);
}

template <OneState op>
std::tuple<at::Tensor, at::Tensor> autocast_one_state(const at::Tensor& input, const at::Tensor& hx,
                                                      at::TensorList params, bool has_biases,
                                                      int64_t num_layers, double dropout,
                                                      bool train, bool bidirectional,
                                                      bool batch_first) {
  const c10::impl::ExcludeDispatchKeyGuard outside(c10::DispatchKey::AutocastPrivateUse1);
  return op(lowered(input), lowered(hx), lowered(params), has_biases, num_layers, dropout, train,
            bidirectional, batch_first);
}

void register_networks(torch::Library& m) {
  m.impl("lstm.input", TORCH_FN(neuron_lstm));
  m.impl("gru.input", TORCH_FN(neuron_one_state<kGru>));
  m.impl("rnn_tanh.input", TORCH_FN(neuron_one_state<kRnnTanh>));
  m.impl("rnn_relu.input", TORCH_FN(neuron_one_state<kRnnRelu>));
}

TORCH_LIBRARY_FRAGMENT(neuron, m) {
  m.def(
      "rnn_layer(Tensor input, Tensor hx, Tensor? cx, Tensor w_ih, Tensor w_hh, Tensor? b_ih, "
      "Tensor? b_hh, str mode, bool reverse, bool train) -> (Tensor output, Tensor hy, Tensor cy, "
      "Tensor gates, Tensor cells)",
      {at::Tag::pt2_compliant_tag});
  m.def(
      "rnn_layer_backward(Tensor? grad_output, Tensor? grad_hy, Tensor? grad_cy, Tensor input, "
      "Tensor hx, Tensor? cx, Tensor w_ih, Tensor w_hh, Tensor output, Tensor gates, Tensor cells, "
      "str mode, bool reverse, bool[7] wanted) -> (Tensor grad_input, Tensor grad_hx, Tensor "
      "grad_cx, Tensor grad_w_ih, Tensor grad_w_hh, Tensor grad_b_ih, Tensor grad_b_hh)",
      {at::Tag::pt2_compliant_tag});
}
TORCH_LIBRARY_IMPL(neuron, Meta, m) {
  m.impl("rnn_layer", TORCH_FN(layer_meta));
  m.impl("rnn_layer_backward", TORCH_FN(layer_backward_meta));
}
TORCH_LIBRARY_IMPL(neuron, AutogradPrivateUse1, m) {
  m.impl("rnn_layer", TORCH_FN(layer_autograd));
}
TORCH_LIBRARY_IMPL(aten, AutogradPrivateUse1, m) { register_networks(m); }
TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) { register_networks(m); }
TORCH_LIBRARY_IMPL(aten, AutocastPrivateUse1, m) {
  m.impl("lstm.input", TORCH_FN(autocast_lstm));
  m.impl("gru.input", TORCH_FN((autocast_one_state<static_cast<OneState>(&at::gru)>)));
  m.impl("rnn_tanh.input", TORCH_FN((autocast_one_state<static_cast<OneState>(&at::rnn_tanh)>)));
  m.impl("rnn_relu.input", TORCH_FN((autocast_one_state<static_cast<OneState>(&at::rnn_relu)>)));
}

}  // namespace
}  // namespace tn::torch_glue
