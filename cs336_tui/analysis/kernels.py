"""A profiled step in figures: rows per kernel, shares per kind, phase and named range. Times are ns, shares 0 to 1 of
what was selected. A `Phases` is one phase, several, or None for the whole step."""

from __future__ import annotations

import math
import re
import statistics
from collections.abc import Callable, Iterable, Sequence
from fnmatch import fnmatchcase
from typing import NamedTuple

import msgspec

from cs336_tui.analysis.merge import grouped
from cs336_tui.config.axis import UserError
from cs336_tui.config.spec import CellSpec
from cs336_tui.config.variants import RANGES
from cs336_tui.events.kernel_report import FUSED, KINDS, KernelGroup, KernelKind, KernelReport, Runs
from cs336_tui.events.prediction import NO_RANGE
from cs336_tui.session.state import SessionState

Phases = str | tuple[str, ...] | None

_KNOWN_RANGES = frozenset((*RANGES, FUSED, NO_RANGE))
_STEP_RANGE = re.compile(r"profilerstep\s*#\s*(\d+)")
_MOST_NAMES = 20

MATMUL: KernelKind = "matrix multiply"
OPTIMIZER_PHASES = ("zero_grad", "optimizer")


class KernelRow(NamedTuple):
    """Every launch of one kernel; `share` is of what was selected, `std_ns` is 0.0 for one launch. None is not
    known, of a recording without single launches; `per_run` is its launches in one of a recording's `Runs`."""

    name: str
    short: str
    kind: KernelKind
    share: float
    total_ns: int
    instances: float
    avg_ns: float
    med_ns: float | None
    min_ns: int | None
    max_ns: int | None
    std_ns: float | None
    per_run: float | None = None


class TimeShare(NamedTuple):
    """One kind, or one phase, and its part of the selected time."""

    name: str
    share: float
    total_ns: int
    instances: int


class RangeShare(NamedTuple):
    """One named range. `forward_ns` is all that is not backward: for ``optimizer`` its own time. Both are None of a
    report that knows no phase."""

    name: str
    share: float
    forward_ns: int | None
    backward_ns: int | None
    instances: int
    total_ns: int


class MatmulShares(NamedTuple):
    """Matrix multiplication's share of the time of parts of a step; None for a part that the pass does not have. The
    loss is in `forward_and_backward`, the optimizer in `full_step`."""

    forward: float | None
    forward_and_backward: float | None
    full_step: float | None


class StepUse(NamedTuple):
    """A step that a recording names: the host's time, the launches within it, their time, and the share of matrix
    multiplication in it."""

    step: str
    host_ns: int
    launches: int
    total_ns: int
    matmul_share: float


def rows(
    report: KernelReport, *, phase: Phases = None, range_: str | None = None, kind: str | None = None, ddof: int = 1
) -> tuple[KernelRow, ...]:
    """A row per kernel, largest total first; shares are of all that was selected. Stds divide by n - `ddof`."""
    groups = in_phases(report, phase)
    chosen = [each for each in groups if range_ in (None, each.range) and kind in (None, each.kind)]
    return rows_of(chosen, ddof, runs_of(report, phase))


def rows_of(groups: Sequence[KernelGroup], ddof: int = 1, runs: Runs | None = None) -> tuple[KernelRow, ...]:
    """A row per kernel of these groups, largest total first; shares are of all of them."""
    time_ns, by_name = total_ns(groups), grouped(groups, lambda group: group.name)
    made = (_row(name, of_name, time_ns, ddof, runs) for name, of_name in by_name.items())
    return tuple(sorted(made, key=lambda row: (-row.total_ns, row.name)))


def runs_of(report: KernelReport, phases: Phases) -> Runs | None:
    """The times that a recording ran these phases, or all of a step; None if nothing tells them apart, and of a profile
    of one's own, which is one step."""
    if phases is None or isinstance(phases, str):
        return report.runs.get("recording" if phases is None else phases)
    parts = [runs for phase in phases if (runs := report.runs.get(phase))]
    if len(parts) < len(phases) or len({len(runs.launches) for runs in parts}) > 1:
        return None
    launches = tuple(map(sum, zip(*(runs.launches for runs in parts), strict=True)))
    totals = tuple(map(sum, zip(*(runs.total_ns for runs in parts), strict=True)))
    return Runs(unit=parts[0].unit, launches=launches, total_ns=totals, span_ns=(), steps=parts[0].steps)


