"""Kinds of kernels and of host operators, by their names; and the content of a kernel report: launches of one step, or
of a recording, and the ranks' communication beside compute. ``*_ns`` are nanoseconds."""

import re
from collections.abc import Mapping
from functools import cache
from typing import Literal, get_args

import msgspec

from cs336_tui.config.spec import CellSpec
from cs336_tui.events.prediction import Prediction

FUSED = "fused"
"""The range of kernels that torch.compile fused from several parts."""
KernelKind = Literal[
    "matrix multiply", "softmax", "elementwise", "reduction", "copy", "optimizer", "communication", "other"
]
KINDS: tuple[str, ...] = get_args(KernelKind)
"""``softmax`` is its fused kernel; ``copy`` moves or fills memory; ``optimizer`` are kernels over lists of tensors.
``communication`` is between ranks; of a host's operator the time in which it is called and perhaps waited for."""


class KernelSummary(msgspec.Struct, frozen=True, kw_only=True):
    """All that a recording without single launches tells of a kernel; None for what it leaves out."""

    instances: int
    total_ns: int
    avg_ns: float | None = None
    med_ns: float | None = None
    min_ns: int | None = None
    max_ns: int | None = None
    std_ns: float | None = None


class KernelGroup(msgspec.Struct, frozen=True):
    """All launches of one kernel, by its full name (on a CPU: calls of one operator, by self time), from one place."""

    name: str
    kind: KernelKind
    phase: str
    range: str
    backward: bool
    durations_ns: tuple[int, ...]
    op: str = ""
    """The operator that launched it; empty if unknown."""
    path: tuple[str, ...] = ()
    """Every range that encloses it, the outermost first; empty if `phase` and `range` are all."""

    summary: KernelSummary | None = None
    """In place of `durations_ns`, where a recording has no single launches."""
    stack: tuple[str, ...] = ()
    """Of a profile of one's own, every operator and annotation that encloses the launch, the outermost first."""
    stepped: int | None = None
    """Number of its launches within the steps of a recording; None: all."""

    @property
    def instances(self) -> int:
        return len(self.durations_ns) if self.summary is None else self.summary.instances

    @property
    def total_ns(self) -> int:
        return sum(self.durations_ns) if self.summary is None else self.summary.total_ns

    @property
    def ranges(self) -> tuple[str, ...]:
        """Its phase and every range that encloses it, by name."""
        return tuple(filter(None, (self.phase, *self.path, self.range)))


class Gap(msgspec.Struct, frozen=True):
    """Time in which the device ran nothing, and the kernels, copies or fills round it."""

    ns: int
    after: str
    before: str


class Gaps(msgspec.Struct, frozen=True, kw_only=True):
    """The times in which the device ran nothing, between the first begin and the last end of what it ran."""

    count: int
    total_ns: int
    median_ns: float
    """0.0 without a gap."""
    largest: tuple[Gap, ...]
    """The longest first; at most 10."""


class Overlap(msgspec.Struct, frozen=True, kw_only=True):
    """Communication between GPUs, by NCCL's and other kernels, and the part of its time in which another kernel ran."""

    communication_ns: int
    overlapped_ns: int


class AllGather(msgspec.Struct, frozen=True, kw_only=True):
    """An all-gather of a profiled step beside the pass of the module that uses what it gathers. Times count from the
    step's begin."""

    module: str
    """Of the model, as ``layers.0``; empty if none is known to use it."""
    pass_: str
    """``forward`` or ``backward``: the first that uses it; empty if unknown."""
    bytes: int | None
    """Of the whole array."""
    begin_ns: int
    end_ns: int
    alone_ns: int
    """The part of its time in which nothing was computed."""
    ready_ns: int | None = None
    """The moment from which the pass of the module could have begun, had the weights been there."""
    waited_ns: int | None = None
    """Time from then to its end in which nothing was computed; 0 if it had ended."""

    @property
    def early_ns(self) -> int | None:
        """Time from its end to that moment; None if it ended later."""
        return None if self.ready_ns is None or self.end_ns > self.ready_ns else self.ready_ns - self.end_ns


class Runs(msgspec.Struct, frozen=True, kw_only=True):
    """The times that a recording ran a phase, or all of a step: of each its launches, their time, and the time from the
    first one's begin to the last one's end."""

    unit: str
    """The ranges that tell the times apart: ``step``, or a phase."""
    launches: tuple[int, ...]
    total_ns: tuple[int, ...]
    span_ns: tuple[int, ...]
    """Empty of several phases together."""
    steps: int = 0
    """Number of all steps, where these are those in which a phase ran; 0 of a phase's own ranges."""

    @property
    def text(self) -> str:
        """``5 × step``, ``5 × step (of 10)``."""
        some = f" (of {self.steps})" if self.steps > len(self.launches) else ""
        return f"{len(self.launches)} × {self.unit}{some}"


