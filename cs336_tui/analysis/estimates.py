"""From what a cell will need to what that means on a device: whether it fits, and how long it will take."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from typing import NamedTuple

import msgspec

from cs336_tui.analysis.eta import in_lanes_s
from cs336_tui.analysis.scaling import least_s
from cs336_tui.analysis.targets import Target
from cs336_tui.config.order import variant_kind
from cs336_tui.config.spec import CellSpec
from cs336_tui.events.environment import capability_pair
from cs336_tui.events.gpus import cublas_workspace_bytes, gpu_of_label
from cs336_tui.events.prediction import WORKSPACE_OP, Collective, Prediction, run_key
from cs336_tui.session.state import SessionState
from cs336_tui.session.states import CellState
from cs336_tui.stats.quantities import UNKNOWN, counted, duration, gigabytes, mebibytes, millisecond_decimals

TIGHT_SHARE = 0.1
"""A fit with less than this share of the peak to spare is tight, as allocators reserve more than they hand out."""
_SAME = "repeats"
_MOST_NAMED = 3
"""The most other variants that are named."""
NO_TIME_KNOWN = "unknown until a cell on this device in this precision is measured"


class Estimate(msgspec.Struct, frozen=True, kw_only=True):
    """A cell on a target. `low_s` and `high_s` are of a step as it is measured, `run_low_s` and `run_high_s` of all its
    steps with warm-up and what is not timed; None is unknown. `basis` is that of the times, in words."""

    spec: CellSpec
    prediction: Prediction
    target: Target
    needed_bytes: int
    """Bytes that the allocator takes by prediction and the process besides; of all ranks where these have one
    memory together."""
    fits: bool | None
    tight: bool
    """It fits, with next to nothing to spare."""
    margin_bytes: int | None
    """Free less needed; below 0 it does not fit."""
    low_s: float | None
    high_s: float | None
    run_low_s: float | None
    run_high_s: float | None
    basis: str
    measured: bool
    """True if this very cell was measured."""
    by_others: bool = False
    """True if the times rest on cells of other variants."""

    @property
    def fit(self) -> str:
        """The fit in words, with the memory to spare."""
        if self.margin_bytes is None:
            return UNKNOWN
        if not self.fits:
            return f"does not fit, by {gigabytes(-self.margin_bytes)} GB"
        return f"fits{' tightly' if self.tight else ''}, {gigabytes(self.margin_bytes)} GB to spare"

    @property
    def step_time(self) -> str:
        """The range of a step in words."""
        one_guess = self.low_s is not None and self.low_s == self.high_s and not self.measured
        return f"{'about ' if one_guess else ''}{time_range(self.low_s, self.high_s)}"


class Unpredicted(NamedTuple):
    """A cell on a target whose needs could not be predicted."""

    spec: CellSpec
    target: Target
    why: str


class MeasuredCell(NamedTuple):
    """A cell of this session on the target, its mean step and how fast that was: work a second, as `_work` has it."""

    spec: CellSpec
    step_s: float
    per_s: float


_Known = dict[Hashable, list[MeasuredCell]]
"""Measured cells by each of their likenesses."""


def measured_cells(state: SessionState, target: Target) -> tuple[MeasuredCell, ...]:
    """The session's cells that tell how fast the target is: those measured on it whose prediction is known."""
    found = []
    for cell in state.cells.values():
        mean_s = cell.running.mean if cell.running.n and _ran_on(cell, target) else 0.0
        prediction = state.prediction_of(cell.spec) if mean_s else None
        if prediction and (work := _work(prediction)):
            found.append(MeasuredCell(cell.spec, mean_s, work / mean_s))
    return tuple(found)


def _likenesses(spec: CellSpec) -> tuple[tuple[Hashable, str], ...]:
    """Fields that cells may share with this one, most first, each with the differences that are left, in words.
    A cell tells about none that computes in another precision or on other threads, or whose work is of another kind."""
    usual, kind = (spec.precision, spec.threads, spec.workload == "norm"), variant_kind(spec)
    return (
        (run_key(spec), _SAME),
        ((*usual, "pass and variant", spec.pass_, kind), ""),
        ((*usual, "variant", kind), "other passes"),
        ((*usual, "pass", spec.pass_), "other variants"),
        (usual, "other passes and variants"),
    )


def _ran_on(cell: CellState, target: Target) -> bool:
    device = cell.environment.device(cell.spec.device) if cell.environment else None
    if device is None:
        return cell.spec.device == target.device
    same_gpu = target.gpu is not None and gpu_of_label(device.label) == target.gpu
    return cell.spec.device.partition(":")[0] == target.kind and (device.label == target.name or same_gpu)


def timed_flops(prediction: Prediction) -> int:
    """FLOPs of the timed phases."""
    return sum(prediction.flops.values())


