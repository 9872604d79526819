"""Small kernel reports with plausible names and times, for tests of their views."""

from typing import Any

from cs336_tui.config.spec import CellSpec
from cs336_tui.events.kernel_report import KernelGroup, KernelKind, KernelReport
from cs336_tui.events.prediction import Prediction
from tests.samples import a_spec

GEMM = "sm90_xmma_gemm_f32f32_tf32f32_f32_tn_n_tilesize128x128x32_warpgroupsize2x1x1_execute_segment_k_off_kernel__5x_cublas"  # noqa: E501
SMALL_GEMM = "void cutlass::Kernel2<cutlass_80_simt_sgemm_128x64_8x5_nt_align1>(cutlass_80_simt_sgemm_128x64_8x5_nt_align1::Params)"  # noqa: E501
ADD = (
    "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float>, std::array<char*, 3ul> >"
    "(int, at::native::CUDAFunctor_add<float>, std::array<char*, 3ul>)"
)
MUL = (
    "void at::native::elementwise_kernel<128, 2, at::native::gpu_kernel_impl_nocast<at::native::BinaryFunctor<float, "
    "float, float, at::native::binary_internal::MulFunctor<float> > >(at::TensorIteratorBase&)::{lambda(int)#1}>(int)"
)
MEAN = (
    "void at::native::reduce_kernel<512, 1, at::native::ReduceOp<float, at::native::MeanOps<float, float, float, float>"
    ", unsigned int, float, 4, 4> >(at::native::ReduceOp<float, at::native::MeanOps<float, float, float, float>>)"
)
SOFTMAX = (
    "void (anonymous namespace)::softmax_warp_forward<float, float, float, 7, false, false>(float*, float const*, int)"
)
SOFTMAX_BACKWARD = (
    "void (anonymous namespace)::softmax_warp_backward<float, float, float, 7, false, false>(float*, int)"
)
ADAM = (
    "void at::native::(anonymous namespace)::multi_tensor_apply_kernel<at::native::(anonymous namespace)::"
    "TensorListMetadata<4>, at::native::(anonymous namespace)::PointwiseOpScalarListFunctor<float, 4, 3, 0>, "
    "std::divides<float>, float>(at::native::TensorListMetadata<4>)"
)
FUSED_ADAM = (
    "void at::native::(anonymous namespace)::multi_tensor_apply_kernel<at::native::(anonymous namespace)::"
    "FusedOptimizerTensorListMetadata<4>, at::native::(anonymous namespace)::FusedAdamMathFunctor<float, 4, "
    "(at::native::ADAM_MODE)1, false>, float const*, double, double, double, double, double, bool, float const*, "
    "float const*>(at::native::(anonymous namespace)::FusedOptimizerTensorListMetadata<4>, bool)"
)
"""Name of torch 2.6's kernel."""
GEMV = (
    "std::enable_if<!(false), void>::type internal::gemvx::kernel<int, int, float, float, float, float, false, true, "
    "false, false, 7, false, cublasGemvParamsEx<int, float const, float const, float, float> >(int)"
)
MASKED_FILL = (
    "void at::native::vectorized_elementwise_kernel<4, at::native::(anonymous namespace)::masked_fill_kernel("
    "at::TensorIterator&, c10::Scalar const&)::{lambda()#1}::operator()() const::{lambda(float, bool)#1}, "
    "std::array<char*, 3ul> >(int)"
)
COPY = "Memcpy DtoD (Device -> Device)"

_PHASE_ORDER = ("zero_grad", "forward", "loss", "backward", "optimizer")


def a_group(
    name: str, kind: KernelKind, phase: str, range_: str, durations_us: tuple[float, ...], *, backward: bool = False
) -> KernelGroup:
    """A group of launches with these durations in µs."""
    return KernelGroup(name, kind, phase, range_, backward, tuple(round(us * 1000) for us in durations_us))


def a_kernel_report(spec: CellSpec | None = None, **changes: Any) -> KernelReport:
    """A training step of one layer on a GPU, of 1 ms: 10 % of it idle, 99 % of the rest in named ranges.

    `groups` may be given among the changes; what is summed up from them follows.
    """
    groups: tuple[KernelGroup, ...] = changes.pop("groups", STEP)
    total = sum(sum(group.durations_ns) for group in groups)
    phases = [phase for phase in _PHASE_ORDER if any(group.phase == phase for group in groups)]
    spans = {
        phase: round(sum(sum(group.durations_ns) for group in groups if group.phase == phase) / 0.9) for phase in phases
    }
    fields: dict[str, Any] = {"activity": "kernels", "device_name": "NVIDIA H100 80GB HBM3", "torch": "2.13.0+cu130"}
    fields |= {"groups": groups, "total_ns": total, "busy_ns": total, "host_ns": 2_400_000}
    fields |= {"span_ns": round(total / 0.9), "phase_spans_ns": spans}
    fields |= {"launches": sum(len(group.durations_ns) for group in groups)}
    return KernelReport(**{"spec": spec or a_spec(pass_="train-step", device="cuda:0")} | fields | changes)


