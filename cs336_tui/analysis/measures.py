"""The measures of results, each declared once: results tables, the screen, pivots, data and write-ups take from here
its name, its unit, how it is read and how several runs are pooled. The energy of a step is worked out here."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property
from operator import attrgetter
from statistics import fmean
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from cs336_tui.analysis.merge import Result, measured, pooled
from cs336_tui.config.flops import algbw, busbw
from cs336_tui.config.spec import CellSpec
from cs336_tui.events.reports import MemoryReport
from cs336_tui.session.state import ActivationPeak
from cs336_tui.session.states import CellState
from cs336_tui.stats.quantities import UNKNOWN, bandwidth, count, gigabytes, percent
from cs336_tui.stats.summaries import Summary, skews, summarize

if TYPE_CHECKING:
    from cs336_tui.analysis.roofline import PeakLookup, RooflinePoint


LEAST_S = 1.0
"""Seconds between the readings, at least: the driver moves the counter on in steps, and taking these for as long as
100 ms, a second bounds the error by 10 %."""


class Energy(msgspec.Struct, frozen=True, kw_only=True):
    """Energy of one measured step; all None where it is unknown, and `why` then says why."""

    joules_per_step: float | None = None
    tokens_per_joule: float | None = None
    why: str = ""


def energy_of(cell: CellState) -> Energy:
    """Joules of a mean step, from NVML's energy counter (``nvmlDeviceGetTotalEnergyConsumption``): the mean power
    between its first and its last reading while the cell measured, times the mean step time. It is of the whole GPU,
    of several ranks of all their GPUs, with memory, idle draw, other processes, and pauses between steps; without the
    host."""
    step_s = cell.running.mean if cell.running.n else 0.0
    if not step_s:
        return Energy(why="no step was measured")
    if why := _unknown(cell):
        return Energy(why=why)
    counted = cell.surroundings.energy
    assert counted is not None
    joules, seconds = counted
    per_step, tokens = joules / seconds * step_s, cell.spec.tokens_per_step * cell.spec.ranks
    return Energy(joules_per_step=per_step, tokens_per_joule=tokens / per_step if per_step and tokens else None)


def _unknown(cell: CellState) -> str:
    """Why the window does not tell its power; empty when it does."""
    around, device = cell.surroundings, cell.spec.device
    if not device.startswith("cuda"):
        return f"energy is read from NVIDIA's counter; not observable on {device}"
    if cell.in_turns:
        return "another cell ran in turns with it, and the counter cannot tell the two apart"
    if not around.samples:
        return "no device sample while measuring"
    if not around.energies:
        return around.why or "this GPU or driver has no energy counter"
    if around.energy is None:
        return "the energy counter was read once while measuring, or was reset; two readings are needed"
    joules, apart_s = around.energy
    if apart_s < LEAST_S:
        return f"the readings of the energy counter are {apart_s:.1f} s apart; {LEAST_S:.0f} s or more is needed"
    return "" if joules else "the energy counter did not change"


QUANTILES = ("p20", "p80")
"""Quantiles of the step times, beside the median, as `triton.testing.do_bench` gives them."""


class Runs:
    """The runs of one cell, of which measures are read. Those without timings do not count; one that is `alone` does,
    with what it had before it ended. `peaks` finds what was measured of its device."""

    def __init__(self, runs: Sequence[Result], ddof: int, *, alone: bool = False, peaks: PeakLookup | None = None):
        self.runs, self.ddof, self.alone = runs, ddof, alone
        self._peaks = peaks or (lambda _: None)

    @classmethod
    def of(cls, result: Result, peaks: PeakLookup | None = None) -> Runs:
        """A single run, whatever it came to."""
        return cls((result,), result.state.ddof, alone=True, peaks=peaks)

    def only(self, keep: Callable[[Result], bool]) -> Runs | None:
        """Those of them that `keep` is true of; None where there are none."""
        kept = [run for run in self.runs if keep(run)]
        return Runs(kept, self.ddof, alone=self.alone, peaks=self._peaks) if kept else None

    @property
    def first(self) -> Result:
        return self.runs[0]

    @property
    def spec(self) -> CellSpec:
        return self.first.spec

    @cached_property
    def counted(self) -> Sequence[Result]:
        return self.runs if self.alone else measured(self.runs)

    @property
    def cells(self) -> Iterable[CellState]:
        """Those of the runs that count."""
        return (run.cell for run in self.counted)

    @cached_property
    def summary(self) -> Summary | None:
        """Over the steps of all; None without a measured step."""
        return self.first.cell.full_summary(self.ddof) if self.alone else pooled(self.runs, self.ddof)

    @property
    def mean_s(self) -> float | None:
        """The mean step time, of a run that is not over so far; None if there is none, or no time passed."""
        if self.alone:
            return self.first.cell.running.mean or None
        return (self.summary and self.summary.mean_s) or None

    @property
    def times_s(self) -> tuple[float, ...]:
        """The measured steps of all."""
        return tuple(time_s for run in self.counted for time_s in run.cell.step_times_s)

    @property
    def skew(self) -> Summary | None:
        """Of several ranks: over the measured steps, the time on the slowest rank less that on the fastest. Of a single
        run mean and std alone."""
        if self.alone:
            return self.first.cell.skew.summary(self.ddof)
        times_s = [skew for run in self.counted for skew in skews(run.cell.times.rank_s)]
        return summarize(times_s, self.ddof) if times_s else None

    def phase_times_s(self, phase: str) -> tuple[float, ...]:
        """A phase's times in the measured steps of all, as far as they are known."""
        return tuple(time_s for run in self.counted for time_s in run.cell.phase_times_s.get(phase, ()))

    def phase(self, phase: str) -> Summary | None:
        """Over a phase's times; None where they are not known."""
        times_s = self.phase_times_s(phase)
        return summarize(times_s, self.ddof) if times_s else None

    @cached_property
    def points(self) -> Sequence[RooflinePoint]:
        """Each run under the ceilings of its device, where its work is known."""
        from cs336_tui.analysis.roofline import point_of

        return [point for run in self.counted if (point := point_of(run, self._peaks))]

    @property
    def point(self) -> RooflinePoint | None:
        """The first of them."""
        return self.points[0] if self.points else None

    @cached_property
    def activations(self) -> ActivationPeak | None:
        """The largest activation peak, and how it is known."""
        known = (run.state.activation_peak_of(run.spec) for run in self.counted)
        return max(filter(None, known), default=None)