def _work(prediction: Prediction) -> int:
    """Work to which a step's time is about proportional: FLOPs of the timed phases; of a norm alone, without matrix
    products, the least bytes."""
    return prediction.min_bytes_moved if prediction.spec.workload == "norm" else timed_flops(prediction)


def judge(
    prediction: Prediction, target: Target, state: SessionState | None = None, spec: CellSpec | None = None
) -> Estimate:
    """The prediction on a target; `state` is the session whose measured cells tell how fast it is, `spec` the cell
    where it is another one that needs the same."""
    return judge_all([prediction], target, state, [spec or prediction.spec])[0]


def judge_all(
    predictions: Sequence[Prediction],
    target: Target,
    state: SessionState | None = None,
    specs: Sequence[CellSpec] | None = None,
) -> tuple[Estimate, ...]:
    """The same for many cells."""
    known: _Known = {}
    for cell in measured_cells(state, target) if state else ():
        for likeness, _ in _likenesses(cell.spec):
            known.setdefault(likeness, []).append(cell)
    wanted = specs or [prediction.spec for prediction in predictions]
    return tuple(_judge(spec, each, target, known) for spec, each in zip(wanted, predictions, strict=True))


def judge_each(
    cells: Sequence[tuple[CellSpec, Prediction | None]],
    targets: Mapping[str, Target],
    state: SessionState | None = None,
) -> tuple[Estimate | None, ...]:
    """Each cell on the target of its device; None where its prediction or its device is not known."""
    found: dict[CellSpec, Estimate] = {}
    for device, target in targets.items():
        there = {spec: prediction for spec, prediction in cells if prediction and spec.device == device}
        found |= zip(there, judge_all([*there.values()], target, state, [*there]), strict=True)
    return tuple(found.get(spec) for spec, _ in cells)


def for_target(prediction: Prediction, target: Target) -> Prediction:
    """The prediction with cuBLAS workspaces as they are on the target's GPU, where that is known."""
    if not (prediction.workspaces and target.gpu):
        return prediction
    workspace = cublas_workspace_bytes(capability_pair(target.gpu.capability), prediction.torch)
    largest = tuple(
        msgspec.structs.replace(block, bytes=workspace) if block.site.op == WORKSPACE_OP else block
        for block in prediction.largest
    )
    more = prediction.workspaces * (workspace - prediction.workspace_bytes)
    found = prediction.with_more("temporary", more)
    return msgspec.structs.replace(found, largest=largest, workspace_bytes=workspace)


def least_times(estimate: Estimate) -> tuple[tuple[Collective, float | None], ...]:
    """A step's collectives, each with its least time in seconds over the target's links; None if these are unknown."""
    link, ranks = estimate.target.link_bytes_per_s, estimate.spec.ranks
    return tuple((used, least_s(used, ranks, link) if link else None) for used in estimate.prediction.communication)


def stream_derivation(prediction: Prediction) -> str | None:
    """The size of one tensor of the residual stream, step by step: ``B × T × d_model × 4 bytes = 4 × 512 × 2560 × 4 =
    20.0 MiB``. None where its size is not that product, as in a user's model of another shape."""
    spec, size = prediction.spec, prediction.residual_stream_bytes
    batch = spec.rank_batch_size // spec.accumulate
    elements = batch * spec.context_length * spec.d_model
    each, left = divmod(size, elements)
    if left or not each:
        return None
    factors = " × ".join(map(str, (batch, spec.context_length, spec.d_model, each)))
    return f"B × T × d_model × {each} bytes = {factors} = {mebibytes(size)} MiB"


def stream_text(prediction: Prediction) -> str:
    """The derivation, or the size alone where there is none."""
    return stream_derivation(prediction) or f"{mebibytes(prediction.residual_stream_bytes)} MiB"


def _judge(spec: CellSpec, prediction: Prediction, target: Target, known: _Known) -> Estimate:
    prediction = for_target(prediction, target)
    room = target.room_bytes(spec.ranks)
    taken = prediction.device_bytes if room is None else prediction.needed_of(room)
    needed = (taken + target.context_bytes) * (spec.ranks if target.shares_memory else 1)
    margin = None if target.free_bytes is None else target.free_bytes - needed
    fits = None if margin is None else margin >= 0
    told = ((known[likeness], unlike) for likeness, unlike in _likenesses(spec) if likeness in known)
    alike, unlike = next(told, ([], ""))
    low_s, high_s, basis = _step_range(spec, prediction, target, alike, unlike)
    # The forward of `backward` is run but not timed.
    every_flop = sum(forward + backward for forward, backward in prediction.flops_by_range.values())
    whole = max(every_flop / (timed_flops(prediction) or 1), 1.0)
    return Estimate(
        spec=spec,
        prediction=prediction,
        target=target,
        needed_bytes=needed,
        fits=fits,
        tight=bool(fits) and margin is not None and margin < TIGHT_SHARE * prediction.peak_bytes,
        margin_bytes=margin,
        low_s=low_s,
        high_s=high_s,
        run_low_s=None if (run_low_s := spec.steps_s(low_s)) is None else run_low_s * whole,
        run_high_s=None if high_s is None or (run_high_s := spec.steps_s(high_s)) is None else run_high_s * whole,
        basis=basis,
        measured=unlike == _SAME,
        by_others="variants" in unlike,
    )