class RangeError(UserError, ValueError):
    """A range that encloses no kernel; the text names those that do."""


def within(report: KernelReport, ranges: Sequence[str]) -> KernelReport:
    """The report of the kernels that every one of these ranges encloses, a phase or a range at any depth; spans, gaps
    and overlap are of the whole. Names may be patterns such as ``nccl:*``; capitals and ``#`` round a name do not
    matter. Raises `RangeError`."""
    patterns = [_STEP_RANGE.sub(r"step \1", wanted.casefold().strip("# ")) for wanted in ranges]
    enclosing = [(group, [name.casefold().strip("# ") for name in group.ranges]) for group in report.groups]
    groups = [
        group
        for group, names in enclosing
        if all(any(fnmatchcase(name, pattern) for name in names) for pattern in patterns)
    ]
    if not groups:
        known = ", ".join(range_names(report)[:_MOST_NAMES]) or "no ranges"
        raise RangeError(f"range {', '.join(ranges)}: no kernel of {report.spec.title} is in it; it has {known}")
    launches, total = _instances(groups), total_ns(groups)
    return msgspec.structs.replace(report, groups=tuple(groups), launches=launches, total_ns=total)


def range_names(report: KernelReport) -> tuple[str, ...]:
    """Phases and ranges that enclose kernels, each once, as they come."""
    return tuple(dict.fromkeys(name for group in report.groups for name in group.ranges))


def by_kind(report: KernelReport, phase: Phases = None) -> tuple[TimeShare, ...]:
    """A share per kind that occurs, in the order of `KINDS`."""
    return _shares(in_phases(report, phase), lambda group: group.kind, KINDS)


def by_phase(report: KernelReport) -> tuple[TimeShare, ...]:
    """A share per phase in which something was launched, in the order in which they ran."""
    return _shares(report.groups, lambda group: group.phase, tuple(report.phase_spans_ns))


def by_range(report: KernelReport) -> tuple[RangeShare, ...]:
    """A share per named range that occurs, in the order of `range_order`."""
    found = []
    order, knows = range_order(report), knows_phases(report)
    for name, share, total, instances in _shares(report.groups, lambda group: group.range, order):
        backward = total_ns(group for group in report.groups if group.range == name and group.backward)
        forward, backward_ns = (total - backward, backward) if knows else (None, None)
        found.append(RangeShare(name, share, forward, backward_ns, instances, total))
    return tuple(found)


def knows_phases(report: KernelReport) -> bool:
    """False of a recording that nothing tells forward and backward of."""
    return any(group.phase or group.backward for group in report.groups)


def range_order(report: KernelReport) -> tuple[str, ...]:
    """Named ranges: those of `RANGES`, others of a recording as they come, ``FUSED``, ``NO_RANGE``."""
    others = dict.fromkeys(group.range for group in report.groups if group.range not in _KNOWN_RANGES)
    return (*RANGES, *others, FUSED, NO_RANGE)


def matmul_shares(report: KernelReport) -> MatmulShares:
    """The shares of matrix multiplication in forward, in forward and backward, and in a full training step."""
    phases = tuple(report.phase_spans_ns)
    model = tuple(phase for phase in phases if phase not in OPTIMIZER_PHASES)
    return MatmulShares(
        forward=matmul_share(in_phases(report, "forward")) if "forward" in phases else None,
        forward_and_backward=matmul_share(in_phases(report, model)) if {"forward", "backward"} <= {*phases} else None,
        full_step=matmul_share(report.groups) if "optimizer" in phases else None,
    )


def launches_in_forward(report: KernelReport, name: str) -> float | None:
    """The number of times that one forward launches a kernel; None of a step without a forward, and of a recording
    whose forwards cannot be told apart."""
    runs = runs_of(report, "forward")
    if "forward" not in report.phase_spans_ns or (report.spec.recording and runs is None):
        return None
    groups = [group for group in in_phases(report, "forward") if group.name == name]
    return _per_run(groups, runs) if runs else _instances(groups)