def largest(numbers: Iterable[int | None]) -> int | None:
    """The largest of those that are known; None where none is. 0 is a number."""
    return max((number for number in numbers if number is not None), default=None)


def mean_of(numbers: Iterable[float | None]) -> float | None:
    """The mean of those that are known; None where none is."""
    known = [number for number in numbers if number is not None]
    return fmean(known) if known else None


def allocated_bytes(cell: CellState) -> int | None:
    """The peak that the device's allocator counted; None where it counts none, and before the cell's end."""
    return cell.finished.peak_allocated_bytes if cell.finished else None


def resident_bytes(cell: CellState) -> int | None:
    """The peak of resident memory of the whole process, where tensors are in it: not on a GPU with memory of its own,
    nor where an allocator counts the device's."""
    if cell.finished is None or allocated_bytes(cell) is not None or cell.spec.device.startswith("cuda"):
        return None
    return cell.finished.peak_rss_bytes


def peak_bytes(cell: CellState) -> int | None:
    """The peak of a cell: allocated as the device counts it, else what its process held."""
    allocated = allocated_bytes(cell)
    return resident_bytes(cell) if allocated is None else allocated


def tensor_bytes(result: Result) -> int | None:
    """The peak of a cell's tensors: allocated as the device counts it, else the memory report's; None where neither is
    known."""
    allocated = allocated_bytes(result.cell)
    if allocated is not None:
        return allocated
    report = result.state.content_of(MemoryReport, result.spec)
    return report.peak_bytes if report else None


def _predicted_bytes(result: Result) -> int | None:
    """The predicted peak of a cell's tensors, where they are in the host's memory and nothing counts them."""
    prediction = result.state.prediction_of(result.spec)
    return prediction.peak_bytes if prediction and resident_bytes(result.cell) is not None else None


class Quantity(NamedTuple):
    """A kind of number: the name of its unit in headings, a number in base units as text, and `per` base units."""

    unit: str
    show: Callable[[Any], str]
    per: float = 1.0

    def text(self, value: float | None) -> str:
        """The number without its unit, ``n/a`` for None."""
        return UNKNOWN if value is None else self.show(value)