class RankTraffic(msgspec.Struct, frozen=True, kw_only=True):
    """Communication beside compute on one rank of a profiled step."""

    rank: int
    span_ns: int
    """Of the step on this rank."""
    compute_ns: int
    communication_ns: int
    """Time with at least one operation of communication under way."""
    overlapped_ns: int
    """The part of it in which compute ran."""
    operations: dict[str, int]
    """Number of operations by name."""
    compute_over_time: tuple[float, ...]
    communication_over_time: tuple[float, ...]
    """The share of each of equal parts of the step."""
    trace: str | None = None
    all_gathers: tuple[AllGather, ...] = ()
    """In the order in which they ran."""

    @property
    def overlapped_share(self) -> float | None:
        return self.overlapped_ns / self.communication_ns if self.communication_ns else None

    @property
    def uncovered_ns(self) -> int:
        """Communication beside which nothing was computed."""
        return self.communication_ns - self.overlapped_ns


class KernelReport(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """One profiled step, or what others recorded on one device (``spec.recording``). Every launch is in exactly one
    group; their sum is `total_ns`."""

    spec: CellSpec
    activity: Literal["kernels", "operators"]
    """Counted are kernels of a GPU, or operators of the host by self time if no kernels can be seen."""
    device_name: str
    torch: str
    groups: tuple[KernelGroup, ...]
    total_ns: int
    """The profiler's own sum of the step."""
    span_ns: int
    """From the first launch's begin to the last one's end; of a recording its `copies` count as launches here. 0 if it
    is not known."""
    phase_spans_ns: dict[str, int]
    busy_ns: int
    """Time with at least one of them running; of a recording or one of its `copies`."""
    launches: int
    host_ns: int | None = None
    """The host's time to enqueue the step; None on a CPU."""
    prediction: Prediction | None = None
    """For the FLOPs beside the times."""
    trace: str | None = None
    """File with the Chrome trace, to be opened in Perfetto; of a recording its file, whatever its format."""
    note: str = ""
    """Such as why no kernels could be seen and what is shown instead."""
    copies: tuple[KernelGroup, ...] = ()
    """Copies and fills of a recording, which are no kernels; those of a profiled step are among its `groups`."""
    gaps: Gaps | None = None
    """None if the device's own times are not known."""
    overlap: Overlap | None = None
    """None without communication."""
    steps_ns: dict[str, int] = {}
    """Host times of the steps that a recording names, such as ``step 3``."""
    runs: dict[str, Runs] = {}
    """Of a recording, by phase, and of all of it as ``recording``; empty if nothing tells its steps apart."""
    ranks: tuple[RankTraffic, ...] = ()
    """Of several ranks; all other fields are of the first."""

    @property
    def file_line(self) -> str:
        """The path of `trace`, with what opens it; empty without one."""
        if not self.trace:
            return ""
        is_chrome = self.trace.endswith((".json", ".json.gz"))
        return f"{'Chrome trace, for ui.perfetto.dev' if is_chrome else 'recorded in'}: {self.trace}"


COMMUNICATION = r"nccl|rccl|nvshmem|multimem|all_?reduce|all_?gather|reduce_?scatter|all_?to_?all|cross_device_reduce"
"""Kernels that move data between GPUs."""
# In this order: a copy is an elementwise kernel by its template, the sum of a split matrix product a reduction.
_RULES: tuple[tuple[KernelKind, str], ...] = (
    # torch.compile's own, named by template and by what they fuse.
    ("matrix multiply", r"^triton_tem_"),
    ("softmax", r"^triton_(red|per)_.*softmax"),
    ("reduction", r"^triton_(red|per|split_scan)_"),
    ("elementwise", r"^triton_(poi|for)_"),
    ("copy", r"^(Memcpy|Memset|\[CUDA mem(cpy|set))|reshape_and_cache|(?<![a-z])_?copy_page"),
    ("other", r"fmha|flash|attention"),  # matrix products and softmax in one
    ("communication", COMMUNICATION),
    ("other", r"fprop|dgrad|wgrad|winograd|scudnn|conv\dd|convolv"),  # convolutions
    ("matrix multiply", r"gemm|gemv|cutlass|xmma|cublas|nvjet|wgmma|matmul|splitKreduce|dot_kernel|^bmm_"),
    ("softmax", r"softmax"),
    ("optimizer", r"multi_tensor_apply|FusedAdam|fused_adam|(?<![a-z])amp_(non_finite|update)"),
    ("elementwise", r"masked_(fill|scatter|scale)|scatter_(gather|fill)"),
    ("copy", r"_copy_kernel|copy_kernel_cuda|FillFunctor|CatArrayBatchedCopy|fill_kernel|nchwToNhwc|nhwcToNchw"),
    ("elementwise", r"^(void )?at::native::(vectorized|unrolled|index)?_?elementwise_kernel"),
    ("reduction", r"reduce|DeviceScan|_scan_|_norm_|batch_?norm|layer_?norm|group_?norm|\bbn_[fb]w_"),
    ("reduction", r"RowwiseMoments|GammaBeta|InternalGradients"),  # parts of normalisations
    ("elementwise", r"elementwise|vectorized|unrolled|index|gather|scatter|embedding|dropout|triu_tril|distribution"),
)
_FUSES_ATTENTION = re.compile(r"fmha|flash|(?<!scaled_dot_product_)attention", re.IGNORECASE)
_DTYPES = re.compile(r"\bcutlass::\w+_t\b")  # A library's names of numbers, which others use too

_OPERATORS: Mapping[KernelKind, str] = {
    "matrix multiply": "mm bmm addmm addbmm baddbmm mv addmv dot vdot addr outer _addmm_activation mkldnn_linear "
    "_mkl_linear _int_mm _scaled_mm",
    "softmax": "softmax log_softmax _softmax _log_softmax _softmax_backward_data _log_softmax_backward_data",
    "reduction": "sum mean nansum prod var std norm linalg_vector_norm amax amin max min argmax argmin any all "
    "logsumexp cumsum nll_loss_forward nll_loss_backward",
    "elementwise": "add sub rsub mul div neg abs exp log sqrt rsqrt pow square reciprocal sigmoid tanh silu "
    "silu_backward gelu gelu_backward sin cos addcmul addcdiv lerp where masked_fill clamp maximum minimum eq ne gt ge "
    "lt le isfinite isinf isnan logical_and logical_or bitwise_not index index_select index_put gather scatter "
    "scatter_add embedding_dense_backward tril triu",
    "copy": "copy fill zero cat clone contiguous arange constant_pad_nd",
}
_KIND_OF: Mapping[str, KernelKind] = {name: kind for kind, names in _OPERATORS.items() for name in names.split()}
_COMPILED_LOOP = re.compile(r"(^|_)cpp_fused_")  # torch.compile's own loops on a CPU, named by what they fuse
_REDUCES = re.compile(r"_(softmax|mean|sum|amax|var|norm)(_|$)")
_COMMUNICATES = ("c10d::", "_c10d_functional::")
_LIST_OF_TENSORS = ("_foreach_", "_fused_adam", "_amp_foreach_")


def kernel_kind(name: str) -> KernelKind:
    """Kind of a GPU's kernel or memory operation. Kernels that fuse attention are ``other``."""
    said = _DTYPES.sub("", name)
    return next((kind for kind, pattern in _patterns() if pattern.search(said)), "other")


@cache
def _patterns() -> tuple[tuple[KernelKind, re.Pattern[str]], ...]:
    """The rules, compiled when a kernel is first named: every start imports this module."""
    return tuple((kind, re.compile(pattern, re.IGNORECASE)) for kind, pattern in _RULES)


def fuses_attention(name: str) -> bool:
    """True of a kernel or operator of kind ``other`` with attention's products and softmax in one."""
    return bool(_FUSES_ATTENTION.search(name))


def computes(name: str) -> bool:
    """True of an operator of torch on the host, and of a loop that torch.compile made."""
    return name.startswith("aten::") or _COMPILED_LOOP.search(name) is not None


def operator_kind(name: str) -> KernelKind:
    """Kind of a host operator, by its own computation. Views, allocations, autograd's nodes and those that only
    dispatch (``aten::matmul``, whose work is in ``aten::mm``) are ``other``. A for-loop optimizer is elementwise."""
    if name.startswith(_COMMUNICATES):
        return "communication"
    bare = name.removeprefix("aten::")
    if _COMPILED_LOOP.search(bare):
        if "softmax" in bare:
            return "softmax"
        return "reduction" if _REDUCES.search(bare) else "elementwise"
    if bare.startswith(_LIST_OF_TENSORS):
        return "optimizer"
    return _KIND_OF.get(bare, _KIND_OF.get(bare.removesuffix("_"), "other"))