def top_row(groups: Sequence[KernelGroup], runs: Runs | None = None) -> KernelRow | None:
    """The row of the kernel with the most time in these groups, the first of `rows_of`."""
    by_name = grouped(groups, lambda group: group.name)
    if not by_name:
        return None
    name = min(by_name, key=lambda name: (-total_ns(by_name[name]), name))
    return _row(name, by_name[name], total_ns(groups), 1, runs)


def by_step(report: KernelReport) -> tuple[StepUse, ...]:
    """The steps that a recording names, in their order."""
    found = []
    for step, host_ns in report.steps_ns.items():
        groups = [group for group in report.groups if step in group.path]
        found.append(StepUse(step, host_ns, _instances(groups), total_ns(groups), matmul_share(groups)))
    return tuple(found)


def launches_per_s(report: KernelReport) -> float | None:
    """Launches over the time from the first to the last; None of one moment."""
    return report.launches / report.span_ns * 1e9 if report.span_ns else None


def overlapped_share(report: KernelReport) -> float | None:
    """The share of the time of communication between GPUs in which another kernel ran; None without communication."""
    found = report.overlap
    return found.overlapped_ns / found.communication_ns if found and found.communication_ns else None


def named_share(report: KernelReport) -> float:
    """The share of the time that carries a named range."""
    return share_of(report.groups, lambda group: group.range not in (NO_RANGE, FUSED))


def idle_share(report: KernelReport) -> float | None:
    """The share of the step's span in which the GPU ran nothing; None for operators of a host. Profiling slows the
    host, so that a step which is not profiled is idle no more than this."""
    if report.activity == "operators" or not report.span_ns:
        return None
    return 1 - report.busy_ns / report.span_ns


def profiled_idle(state: SessionState, spec: CellSpec) -> float | None:
    """`idle_share` of the session's profile of this work; None where there is none or no kernels could be seen."""
    report = state.content_of(KernelReport, spec)
    return idle_share(report) if report else None


def whole(spec: CellSpec) -> str:
    """The word for all phases together: ``step``, or ``recording`` of what others recorded."""
    return "recording" if spec.recording else "step"


def has_totals_alone(report: KernelReport) -> bool:
    """True if a recording has no single launches."""
    return any(group.summary for group in report.groups)


def in_phases(report: KernelReport, phase: Phases) -> tuple[KernelGroup, ...]:
    """The launches of these phases; of one whose `Runs` are its own ranges all count, in a step or not."""
    if phase is None:
        return report.groups
    wanted = (phase,) if isinstance(phase, str) else phase
    groups = [group for group in report.groups if group.phase in wanted]
    own = {
        name
        for name in wanted
        if (runs := report.runs.get(name))
        and sum(runs.launches) == _instances(group for group in groups if group.phase == name)
    }
    return tuple(msgspec.structs.replace(each, stepped=None) if each.phase in own else each for each in groups)


def matmul_share(groups: Sequence[KernelGroup]) -> float:
    """Matrix multiplication's share of the time of these groups."""
    return share_of(groups, lambda group: group.kind == MATMUL)


def share_of(groups: Sequence[KernelGroup], chosen: Callable[[KernelGroup], bool]) -> float:
    """The share that the chosen ones have of the time of these groups; 0.0 where nothing ran."""
    return _of(total_ns(filter(chosen, groups)), total_ns(groups))


def total_ns(groups: Iterable[KernelGroup]) -> int:
    """The time of these groups."""
    return sum(group.total_ns for group in groups)


def _per_run(groups: Sequence[KernelGroup], runs: Runs) -> float:
    """Launches in one of the times, on average."""
    launches = sum(group.instances if group.stepped is None else group.stepped for group in groups)
    whole, rest = divmod(launches, len(runs.launches))
    return round(launches / len(runs.launches), 2) if rest else whole