TIME = Quantity("{unit}", "{:.6g}".format)
"""Step times, which a table shows in its own unit, to the decimal place that their std supports."""
FLOP_RATE = Quantity("{rate}", "{:.4g}".format)
"""FLOP/s, which a table shows in one unit for all."""
SIZE = Quantity("GB", gigabytes, 1e9)
BANDWIDTH = Quantity("GB/s", bandwidth, 1e9)
SECONDS = Quantity("s", "{:.1f}".format)
JOULES = Quantity("J/step", "{:.3g}".format)
SHARE = Quantity("", percent, 0.01)
NUMBER = Quantity("", str)
RATE = Quantity("", count)
"""A number a second or a joule, whose unit its title names."""


class Measure(NamedTuple):
    """A number that runs come to, in base units: seconds, bytes, tokens/s."""

    key: str
    """The name that ``--columns`` and ``--value`` take."""
    data: str
    """Its key in JSON and CSV."""
    title: str
    quantity: Quantity
    read: Callable[[Runs], float | None]
    """The number of one run or of several pooled; None where it is not known."""
    short: str = ""
    """The title in a table's heading, if that is another one."""
    summary: Callable[[Runs], Summary | None] | None = None
    """Of a time: the summary that it is a field of, whose std says how many of its digits count."""
    pivoted: bool = False
    """True for a value of pivots."""
    recorded: bool = True
    """True if a session's JSON and CSV have it for each cell under its key, beside the cell's summary."""
    missing: str = ""
    """The reason, in a few words, why a measured cell has none."""
    substitutes: Mapping[str, Callable[[Runs], float | None]] = {}
    """The readings, by title, of which the first that is known takes its place."""
    remark: Callable[[Runs], str] | None = None
    """The remark that belongs to a number, such as how it is known."""
    note: str = ""
    """Its definition, which stands below a table that has it."""

    @property
    def name(self) -> str:
        return self.short or self.title

    @property
    def heading(self) -> str:
        """The name with the unit."""
        return f"{self.name} ({self.quantity.unit})" if self.quantity.unit else self.name

    def figure(self, runs: Runs) -> tuple[float | None, str]:
        """The number of the runs, or of the measure in its place, and what must be said of it, if anything."""
        number = self.read(runs)
        if number is not None:
            return number, self.remark(runs) if self.remark else ""
        others = ((read(runs), title) for title, read in self.substitutes.items())
        return next((other for other in others if other[0] is not None), (None, ""))


def tokens_per_s(spec: CellSpec, step_s: float) -> float | None:
    """Tokens of one step of all ranks over its time; None of a collective, and of no time."""
    return (spec.tokens_per_step * spec.ranks / step_s or None) if step_s else None


def _of_mean(rate: Callable[[CellSpec, float], float | None]) -> Callable[[Runs], float | None]:
    """Reads a rate over the mean step time of all runs."""
    return lambda runs: rate(runs.spec, runs.mean_s) if runs.mean_s else None


def _of_collective(rate: Callable[[CellSpec, float], float]) -> Callable[[Runs], float | None]:
    return _of_mean(lambda spec, step_s: rate(spec, step_s) if spec.is_collective else None)


def _of_end(attribute: str) -> Callable[[Runs], float | None]:
    """Reads the largest of any run's end."""
    return lambda runs: largest(getattr(cell.finished, attribute, None) for cell in runs.cells)


def _mean(read: Callable[[CellState], float | None]) -> Callable[[Runs], float | None]:
    """Reads the mean of the runs."""
    return lambda runs: mean_of(map(read, runs.cells))


def _of_points(attribute: str) -> Callable[[Runs], float | None]:
    """Reads the mean of the runs under the ceilings of their device."""
    return lambda runs: mean_of(getattr(point, attribute) for point in runs.points)


def _field(summary: Callable[[Runs], Summary | None], field: str) -> Callable[[Runs], float | None]:
    """Reads a field of a summary over all runs."""
    return lambda runs: getattr(found, field) if (found := summary(runs)) else None


_SUMMARY, _SKEW = attrgetter("summary"), attrgetter("skew")


def _statistic(word: str, title: str = "", *, pivoted: bool = False, missing: str = "") -> Measure:
    """A field of the summary over the steps of all runs."""
    key, title, summary = f"{word}_s", title or word, _SUMMARY
    return Measure(
        word, key, title, TIME, _field(summary, key), word, summary, pivoted, recorded=False, missing=missing
    )


