// Real numbers: each operator that a CUDA kernel serves is carried out by the CPU's kernel on the same memory.
//
// Device memory is host memory here, so a tensor of the device is also a tensor of the CPU. A callback of torch's own
// RecordFunction sees each operator with its inputs and outputs after its (empty) kernels were launched, and repeats it
// on the CPU, if SIMGPU_COMPUTE is set. The library is loaded by libcudart's stand-in at the first use of the device.
// What would take too long is left out, and its outputs read as zeros: products of more than SIMGPU_COMPUTE_MFLOP,
// other operators on more than SIMGPU_COMPUTE_MB, and those that fill memory or that a program decides by
// on more than SIMGPU_COMPUTE_MAX_MB.
#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/record_function.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <c10/util/Exception.h>
#include <torch/library.h>

#include <cstdio>
#include <cstdlib>
#include <map>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include "sim.h"

namespace {

// Operators of several parts that yet have a kernel for copies between dtypes and devices of their own.
const std::set<std::string> kBesideCudaKey = {"aten::copy_"};
// Outputs that nothing has to be written to.
const std::set<std::string> kLeftOut = {
    "aten::empty",          "aten::empty_strided",      "aten::record_stream", "aten::set_",
    "aten::resize_",        "aten::zero_",              "aten::empty_like",         "aten::as_strided",    "aten::view",
    "aten::_reshape_alias", "aten::_local_scalar_dense", "aten::equal", "aten::nonzero"};

thread_local int depth = 0;  // operators with a CUDA kernel that are open: only the outermost is repeated

// Operators that fill memory or that a program decides by: what comes later is wrong without them.
const std::set<std::string> kDeciding = {
    "aten::all",     "aten::any",        "aten::copy_",    "aten::eq",     "aten::fill_",
    "aten::isfinite", "aten::isnan",     "aten::normal_",  "aten::random_", "aten::uniform_",
    "aten::_local_scalar_dense", "aten::_amp_foreach_non_finite_check_and_unscale_"};
// Products, by the places of their factors.
const std::map<std::string, std::pair<int, int>> kProducts = {
    {"aten::mm", {0, 1}},     {"aten::bmm", {0, 1}},   {"aten::addmm", {1, 2}}, {"aten::baddbmm", {1, 2}},
    {"aten::linear", {0, 1}}, {"aten::_scaled_mm", {0, 1}}};

bool takes_too_long(const std::string& name, const std::vector<c10::IValue>& inputs, size_t bytes) {
  static const double most_flop = sim::knob("COMPUTE_MFLOP", 50) * 1e6, most = sim::knob("COMPUTE_MB", 1) * (1 << 20),
                      most_deciding = sim::knob("COMPUTE_MAX_MB", 16) * (1 << 20);
  const auto product = kProducts.find(name);
  if (product != kProducts.end()) {
    const auto &left = inputs[product->second.first].toTensor(), &right = inputs[product->second.second].toTensor();
    return 2.0 * left.numel() * right.size(-1) > most_flop;
  }
  if (name.find("attention") != std::string::npos && inputs[0].isTensor() && inputs[1].isTensor())
    return 4.0 * inputs[0].toTensor().numel() * inputs[1].toTensor().size(-2) > most_flop;
  return bytes > (kDeciding.count(name) ? most_deciding : most);
}

void note(const std::string& name, const char* why) {
  if (!std::getenv("SIMGPU_LOG")) return;
  static std::mutex mutex;
  static std::set<std::string> noted;
  std::lock_guard<std::mutex> lock(mutex);
  if (noted.insert(name + why).second) std::fprintf(stderr, "simgpu compute: %s: %s\n", name.c_str(), why);
}

// The tensor of the CPU on the same memory, with the same sizes, strides and dtype.
at::Tensor on_host(const at::Tensor& tensor) {
  if (!tensor.defined() || !tensor.is_cuda() || tensor.layout() != at::kStrided) return tensor;
  auto alias = at::from_blob(tensor.numel() ? tensor.data_ptr() : nullptr, tensor.sizes(), tensor.strides(),
                             at::TensorOptions().dtype(tensor.dtype()).device(at::kCPU));
  if (tensor.is_conj()) alias = alias.conj();
  return alias;
}

// Its numbers follow from the seed and from how many were drawn, as those of the device do.
c10::IValue on_host(const at::Generator& generator) {
  try {
    return at::detail::createCPUGenerator(generator.current_seed() * 0x9E3779B97F4A7C15 + generator.get_offset());
  } catch (const std::exception&) {  // in a capture
    return {};
  }
}

c10::IValue on_host(const c10::IValue& value, size_t& bytes) {
  if (value.isTensor()) {
    const auto& tensor = value.toTensor();
    if (tensor.defined() && tensor.is_cuda()) bytes += tensor.nbytes();
    return on_host(tensor);
  }
  if (value.isTensorList()) {
    c10::List<at::Tensor> tensors;
    for (const at::Tensor& tensor : value.toTensorVector()) {
      bytes += tensor.nbytes();
      tensors.push_back(on_host(tensor));
    }
    return tensors;
  }
  if (value.isOptionalTensorList()) {
    c10::List<std::optional<at::Tensor>> tensors;
    for (const std::optional<at::Tensor>& tensor : value.toOptionalTensorVector())
      tensors.push_back(tensor ? std::optional<at::Tensor>(on_host(*tensor)) : std::nullopt);
    return tensors;
  }
  if (value.isDevice()) return c10::Device(at::kCPU);
  if (value.isGenerator()) return on_host(value.toGenerator());
  return value;
}

// Zeros in outputs of their own; an operator that was left out has changed nothing in place.
void zero(const c10::IValue& output, const std::vector<c10::IValue>& inputs) {
  if (output.isTensorList())
    for (const at::Tensor& tensor : output.toTensorVector()) zero(tensor, inputs);
  if (!output.isTensor() || !output.toTensor().defined()) return;
  const at::Tensor& tensor = output.toTensor();
  if (!tensor.is_cuda() || !tensor.numel() || !tensor.is_non_overlapping_and_dense()) return;
  for (const auto& input : inputs) {
    if (input.isTensor() && input.toTensor().defined() && input.toTensor().is_alias_of(tensor)) return;
    if (input.isTensorList())
      for (const at::Tensor& part : input.toTensorVector())
        if (part.is_alias_of(tensor)) return;
  }
  sim::fill((char*)tensor.data_ptr(), 0, tensor.nbytes());
}

void write(const c10::IValue& result, const c10::IValue& output) {
  if (output.isTensor() && result.isTensor()) {
    const auto& target = output.toTensor();
    const auto& source = result.toTensor();
    if (!target.defined() || !source.defined() || !target.is_cuda() || !target.numel()) return;
    if (target.data_ptr() == source.data_ptr() || target.sizes() != source.sizes()) return;
    on_host(target).copy_(source);
  } else if (output.isTensorList() && result.isTensorList()) {
    const auto targets = output.toTensorVector(), sources = result.toTensorVector();
    for (size_t i = 0; i < std::min(targets.size(), sources.size()); i++) write(sources[i], targets[i]);
  }
}

// Fused attention has other operators on the CPU. The backward computes the softmax's normaliser anew, whose layout differs.
using Stack = std::vector<c10::IValue>;
std::optional<at::Tensor> tensor_or_none(const c10::IValue& value) {
  const auto tensor = value.toOptional<at::Tensor>();
  return tensor && tensor->defined() ? tensor : std::nullopt;
}
std::vector<at::Tensor> attention(const Stack& in, int bias, int causal, int dropout, int scale) {
  const auto mask = bias < 0 ? std::nullopt : tensor_or_none(in[bias]);
  auto [out, normaliser] = at::_scaled_dot_product_flash_attention_for_cpu(
      in[0].toTensor(), in[1].toTensor(), in[2].toTensor(), in[dropout].toDouble(), in[causal].toBool(), mask,
      in[scale].toOptional<double>());
  return {out, normaliser};
}
std::vector<at::Tensor> attention_backward(const Stack& in, int bias, int causal, int dropout, int scale) {
  const auto mask = bias < 0 ? std::nullopt : tensor_or_none(in[bias]);
  const auto q = in[1].toTensor(), k = in[2].toTensor(), v = in[3].toTensor();
  const double p = in[dropout].toDouble();
  const bool is_causal = in[causal].toBool();
  const auto factor = in[scale].toOptional<double>();
  auto [out, normaliser] = at::_scaled_dot_product_flash_attention_for_cpu(q, k, v, p, is_causal, mask, factor);
  auto [dq, dk, dv] = at::_scaled_dot_product_flash_attention_for_cpu_backward(in[0].toTensor(), q, k, v, out, normaliser,
                                                                               p, is_causal, mask, factor);
  return {dq, dk, dv};
}
// The CPU's kernel wants the mean and the factor of each row in the dtype of the rows; the device keeps them in float.
std::vector<at::Tensor> layer_norm_backward(const Stack& in) {
  const auto in_float = [&](int place) {
    const auto tensor = tensor_or_none(in[place]);
    return tensor ? std::optional<at::Tensor>(tensor->to(at::kFloat)) : std::nullopt;
  };
  const auto mask = in[7].toBoolList();
  auto [rows, weight, bias] = at::native_layer_norm_backward(*in_float(0), *in_float(1), in[2].toIntVector(), *in_float(3),
                                                             *in_float(4), in_float(5), in_float(6), {mask[0], mask[1], mask[2]});
  return {rows, weight, bias};
}
// x: rows times their factor. The CPU has no such operator.
std::vector<at::Tensor> rms_norm_backward(const Stack& in) {
  const auto gradient = in[0].toTensor().to(at::kFloat), factor = in[3].toTensor().to(at::kFloat);
  const auto x = in[1].toTensor().to(at::kFloat) * factor;
  const auto weight = tensor_or_none(in[4]);
  const auto weighted = weight ? gradient * weight->to(at::kFloat) : gradient;
  const auto width = (int64_t)in[2].toIntVector().size();
  std::vector<int64_t> inner, outer;
  for (int64_t i = 0; i < x.dim(); i++) (i < x.dim() - width ? outer : inner).push_back(i);
  return {factor * (weighted - x * (weighted * x).mean(inner, true)), (gradient * x).sum(outer)};
}
const std::map<std::string, std::vector<at::Tensor> (*)(const Stack&)> kOtherwise = {
    {"aten::native_layer_norm_backward", layer_norm_backward},
    {"aten::_fused_rms_norm_backward", rms_norm_backward},
    {"aten::_scaled_dot_product_flash_attention", [](const Stack& in) { return attention(in, -1, 4, 3, 6); }},
    {"aten::_scaled_dot_product_efficient_attention", [](const Stack& in) { return attention(in, 3, 6, 5, 7); }},
    {"aten::_scaled_dot_product_flash_attention_backward",
     [](const Stack& in) { return attention_backward(in, -1, 11, 10, 14); }},
    {"aten::_scaled_dot_product_efficient_attention_backward",
     [](const Stack& in) { return attention_backward(in, 4, 11, 9, 12); }},
};

struct Open : at::ObserverContext {
  bool counted = false;
  bool outermost = false;
  std::vector<c10::IValue> inputs;
  std::optional<c10::OperatorHandle> op;
};

// Collectives are carried out by NCCL's stand-in or by gloo; gloo would take the same one twice.
bool has_cuda_kernel(const c10::OperatorHandle& op) {
  if (op.operator_name().name.find("c10d") != std::string::npos) return false;
  return op.hasKernelForDispatchKey(c10::DispatchKey::CUDA) || kBesideCudaKey.count(op.operator_name().name);
}

// A tensor without memory of its own, such as DTensor; its class calls the operator again on what it holds.
bool is_wrapper(const at::Tensor& tensor) { return tensor.defined() && tensor.key_set().has(c10::DispatchKey::Python); }
bool has_wrapper(c10::ArrayRef<const c10::IValue> inputs) {
  for (const auto& input : inputs) {
    if (input.isTensor() && is_wrapper(input.toTensor())) return true;
    if (input.isTensorList())
      for (const at::Tensor& tensor : input.toTensorVector())
        if (is_wrapper(tensor)) return true;
  }
  return false;
}

std::unique_ptr<at::ObserverContext> begin(const at::RecordFunction& call) {
  auto open = std::make_unique<Open>();
  const auto name = call.operator_name();
  if (!name || kLeftOut.count(name->name)) return open;
  open->op = c10::Dispatcher::singleton().findOp(*name);
  if (!open->op || !has_cuda_kernel(*open->op) || has_wrapper(call.inputs())) return open;
  open->counted = true;
  open->outermost = depth++ == 0;
  if (open->outermost) open->inputs.assign(call.inputs().begin(), call.inputs().end());
  return open;
}

void repeat_on_host(const Open& open, const std::vector<c10::IValue>& outputs) {
  const auto& name = open.op->operator_name().name;
  size_t bytes = 0;
  bool cuda = false;
  std::vector<c10::IValue> stack;
  for (const auto& input : open.inputs) {
    if (input.isTensor() && input.toTensor().defined()) cuda |= input.toTensor().is_cuda();
    if (input.isTensorList())
      for (const at::Tensor& tensor : input.toTensorVector()) cuda |= tensor.is_cuda();
    if (input.isDevice()) cuda |= input.toDevice().is_cuda();
    stack.push_back(on_host(input, bytes));
  }
  if (!cuda) return;
  if (takes_too_long(name, open.inputs, bytes)) {
    for (const auto& output : outputs) zero(output, open.inputs);
    return note(name, "too large");
  }
  at::NoGradGuard no_grad;
  c10::InferenceMode inference(false);
  c10::impl::ExcludeDispatchKeyGuard only(c10::autograd_dispatch_keyset | c10::autocast_dispatch_keyset |
                                          c10::DispatchKeySet(c10::DispatchKey::ADInplaceOrView) |
                                          c10::DispatchKeySet(c10::DispatchKey::Python) |
                                          c10::DispatchKeySet(c10::DispatchKey::PythonTLSSnapshot));
  try {
    const auto otherwise = kOtherwise.find(name);
    if (otherwise == kOtherwise.end()) {
      open.op->callBoxed(&stack);
    } else {
      const auto results = otherwise->second(stack);
      stack.assign(results.begin(), results.end());
    }
  } catch (const std::exception& error) {
    return note(name, error.what());
  }
  for (size_t i = 0; i < std::min(stack.size(), outputs.size()); i++) write(stack[i], outputs[i]);
}

void end(const at::RecordFunction& call, at::ObserverContext* context) {
  auto* open = static_cast<Open*>(context);
  if (!open || !open->counted) return;
  if (open->outermost) {
    at::RecordFunctionGuard off(false);
    repeat_on_host(*open, call.outputs());
  }
  depth--;
}

// Operators that return before they could be repeated: a number, or a tensor whose size depends on data, which is never
// left to what lies in a device's memory.
bool equal(const at::Tensor& one, const at::Tensor& other) {
  sim::sync_stream(sim::stream(nullptr));
  return at::equal(on_host(one), on_host(other));
}
at::Tensor nonzero(const at::Tensor& tensor) {
  sim::sync_stream(sim::stream(nullptr));
  const auto found = at::nonzero(on_host(tensor));
  auto made = at::empty(found.sizes(), tensor.options().dtype(at::kLong));
  on_host(made).copy_(found);
  return made;
}
void replace_kernels(bool numbers) {
  struct Silent : c10::WarningHandler {
    void process(const c10::Warning&) override {}
  } silent;
  c10::WarningUtils::WarningHandlerGuard guard(&silent);
  static auto* library = new torch::Library(torch::Library::IMPL, "aten", c10::DispatchKey::CUDA, __FILE__, __LINE__);
  if (numbers) library->impl("equal", equal);
  library->impl("nonzero", nonzero);
}

}  // namespace

extern "C" __attribute__((visibility("default"))) void simgpu_compute() {
  const bool numbers = !sim::text_knob("COMPUTE", "").empty();
  replace_kernels(numbers);
  if (!numbers) return;
  at::addGlobalCallback(at::RecordFunctionCallback(&begin, &end)
                            .needsInputs(true)
                            .needsOutputs(true)
                            .scopes({at::RecordScope::FUNCTION}));
}