def _row(name: str, groups: Sequence[KernelGroup], whole_ns: int, ddof: int, runs: Runs | None) -> KernelRow:
    per_run = _per_run(groups, runs) if runs else None
    total, count = total_ns(groups), _instances(groups)
    known = name, short_name(name), groups[0].kind, _of(total, whole_ns), total, count
    if summaries := [group.summary for group in groups if group.summary]:
        mean = _of(total, count)
        if len(summaries) == 1:
            (only,) = summaries
            mean = mean if only.avg_ns is None else only.avg_ns
            return KernelRow(*known, mean, only.med_ns, only.min_ns, only.max_ns, only.std_ns, per_run)
        least, greatest = _all_known(each.min_ns for each in summaries), _all_known(each.max_ns for each in summaries)
        return KernelRow(*known, mean, None, min(least, default=None), max(greatest, default=None), None, per_run)
    durations = [duration for group in groups for duration in group.durations_ns]
    mean = total / count
    std = math.sqrt(math.fsum((d - mean) ** 2 for d in durations) / (count - ddof)) if count > 1 else 0.0
    return KernelRow(*known, mean, statistics.median(durations), min(durations), max(durations), std, per_run)


def _all_known(values: Iterable[int | None]) -> list[int]:
    """The values; none of them if one is not known."""
    found = list(values)
    return [] if None in found else [value for value in found if value is not None]


def _shares(
    groups: Sequence[KernelGroup], name_of: Callable[[KernelGroup], str], order: Sequence[str]
) -> tuple[TimeShare, ...]:
    time_ns, gathered = total_ns(groups), grouped(groups, name_of)
    return tuple(
        TimeShare(name, _of(total_ns(gathered[name]), time_ns), total_ns(gathered[name]), _instances(gathered[name]))
        for name in order
        if name in gathered
    )


def _instances(groups: Iterable[KernelGroup]) -> int:
    return sum(group.instances for group in groups)


def _of(part: int, whole: int) -> float:
    return part / whole if whole else 0.0


_NAMESPACES = re.compile(r"(?:\(anonymous namespace\)|<unnamed>|\b[A-Za-z_]\w*)::(?=[A-Za-z_(<])")
_PLUMBING = ("array", "ReduceOp", "Functor", "BinaryFunctor", "AUnaryFunctor", "BUnaryFunctor", "TensorListMetadata",
             "func_wrapper_t", "OpaqueType", "OpType", "lambda", "operator")  # fmt: skip
_FUNCTOR = re.compile(r"\b(\w*(?:[Ff]unctor|Ops?(?![a-z])|Epilogue)\w*)(<[\w ,:*()]*>)?")
_INNER_KERNEL = re.compile(r"\b(\w+?)(?:_kernel(?:_cuda|_impl)*)(?:<[^()]*?>)?\(")
_INNER_FUNCTION = re.compile(r"\b(?:launch_)?([A-Za-z_]\w*?)(?:CUDAKernelImpl|_cuda_?|_impl)*(?:<[^()]*?>)?\(")
"""Of what a kernel is made, where no kernel is named: ``GeluCUDAKernelImpl(at::TensorIteratorBase&)::{lambda()#1}``."""
_OPENING = {")": "(", "}": "{", "]": "["}
_DTYPE = re.compile(r"(?:c10::)?(float|double|Half|BFloat16)\b")
_LIBRARY_DTYPE = re.compile(r"\b(float|double|__half|__nv_bfloat16)\b")
_WRAPPERS = ("Kernel", "Kernel2", "device_kernel", "kernel")
_COUNT = re.compile(r"\d|\(|(true|false)$")
_VECTOR_PRODUCT = re.compile(r"gemm|gemv", re.IGNORECASE)
_GEMM = re.compile(r"gemm|gemv|cutlass|xmma|nvjet", re.IGNORECASE)
_MOST_TEXT = 4000
"""Characters of a name that are looked at."""
_GEMM_PLUMBING = re.compile(
    r"_?(?:execute_\w+|stages?_?\d+(?:x\d+)?|warpsize\d+x\d+x\d+|warpgroupsize\d+x\d+x\d+|align[ac]?\d+|warpspecialized\w*"
    r"|ldg\d+|f2f|kernel__5x_cublas)(?=_|$)"
)