_ACTIVATIONS_NOTE = (
    "activation peak: the most activations and temporary memory at once in forward, loss and backward, apart from "
    "parameters, gradients, optimizer state, buffers and workspaces"
)
_BANDWIDTH_NOTE = (
    "algbw: bytes of the whole array over the mean time of the slowest rank; busbw: that times 2(n-1)/n of all-reduce, "
    "(n-1)/n of all-gather, reduce-scatter and all-to-all, 1 of broadcast, for n ranks; MB is 10⁶ bytes, MiB 2²⁰"
)
_FLOPS_NOTE = "achieved: FLOPs of the matrix products (2 m n k) of the timed phases over the mean measured step time"
_ENERGY_NOTE = (
    "energy: mean power while the steps were measured (by the GPU's counter, pauses included) times the mean step time"
)
_ALL = (
    Measure("n", "n", "n", NUMBER, lambda runs: runs.summary.n if runs.summary else 0, recorded=False),
    _statistic("mean", "mean step time", pivoted=True),
    _statistic("std", "std of step times", pivoted=True, missing="one step"),
    _statistic("median", "median step time", pivoted=True),
    *map(_statistic, ("min", "max", "p95", *QUANTILES)),
    Measure("memory", "peak_allocated_bytes", "peak allocated", SIZE, _of_end("peak_allocated_bytes"), pivoted=True,
            missing="not counted", note="1 GB is 10⁹ bytes; peak allocated is counted after warm-up",
            substitutes={
                "peak of tensors, recorded": lambda runs: largest(map(tensor_bytes, runs.counted)),
                "peak of tensors, predicted": lambda runs: largest(map(_predicted_bytes, runs.counted)),
                "peak RSS of the whole process": lambda runs: largest(map(resident_bytes, runs.cells)),
            }),
    Measure("tokens", "tokens_per_s", "tokens/s", RATE, _of_mean(tokens_per_s), pivoted=True, missing="no tokens",
            note="tokens/s: tokens of one step over the mean step time"),
    Measure("skew", "skew_s", "skew", TIME, _field(_SKEW, "mean_s"), summary=_SKEW, recorded=False),
    Measure("reserved", "peak_reserved_bytes", "peak reserved", SIZE, _of_end("peak_reserved_bytes")),
    Measure("rss", "peak_rss_bytes", "peak RSS", SIZE, _of_end("peak_rss_bytes")),
    Measure("activations", "activation_peak_bytes", "activation peak", SIZE,
            lambda runs: runs.activations.bytes if runs.activations else None, pivoted=True, missing="not known",
            remark=lambda runs: runs.activations.basis if runs.activations else "", note=_ACTIVATIONS_NOTE),
    Measure("algbw", "algbw_bytes_per_s", "algbw", BANDWIDTH, _of_collective(algbw), note=_BANDWIDTH_NOTE),
    Measure("busbw", "busbw_bytes_per_s", "busbw", BANDWIDTH, _of_collective(busbw), note=_BANDWIDTH_NOTE),
    Measure("flops", "flops_per_s", "achieved", FLOP_RATE, _of_points("flops_per_s"), note=_FLOPS_NOTE),
    Measure("sheet", "share_of_sheet_peak", "% of data sheet", SHARE, _of_points("share_of_sheet")),
    Measure("peak", "share_of_measured_peak", "% of measured peak", SHARE, _of_points("share_of_measured")),
    Measure("energy", "joules_per_step", "energy", JOULES, _mean(lambda cell: energy_of(cell).joules_per_step),
            note=_ENERGY_NOTE),
    Measure("tokens_per_joule", "tokens_per_joule", "tokens/J", RATE,
            _mean(lambda cell: energy_of(cell).tokens_per_joule), note=_ENERGY_NOTE),
    Measure("compile_time", "compile_s", "compile", SECONDS,
            _mean(lambda cell: cell.prepared.compile_s if cell.prepared else None)),
    Measure("first_step", "until_first_step_s", "until first step", SECONDS,
            _mean(lambda cell: cell.until_first_step_s)),
    Measure("whole", "whole_run_s", "whole run", SECONDS, _mean(lambda cell: cell.whole_run_s)),
)  # fmt: skip
MEASURES: dict[str, Measure] = {measure.key: measure for measure in _ALL}
"""Every measure by its key. Of several runs, times and rates are over the steps of all, sizes are the largest, all else
is the mean."""