def _named(cells: Sequence[MeasuredCell]) -> str:
    names = []
    for spec in (cell.spec for cell in cells):
        kind = (f"{spec.workload} alone",) if spec.is_alone else ()
        names.append(", ".join((*kind, *spec.variants)) or "as written")
    names = list(dict.fromkeys(names))
    if len(names) > _MOST_NAMED:
        names[_MOST_NAMED:] = ["..."]
    return "; ".join(names)


def _step_range(
    spec: CellSpec, prediction: Prediction, target: Target, alike: Sequence[MeasuredCell], unlike: str
) -> tuple[float | None, float | None, str]:
    """Seconds of a step, low and high, and their basis: this cell's, the speed of other cells, or the data sheet."""
    work, peak = _work(prediction), target.peak_flops(spec.precision)
    bandwidth = target.gpu.bandwidth_bytes_per_s if target.gpu else None
    if unlike == _SAME:
        means = [cell.step_s for cell in alike]
        return min(means), max(means), f"measured, {counted(len(alike), 'run')} of this cell"
    if alike:
        slowest, fastest = (extreme(cell.per_s for cell in alike) for extreme in (min, max))
        which = f" ({_named(alike)})" if "variants" in unlike else ""
        other = f" of {unlike}{which}" if unlike else ""
        rates = [slowest, fastest] if len(alike) > 1 else [fastest]
        speeds = _speeds(rates, bandwidth, "B/s") if spec.workload == "norm" else _speeds(rates, peak, "FLOP/s")
        return work / fastest, work / slowest, f"from {counted(len(alike), 'measured cell')}{other}: {speeds}"
    if peak is None:
        return None, None, NO_TIME_KNOWN
    bound = max(timed_flops(prediction) / peak, prediction.min_bytes_moved / bandwidth if bandwidth else 0)
    whose = "the stated peak" if target.stated_flops is not None else "the data sheet's peak"
    return bound, None, f"lower bound from {whose}; no cell measured yet"


def _speeds(rates: Sequence[float], peak: float | None, unit: str) -> str:
    if peak:
        return f"{' to '.join(f'{rate / peak * 100:.3g}' for rate in rates)} % of peak"
    scale, prefix = (1e12, "T") if rates[0] >= 1e12 else (1e9, "G")
    return f"{' to '.join(f'{rate / scale:.3g}' for rate in rates)} {prefix}{unit}"


def total_s(estimates: Iterable[Estimate], lanes: int = 1) -> tuple[float | None, float | None]:
    """Seconds that all steps of these cells take, low and high, in so many lanes; cells that do not fit take none. None
    is unknown."""
    running = [estimate for estimate in estimates if estimate.fits is not False]
    ranks = [estimate.spec.ranks for estimate in running]
    low_s, high_s = [each.run_low_s for each in running], [each.run_high_s for each in running]
    return _in_lanes(low_s, ranks, lanes), _in_lanes(high_s, ranks, lanes)


def _in_lanes(times_s: Sequence[float | None], ranks: Sequence[int], lanes: int) -> float | None:
    """The end of the last cell, if the ones of the most ranks start first, and of these the longest."""
    known = [(time_s, count) for time_s, count in zip(times_s, ranks, strict=True) if time_s is not None]
    if not known or len(known) < len(times_s):
        return None
    ordered = sorted(known, key=lambda each: (-each[1], -each[0]))
    return max(end for end in in_lanes_s(ordered, [0.0] * lanes) if end is not None)


def time_range(low_s: float | None, high_s: float | None) -> str:
    """A step's time in ms: ``12.3 to 15.6 ms``, ``at least 12.3 ms``, ``n/a``."""
    decimals = max(millisecond_decimals(low_s, None) - 1, 0)  # three digits: it is an estimate
    words = _range(low_s, high_s, lambda time_s: f"{time_s * 1e3:.{decimals}f}")
    return words if low_s is None else f"{words} ms"


def duration_range(low_s: float | None, high_s: float | None) -> str:
    """A longer time as a clock shows it, below a minute in seconds: ``1:05 to 1:20``, ``at least 1:05``, ``n/a``."""
    return _range(low_s, high_s, lambda time_s: f"{time_s:.2g} s" if time_s < 59.5 else duration(time_s))


def _range(low_s: float | None, high_s: float | None, show: Callable[[float], str]) -> str:
    if low_s is None:
        return UNKNOWN
    low, high = show(low_s), "" if high_s is None else show(high_s)
    if not high:
        return f"at least {low}"
    return low if low == high else f"{low} to {high}"