def short_name(name: str) -> str:
    """The short name of a kernel, never empty. ``void at::native::vectorized_elementwise_kernel<4,
    at::native::CUDAFunctor_add<float>, ...>`` is ``vectorized_elementwise CUDAFunctor_add<float>``, ``aten::mm`` is
    ``mm``; a matrix product keeps dtypes and tile."""
    name = name[:_MOST_TEXT]
    if name.startswith("autograd::engine::evaluate_function: "):
        return f"evaluate {_last(name.partition(': ')[2])}"
    if name.startswith(("Memcpy", "Memset")):
        return name
    plain = name.removeprefix("void ").strip()
    base, arguments = _split(plain)
    if _GEMM.search(base) or (_last(base) in _WRAPPERS and _GEMM.search(arguments)):
        return _short_gemm(base, arguments) or plain
    short = _last(base).removesuffix("_kernel") or plain or "(unnamed)"
    if detail := _detail(arguments):
        return f"{short} {detail}"
    dtype = _DTYPE.match(arguments)
    return f"{short}<{dtype[1]}>" if dtype else short


def _split(name: str) -> tuple[str, str]:
    """A function's name and its template arguments: ``a::f<T, U>(int)`` is ``a::f`` and ``T, U``. A result's type
    before it is left out: ``std::enable_if<(2)>(1), void>::type f<T>(int)`` is ``f`` and ``T``."""
    name = name.replace("(anonymous namespace)::", "").replace("<unnamed>::", "")
    begin, opened, closed, end = 0, 0, len(name), len(name)
    nested: list[str] = []
    for place, char in enumerate(name):
        if char == "(" and not nested:
            end = place
            break
        if char in "<({[":
            opened = opened if nested else place
            nested.append(char)
        elif char == ">" and nested[-1:] == ["<"] and name[place - 1] != "-":
            nested.pop()
            closed = closed if nested else place
        elif char in _OPENING:
            while nested and nested.pop() != _OPENING[char]:
                pass
        elif char == " " and not nested:
            begin, opened, closed = place + 1, 0, len(name)
    return name[begin : opened or end] or name, name[opened + 1 : closed] if opened else ""


def _last(name: str) -> str:
    return name.rpartition("::")[2] or name


def _detail(arguments: str) -> str:
    """The functor or the inner kernel among template arguments, the innermost that says something."""
    without = _NAMESPACES.sub("", arguments)
    for functor in (match for match in _FUNCTOR.finditer(without) if match[1] not in _PLUMBING):
        # ``MeanOps<float, float, 4>`` as ``MeanOps<float>``: counts and what is said again say nothing.
        head, _, rest = functor[0].partition("<")
        parts = (part.strip() for part in rest.rstrip("> ").split(","))
        telling = dict.fromkeys(part for part in parts if part and not _COUNT.match(part))
        return f"{head}<{', '.join(telling)}>" if telling else head
    for pattern in (_INNER_KERNEL, _INNER_FUNCTION):
        for inner in pattern.finditer(without):
            if inner[1] not in _PLUMBING and not inner[1].startswith(("gpu_kernel", "at_cuda")):
                return inner[1]
    return ""


def _short_gemm(base: str, arguments: str) -> str:
    """A library's own name for a matrix product, which a wrapper of CUTLASS has as its argument, and cuBLAS's products
    with a vector as its namespace: ``gemvx<__nv_bfloat16>``."""
    wrapped = _last(base) in _WRAPPERS
    if wrapped and _VECTOR_PRODUCT.search(base):
        dtype = _LIBRARY_DTYPE.search(arguments)
        return _last(base.rpartition("::")[0]) + (f"<{dtype[1]}>" if dtype else "")
    chosen = arguments.partition("(")[0] if wrapped and arguments else _last(base)
    if wrapped and "<" in chosen:
        chosen = _last(chosen.partition("<")[0])
    short = _GEMM_PLUMBING.sub("", _last(chosen)).strip("_ ")
    return short.removesuffix("_kernel")
