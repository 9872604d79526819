"""Step times, phases and enqueue times of every mode are those of the simulated device, which keeps its own record.

An event lies between the end of the work before it and the begin of the work after it, or the host's wait. So truth has
bounds, which are as far apart as the device was idle there."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import pytest

from tests.simgpu.cells import TINY, Bench, Window, Work, bench

PASSES = "inference,forward,forward+loss,backward,forward+backward,train-step"
PHASES = {
    "inference": ("forward",),
    "forward": ("forward",),
    "forward+loss": ("forward", "loss"),
    "backward": ("backward",),
    "forward+backward": ("forward", "loss", "backward"),
    "train-step": ("zero_grad", "forward", "loss", "backward", "optimizer"),
}
CAPTURED = "inference,forward,forward+backward,train-step"
BOTH_TIMERS = "--timer step,do_bench"
TWO_STREAMS = "--attention tests.simgpu.two_streams:attention"
LONG = {"KERNEL_US": 450, "GEMM_US": 600, "QUEUE": 5000}
"""Kernels that take longer than their launches, and a queue that holds all of them."""
BY_NAME = LONG | {"TABLE": "nll_loss=2500,softmax=900,reduce=500,multi_tensor=1700,Memcpy=50"}
BY_SIZE = LONG | {"TFLOPS_FP32": 0.01}
FEW_KERNELS = {"KERNEL_US": 5000, "GEMM_US": 5000}


class Bounds(NamedTuple):
    low_ns: float
    high_ns: float

    def miss_ns(self, ns: float) -> float:
        return max(self.low_ns - ns, ns - self.high_ns, 0)


class Step(NamedTuple):
    """A step of the simulated device: its window, and where in it the step's first and each phase's end is."""

    window: Window
    cuts: tuple[int, ...]

    def phases(self, *, of_host: bool = False) -> list[Bounds]:
        work, end_ns = self.window.work, self.window.began_ns
        stamps = []
        for cut in self.cuts:
            if of_host:
                before, after = (each.launched_ns for each in work[:cut]), (each.launched_ns for each in work[cut:])
            else:
                before, after = (each.end_ns for each in work[:cut]), (each.begin_ns for each in work[cut:])
            earliest = max(before, default=self.window.after_ns)
            stamps.append(Bounds(earliest, max(earliest, min(after, default=end_ns))))
        return [Bounds(b.low_ns - a.high_ns, b.high_ns - a.low_ns) for a, b in pairwise(stamps)]

    def whole(self) -> Bounds:
        return self._replace(cuts=(self.cuts[0], self.cuts[-1])).phases()[0]


def names(work: Sequence[Work]) -> tuple[str, ...]:
    return tuple(each.name for each in work)


def repeats(kind: Sequence[str], times: int) -> bool:
    return kind == kind[: len(kind) // times] * times


def windows_of(made: Bench, run: dict[str, Any]) -> list[Window]:
    """The windows with measured steps. A step's work is that of the window most often seen; of a backward there are two
    such windows, for its forward is awaited, too. A copy alone is a step's loss, which is read after its time."""
    windows = made.windows[run["cell"]]
    found = [window for window in windows if any(not name.startswith("Memcpy") for name in names(window.work))]
    spec = run["spec"]
    if spec["sync"] == "pipelined" or spec["timer"] == "do_bench":
        return [window for window in found if repeats(names(window.work), len(run["step_times_s"]))][-1:]
    kinds = [names(window.work) for window in found]
    if spec["pass"] == "backward":
        kinds = [kind if any("nll_loss_backward" in name for name in kind) else () for kind in kinds]
    usual = max(filter(None, kinds), key=kinds.count)
    return [window for window, kind in zip(found, kinds, strict=True) if kind == usual][-spec["measure_steps"] :]


def ends_of_phases(made: Bench, run: dict[str, Any], count: int) -> tuple[int, ...]:
    """Where each phase of a step of so many pieces of work ends: a shorter pass is the begin of a longer one."""
    phases, spec = PHASES[run["spec"]["pass"]], run["spec"]
    if len(phases) == 1 or spec["cuda_graph"] == "step" or spec["timer"] == "do_bench":
        return (count,)
    shorter = {name: _count(made, spec, name) for name in ("forward", "forward+loss", "forward+backward")}
    ends = {
        "zero_grad": 0,
        **dict(zip(("forward", "loss", "backward"), shorter.values(), strict=True)),
        "optimizer": count,
    }
    return tuple(ends[phase] for phase in phases)


def _count(made: Bench, spec: dict[str, Any], pass_: str) -> int:
    """The work of a step of another pass of the same sweep."""
    others = [run for run in made.runs if run["spec"] == spec | {"pass": pass_}]
    (window, *_) = windows_of(made, others[0])
    return len(window.work) // (spec["measure_steps"] if spec["sync"] == "pipelined" else 1)


def steps_of(made: Bench, run: dict[str, Any]) -> Iterator[Step]:
    """The measured steps of a cell."""
    spec = run["spec"]
    found = windows_of(made, run)
    if spec["sync"] == "each-step" and spec["timer"] == "step":
        for window in found:
            yield Step(window, (0, *ends_of_phases(made, run, len(window.work))))
        return
    (window,) = found
    steps = len(run["step_times_s"])
    size = len(window.work) // steps
    first = 0
    if spec["timer"] == "do_bench":
        (first,) = (place + 1 for place, each in enumerate(window.work[:size]) if is_flush(each))
    elif spec["pass"] == "backward" and spec["cuda_graph"] == "off":
        first = _count(made, spec, "forward+loss")
    for begin in range(0, steps * size, size):
        ends = ends_of_phases(made, run, size)
        yield Step(window, (begin + first, *(begin + end for end in ends)))