def an_operator_report(spec: CellSpec | None = None, **changes: Any) -> KernelReport:
    """The operators of a forward and backward on a CPU."""
    fields = {"activity": "operators", "device_name": "AMD EPYC 7B13", "torch": "2.13.0+cpu", "groups": OPERATORS}
    spec = spec or a_spec(pass_="forward+backward", device="cpu")
    return a_kernel_report(spec, **fields | {"host_ns": None} | changes)


def a_prediction_for(spec: CellSpec, **changes: Any) -> Prediction:
    """FLOPs of one layer's attention beside kernels; memory is of no interest here and small."""
    size = {"num_params": 1_000_000, "num_params_without_head": 800_000, "min_bytes_moved": 16_000_000}
    work = {"flops": {"forward": 6_000_000, "backward": 12_000_000}, "softmax_flops": (50_000, 40_000)}
    attention = dict.fromkeys(("attention scores", "final matmul"), (1_000_000, 2_000_000))
    work["flops_by_range"] = attention | {"feed-forward": (4_000_000, 8_000_000)}
    peak = {"peak_bytes": 40_000_000, "peak_phase": "backward", "by_category": {"parameters": 40_000_000}}
    forward = {"forward_peak_bytes": 30_000_000, "forward_end_bytes": 30_000_000}
    forward["forward_end_by_category"] = {"parameters": 30_000_000}
    rest = {"residual_stream_bytes": spec.tokens_per_step * spec.d_model * 4, "largest": ()}
    return Prediction(**{"spec": spec} | size | work | peak | forward | rest | changes)


STEP: tuple[KernelGroup, ...] = (
    a_group(ADD, "elementwise", "forward", "embedding", (4.0,)),
    a_group(MEAN, "reduction", "forward", "norms", (5.0, 5.5, 5.2)),
    a_group(MUL, "elementwise", "forward", "norms", (6.0, 6.2, 6.1)),
    a_group(GEMM, "matrix multiply", "forward", "QKV projections", (30.0, 31.0, 30.5)),
    a_group(MUL, "elementwise", "forward", "rotary", (9.0, 9.5)),
    a_group(SMALL_GEMM, "matrix multiply", "forward", "attention scores", (12.0,)),
    a_group(ADD, "elementwise", "forward", "attention scores", (14.0,)),
    a_group(SOFTMAX, "softmax", "forward", "softmax", (11.0,)),
    a_group(SMALL_GEMM, "matrix multiply", "forward", "final matmul", (13.0,)),
    a_group(COPY, "copy", "forward", "attention rest", (3.0,)),
    a_group(GEMM, "matrix multiply", "forward", "output projection", (29.0,)),
    a_group(GEMM, "matrix multiply", "forward", "feed-forward", (41.0, 42.0)),
    a_group(ADD, "elementwise", "forward", "residual", (4.5, 4.6)),
    a_group(GEMM, "matrix multiply", "forward", "head", (52.0,)),
    a_group(MEAN, "reduction", "loss", "loss", (8.0,)),
    a_group(GEMM, "matrix multiply", "backward", "head", (53.0, 51.0), backward=True),
    a_group(GEMM, "matrix multiply", "backward", "feed-forward", (40.0, 41.0, 42.0, 43.0), backward=True),
    a_group(SMALL_GEMM, "matrix multiply", "backward", "final matmul", (12.5, 13.5), backward=True),
    a_group(SOFTMAX_BACKWARD, "softmax", "backward", "softmax", (14.0,), backward=True),
    a_group(SMALL_GEMM, "matrix multiply", "backward", "attention scores", (12.0, 12.2), backward=True),
    a_group(COPY, "copy", "backward", "", (9.0,), backward=True),
    a_group(ADAM, "optimizer", "optimizer", "optimizer", (35.0, 36.0, 39.2)),
)

OPERATORS: tuple[KernelGroup, ...] = (
    a_group("aten::mm", "matrix multiply", "forward", "feed-forward", (900.0, 950.0)),
    a_group("aten::bmm", "matrix multiply", "forward", "attention scores", (300.0,)),
    a_group("aten::_softmax", "softmax", "forward", "softmax", (120.0,)),
    a_group("aten::mul", "elementwise", "forward", "norms", (40.0, 42.0)),
    a_group("aten::_log_softmax", "softmax", "loss", "loss", (80.0,)),
    a_group("aten::mm", "matrix multiply", "backward", "feed-forward", (910.0, 940.0, 905.0, 960.0), backward=True),
    a_group("aten::bmm", "matrix multiply", "backward", "attention scores", (310.0, 305.0), backward=True),
    a_group("aten::_softmax_backward_data", "softmax", "backward", "softmax", (150.0,), backward=True),
    a_group("MmBackward0", "other", "backward", "feed-forward", (7.0, 6.0), backward=True),
)