def is_flush(work: Work) -> bool:
    return "FillFunctorIi" in work.name or work.name.startswith("Memset")


class Miss(NamedTuple):
    cell: str
    what: str
    told_ms: float
    truth_ms: tuple[float, float]


def words_of(run: dict[str, Any]) -> str:
    spec = run["spec"]
    return " ".join(
        str(spec[key]) for key in ("pass", "precision", "sync", "timer", "cuda_graph", "compile", "context_length")
    )


class Judge:
    """Collects what was told beyond truth's bounds, and how far apart these are."""

    def __init__(self) -> None:
        self.misses: list[Miss] = []
        self.widths: list[float] = []

    def look(
        self, run: dict[str, Any], what: str, told_s: Sequence[float], truth: Sequence[Bounds], share: float
    ) -> None:
        assert len(told_s) == len(truth)
        for told, bounds in zip(told_s, truth, strict=True):
            if bounds.miss_ns(told * 1e9) > share * bounds.high_ns + 1000:
                self.misses.append(Miss(words_of(run), what, told * 1e3, (bounds.low_ns / 1e6, bounds.high_ns / 1e6)))
        width, length = (median(each) for each in zip(*((b.high_ns - b.low_ns, b.high_ns) for b in truth), strict=True))
        if length > 1e6:
            self.widths.append(width / length)

    def cell(self, made: Bench, run: dict[str, Any]) -> None:
        """Look at the device's and the host's times of a cell."""
        steps, told = list(steps_of(made, run)), run["phase_times_s"]
        assert len(steps) == len(run["step_times_s"])
        if run["spec"]["sync"] == "each-step" and run["spec"]["timer"] == "step":
            self._each_step(run, steps)
        else:
            self.look(run, "step", run["step_times_s"], [step.whole() for step in steps], 0.001)
        for place, phase in enumerate(told):
            self.look(run, phase, told[phase], [step.phases()[place] for step in steps], 0.001)
        hosts = run["host_phase_times_s"] or {"host": run["host_times_s"]}
        of_host = [step.phases(of_host=True) for step in steps]
        if len(hosts) == 1:
            of_host = [step._replace(cuts=(step.cuts[0], step.cuts[-1])).phases(of_host=True) for step in steps]
        for place, phase in enumerate(hosts):
            for told_s, bounds in zip(hosts[phase], of_host, strict=True):
                if bounds[place].miss_ns(told_s * 1e9) > 1000:
                    truth = bounds[place].low_ns / 1e6, bounds[place].high_ns / 1e6
                    self.misses.append(Miss(words_of(run), f"host {phase}", told_s * 1e3, truth))

    def _each_step(self, run: dict[str, Any], steps: Sequence[Step]) -> None:
        """The median of the errors counts, for the machine may take the processor between the clock's readings."""
        errors, truths = [], []
        for step, told_s in zip(steps, run["step_times_s"], strict=True):
            window = step.window
            end_ns = max(each.end_ns for each in window.work)
            late_ns = window.returned_ns - end_ns if window.returned_ns else 0
            truths.append(end_ns - window.after_ns)
            errors.append(told_s * 1e9 - late_ns - truths[-1])
        if abs(median(errors)) > 30_000 + 0.002 * median(truths):
            self.misses.append(
                Miss(words_of(run), "step", median(run["step_times_s"]) * 1e3, (median(truths) / 1e6,) * 2)
            )


class Sweep(NamedTuple):
    cells: int
    words: str
    knobs: Mapping[str, object] = LONG


SWEEPS = {
    "eager": Sweep(36, f"--pass {PASSES} --precision fp32,bf16-mixed,tf32 {BOTH_TIMERS}", BY_NAME),
    "graphs": Sweep(16, f"--pass {CAPTURED} --cuda-graph step --precision fp32,bf16-mixed {BOTH_TIMERS}"),
    "pipelined": Sweep(12, f"--sync pipelined --pass {PASSES} --precision fp32,bf16-mixed", BY_NAME),
    "pipelined graphs": Sweep(4, f"--sync pipelined --cuda-graph step --pass {CAPTURED}"),
    "do_bench by time": Sweep(2, "--timer do_bench --warmup 25ms --steps 200ms --pass forward,train-step"),
    "two streams": Sweep(12, f"{TWO_STREAMS} --pass {PASSES} {BOTH_TIMERS}"),
    "compiled": Sweep(2, f"--num-layers 1 --pass forward --compile default {BOTH_TIMERS}", FEW_KERNELS),
    "sizes": Sweep(9, "--context 16,64,128 --pass inference,forward,backward", BY_SIZE),
}


@pytest.mark.parametrize("name", SWEEPS)
def test_every_time_is_the_devices(name: str, tmp_path: Path) -> None:
    cells, words, knobs = SWEEPS[name]
    made = bench(tmp_path, *TINY, *words.split(), **knobs)
    assert len(made.runs) == cells
    judge = Judge()
    for run in made.runs:
        judge.cell(made, run)
    assert judge.misses == []
    assert sum(width < 0.015 for width in judge.widths) >= 0.8 * len(judge.widths), judge.widths
