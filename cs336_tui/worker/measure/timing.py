"""Times steps, in seconds: each between two synchronisations, or a window of steps between two. A GPU works off a
queue: a time stamp there is an event in it, to be read once the device has been waited for.

The stopping rule of automatic counts ends warm-up and measurement by the step times so far. A look costs milliseconds,
in which a GPU's clocks and a CPU's caches may change. So looks lie between steps, at counts that grow by a quarter, and
`AFTER_LOOK` warm-up steps follow the last one.

Stopping at a narrow interval favours moments of small noise. Simulated with normal noise of 0.5, 1 and 2 % (500 series
each, share 1 %; `test_stopping_rule.py` repeats some), the 95 % interval at the stop holds the true mean in 95 % if
steps are independent (as with a fixed count), in 91 to 96 % if neighbours correlate by 0.5 (fixed: 94 to 96 %), and in
89 to 95 % if by 0.8 (fixed: 93 to 96 %). With rare spikes it does so only if one was seen (`benchmarks/series.py`):
`why_stopped` says how rare they must be to be missed, and the interval of the median, which holds with them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import accumulate, pairwise
from math import fsum, isfinite, sqrt
from statistics import fmean, median, pstdev
from time import perf_counter
from typing import Any, NamedTuple, Protocol, Self

import torch
from torch import Tensor
from torch.cuda import Event, current_stream, synchronize  # a user's code may replace them, as any clock

from cs336_tui.config.counts import FEWEST, duration_words
from cs336_tui.stats.intervals import mean_interval, median_interval, t_interval
from cs336_tui.stats.quantities import TOO_NOISY, counted, is_too_noisy, two_digit_percent
from cs336_tui.stats.ratio import MARGIN
from cs336_tui.stats.steady import FEWEST as FEWEST_TO_TELL
from cs336_tui.stats.steady import Class, classify
from cs336_tui.worker.workload.compile_and_capture import ReadyStep, run_whole

_SOME = 256
"""Logits of a step that are kept."""


class DeviceEvent(Protocol):
    """`torch.cuda.Event` or `torch.mps.Event`, made with ``enable_timing=True``."""

    def elapsed_time(self, end_event: DeviceEvent, /) -> float:
        """Milliseconds on the device from this event to a later one."""


class HostStamp:
    """A time stamp that can be taken repeatedly; `host_s` is the host's clock at the last time."""

    host_s = 0.0

    def take(self) -> None:
        self.host_s = perf_counter()

    def until(self, later: Self, /) -> float:
        """Seconds from this stamp to a later one; both were taken and the device was waited for since."""
        return later.host_s - self.host_s


class EventStamp(HostStamp):
    """An event in the device's queue. Taking it only enqueues it; `host_s` is when the host did."""

    def __init__(self, event: DeviceEvent, record: Callable[[], None]) -> None:
        self._event = event
        self._record = record

    def take(self) -> None:
        self._record()
        self.host_s = perf_counter()

    def until(self, later: Self, /) -> float:
        return self._event.elapsed_time(later._event) / 1e3


class MetalStamp(EventStamp):
    """An event in Metal's queue. As the later of two it may be read once per taking: torch before 2.14 hangs else.
    torch stamps it on the host, perhaps two in the wrong order; it then raises, and the interval counts as 0."""

    def until(self, later: Self, /) -> float:
        try:
            return super().until(later)
        except RuntimeError:
            return 0.0


Flush = Callable[[], object]
"""Empties the device's cache of what the next step reads; enqueues work only."""
_MIB = 2**20
_LEAST_FLUSH_BYTES = 256 * _MIB  # As in `triton.testing.do_bench`


class L2Flush:
    """Zeroes a buffer that is larger than the L2 of a CUDA device: triton's 256 MiB, or twice the L2 if that is more.
    The buffer is in torch's allocator, whole blocks of 2 MiB, so that peaks can do without it."""

    def __init__(self, device: torch.device) -> None:
        self.l2_bytes = int(torch.cuda.get_device_properties(device).L2_cache_size)
        self.bytes = max(_LEAST_FLUSH_BYTES, -(-2 * self.l2_bytes // (2 * _MIB)) * 2 * _MIB)
        self._buffer = torch.empty(self.bytes // 4, dtype=torch.int32, device=device)

    def __call__(self) -> None:
        self._buffer.zero_()

    @property
    def words(self) -> str:
        """The flush among the settings in force."""
        buffer, l2 = (f"{size / _MIB:.4g} MiB" for size in (self.bytes, self.l2_bytes))
        return f"{buffer} zeroed before each measured step (the L2 has {l2}), outside of its time and of the peaks"


class Clock(NamedTuple):
    """One device's clock: `mark` makes a stamp, `synchronize` waits for all queued work."""

    mark: Callable[[], HostStamp]
    synchronize: Callable[[], None]


def clock_for(device: torch.device) -> Clock:
    if device.type == "cuda":
        mark = partial(_event_stamp, EventStamp, Event, current_stream(device))
        return Clock(mark, partial(synchronize, device))
    if device.type == "mps":
        return Clock(partial(_event_stamp, MetalStamp, torch.mps.Event), torch.mps.synchronize)
    return Clock(HostStamp, lambda: None)  # a CPU's work is done when its call returns


def _event_stamp(kind: type[EventStamp], make: Callable[..., Any], *stream: object) -> EventStamp:
    event = make(enable_timing=True)
    return kind(event, partial(event.record, *stream))


class StepTime(NamedTuple):
    """Seconds of a step: total, device time of each phase, host time to enqueue each phase; of a step that was timed as
    a whole both of that."""

    total_s: float
    phases_s: tuple[float, ...]
    host_phases_s: tuple[float, ...]

    @property
    def host_s(self) -> float:
        """Host time to enqueue the step."""
        return fsum(self.host_phases_s)


class WindowBroken(Exception):
    """A step of a window failed with `error`; `times` are those of the steps before it."""

    def __init__(self, times: list[StepTime], error: Exception) -> None:
        super().__init__(f"the step after {len(times)} of the window failed")
        self.times = times
        self.error = error


def some_logits(logits: Tensor | None) -> Tensor | None:
    """The last of the first sequence, on the host."""
    return None if logits is None else logits.detach()[0].reshape(-1)[-_SOME:].to("cpu", copy=True).float()


class StepTimer:
    """Times single steps by the host's clock, from one idle device to the next. Neighbours share a boundary. `refresh`,
    which may change the batch, is called before each step, then `flush`, then `barrier`, which waits for other ranks;
    all outside of its time. `between_s` is the workload's own time outside of the steps, of each since it was emptied:
    before the step and after it."""

    def __init__(
        self,
        step: ReadyStep,
        clock: Clock,
        flush: Flush | None = None,
        barrier: Callable[[], object] | None = None,
        refresh: Callable[[], object] | None = None,
    ) -> None:
        self._step = step
        self._clock = clock
        self._flush = flush or _nothing
        self._barrier = barrier or _nothing
        self._refresh = refresh or _nothing
        self._marks = [clock.mark() for _ in range(len(step.phases) + 1)]
        self.between_s: list[float] = []
        self.last: Tensor | None = None
        """Some logits of the last step, if the timer `keeps_logits`: the last of the first sequence."""
        self.keeps_logits = False
        self.losses: list[float | None] = []
        """Of each step, where it has one."""

    @property
    def has_work_between(self) -> bool:
        """True if work that is not timed belongs between two steps."""
        return self._step.prepares or self._flush is not _nothing

    def time(self, *, keep: bool = False) -> StepTime:
        """Time a step. With `keep` it has the tokens of the step before, and its results are left for `Step.clear`."""
        step, first, after = self._step, self._marks[0], self._marks[1:]
        if not keep:
            self._refresh()
        began = perf_counter()
        step.prepare()
        self._flush()
        self._clock.synchronize()
        before_s = 0.0 if self.has_work_between else perf_counter() - began
        self._barrier()
        first.take()  # its `host_s`, after it, begins the step
        for phase, mark in zip(step.phases, after, strict=True):
            step.run(phase)
            mark.take()
        self._clock.synchronize()
        total = perf_counter() - first.host_s
        timed = StepTime(total, _between(self._marks), _host(self._marks))
        if keep:
            return timed
        ended = perf_counter()
        if self.keeps_logits:
            self.last = some_logits(step.results.logits)
        loss = step.results.loss
        if loss is not None and loss.numel() == 1:
            value = float(loss.detach())
            self.losses.append(value if isfinite(value) else None)
        step.clear()
        self.between_s.append(before_s + perf_counter() - ended)
        return timed


class WindowTiming(NamedTuple):
    """The timing of a window of steps. `flush` is called before each step, outside of its time. `whole` steps have time
    stamps round them and none between their phases, whose times are then unknown unless there is one only. `barrier`
    waits for other ranks before the first."""

    flush: Flush | None = None
    whole: bool = False
    barrier: Callable[[], object] | None = None


PLAIN = WindowTiming()


def time_window(
    step: ReadyStep, clock: Clock, count: int, go_on: Callable[[int], bool], how: WindowTiming = PLAIN
) -> list[StepTime]:
    """Times of up to `count` steps enqueued back to back, with one synchronisation before and one after.

    A step lasts from its first boundary to its last on the device's clock; a train-step begins where the step before
    ended, so the times add up to the window, unless a flush lies between or steps are timed whole. Dropping gradients
    and `backward`'s forward and loss do not count. `go_on` is asked before each step, by its number; at the first False
    the steps so far are returned. Raises `WindowBroken` with them if a step fails and the device still answers.
    """
    flush, back_to_back = how.flush or _nothing, step.back_to_back and how == PLAIN
    rows: list[list[HostStamp]] = []
    for _ in range(count):
        first = rows[-1][-1] if rows and back_to_back else clock.mark()
        rows.append([first, *(clock.mark() for _ in range(1 if how.whole else len(step.phases)))])
    done = 0
    clock.synchronize()
    (how.barrier or _nothing)()
    try:
        for marks in rows:
            if not go_on(done):
                break
            step.prepare()
            flush()
            if not (done and back_to_back):
                marks[0].take()
            if how.whole:
                run_whole(step)
                marks[-1].take()
            else:
                for phase, mark in zip(step.phases, marks[1:], strict=True):
                    step.run(phase)
                    mark.take()
            step.clear()
            done += 1
    except Exception as error:
        try:
            clock.synchronize()
        except RuntimeError:
            raise error from None
        raise WindowBroken(_times(rows[:done]), error) from None
    clock.synchronize()
    return _times(rows[:done])


ESTIMATING_RUNS = 5


class StepEstimate(NamedTuple):
    """Seconds of a step with its flush, and of the first run, which may compile what the model compiles itself."""

    step_s: float
    first_s: float


def estimate_step(step: ReadyStep, clock: Clock, flush: Flush | None) -> StepEstimate:
    """A step's time by `ESTIMATING_RUNS` in a row after a first one, as `triton.testing.do_bench` estimates it before
    it warms up. Waits for the device; the runs are not reported."""
    began, first_s = perf_counter(), 0.0
    rows = [(clock.mark(), clock.mark()) for _ in range(ESTIMATING_RUNS)]
    for number, (first, last) in enumerate([(HostStamp(), HostStamp()), *rows]):
        step.prepare()
        first.take()
        if number and flush is not None:
            flush()
        run_whole(step)
        last.take()
        step.clear()
        if not number:
            clock.synchronize()
            first_s = perf_counter() - began
    clock.synchronize()
    return StepEstimate(fsum(first.until(last) for first, last in rows) / ESTIMATING_RUNS, first_s)


def _nothing() -> None:
    pass


def _times(rows: list[list[HostStamp]]) -> list[StepTime]:
    return [StepTime(fsum(phases := _between(marks)), phases, _host(marks)) for marks in rows]


def _between(marks: list[HostStamp]) -> tuple[float, ...]:
    """Device time of each phase. Asks for no interval twice, which not every device's events allow."""
    return tuple(earlier.until(later) for earlier, later in pairwise(marks))


def _host(marks: list[HostStamp]) -> tuple[float, ...]:
    return tuple(later.host_s - earlier.host_s for earlier, later in pairwise(marks))


AFTER_LOOK = 2  # Warm-up steps after the last look, so that its pause does not affect the first measured step
LEAST_S = 0.5  # Minimum sum of measured steps for an automatic count to end
FEWEST_FOR_NOISE = 50
_GOING: frozenset[Class] = frozenset(("warm-up", "slowdown", "drift", "bimodal", "periodic"))
SETTLED = 0.05  # Largest relative variation of settled noise


def warmup_looks(most: int) -> Iterator[int]:
    """Counts of warm-up steps at which to look: 10, 15, 20, 30, 40, 50, 62, ..., `most`."""
    return _looks(FEWEST["warmup_steps"], most, lambda count: max(5 if count < 20 else 10, count // 4))


def why_not_warm(times_s: Sequence[float]) -> str:
    """The reason for which the last of these warm-up steps are not steady; empty if they are: the detector
    (`stats.steady`) finds no drift, and the mean stays within 1 % of its last value for the last 10 steps or more.
    It sees steep changes only, so the median of their first half must not be 1 % above the second's either."""
    found = classify(times_s)
    if "too-few" in found.classes:
        return "too few steps to tell whether they are steady"
    if found.warmup_steps is None:
        return "still falling"
    if found.steady_after is None:
        return "still not steady"
    steady = times_s[found.steady_after :]
    half = len(steady) // 2
    if len(steady) < FEWEST_TO_TELL or median(steady[:half]) >= median(steady[half:]) * (1 + MARGIN):
        return "still falling"
    return ""


def step_looks(most: int) -> Iterator[int]:
    """Counts of measured steps at which to look: from 20, each time a quarter more, to `most`."""
    return _looks(FEWEST["measure_steps"], most, lambda count: count // 4)


def _looks(count: int, most: int, more: Callable[[int], int]) -> Iterator[int]:
    while count < most:
        yield count
        count += more(count)
    yield most


def enough_measured(times_s: Sequence[float], share: float) -> bool:
    """True after at least 20 steps and 0.5 s if the whole 95 % interval of the mean is narrower than `share` of it
    (`is_narrow`), or if, from 50 steps on, the noise has settled (`noise_has_settled`) and the steps neither warm up,
    slow down, drift, oscillate nor switch between two levels."""
    if len(times_s) < FEWEST["measure_steps"] or fsum(times_s) < LEAST_S:
        return False
    return is_narrow(times_s, share) or (noise_has_settled(times_s) and not _GOING & {*classify(times_s).classes})


def why_stopped(times_s: Sequence[float], share: float) -> str:
    """The reason for which no more steps were measured, in words."""
    known, stopped = _known(times_s), f"stopped after {len(times_s)} steps"
    missed = "" if is_narrow(times_s, share) else f", not at the ± {two_digit_percent(share / 2)} asked for"
    if not enough_measured(times_s, share):
        return f"{stopped}{missed}, the limit{': ' if known else ''}{known}"
    return f"{stopped}{missed}: {known}{', and its noise no longer changes' if missed else ''}"


def steps_left(times_s: Sequence[float], most: int, for_s: float, *, at_once: bool = False) -> int:
    """Steps to run before the next look, until these come to `for_s` seconds or there are `most`; 0 at the end. One by
    one, or with `at_once` half of those that are still needed at their mean."""
    left_s = for_s - fsum(times_s)
    if times_s and (left_s <= 0 or len(times_s) >= most):
        return 0
    needed = left_s / fmean(times_s) if times_s and at_once else 1
    return max(1, min(int(needed / 2), most - len(times_s)))


def why_short(kind: str, most: int, sum_s: float, for_s: float) -> str:
    """The remark on a count that ended before its time."""
    taken = f"{counted(most, f'{kind} step')}, the limit, took {sum_s:.3g} s"
    return f"{taken} of {duration_words(for_s)}; raise the most with {duration_words(for_s)}:MAX"


def is_narrow(times_s: Sequence[float], share: float) -> bool:
    """True if the whole interval of the mean is narrower than `share` of it: of `intervals.mean_interval`, which is
    computed only if the quick `intervals.t_interval` is narrow enough."""
    return all(
        interval is not None and 2 * interval.half_share < share
        for interval in (estimate(times_s) for estimate in (t_interval, mean_interval))
    )


def noise_has_settled(times_s: Sequence[float]) -> bool:
    """True if the noise of at least 50 steps is known, after NVBench's criterion (`stdrel_criterion.cxx`): the running
    std over mean has, over the last half of the steps, a standard deviation of at most 5 % of its mean."""
    if len(times_s) < FEWEST_FOR_NOISE:
        return False
    noise = _running_noise(times_s)[-(len(times_s) // 2) :]
    return pstdev(noise) <= SETTLED * fmean(noise)


def _running_noise(times_s: Sequence[float]) -> list[float]:
    """The std (n - 1) over the mean of the steps so far, after each step from the second on."""
    first = times_s[0]  # moments about it lose no digits if steps are alike
    sums = accumulate(time_s - first for time_s in times_s)
    squares = accumulate((time_s - first) ** 2 for time_s in times_s)
    noise = []
    for n, (total, square) in enumerate(zip(sums, squares, strict=True), 1):
        if n > 1:
            variance = max(square - total**2 / n, 0.0) / (n - 1)
            noise.append(sqrt(variance) / (first + total / n))
    return noise


def _known(times_s: Sequence[float]) -> str:
    """The 95 % intervals of mean and median, in words; empty if steps are too few. Spikes of which n steps show none
    may be as frequent as 1 in n/3: so many are missed in 5 % (the rule of three, Hanley and Lippman-Hand 1983)."""
    mean, middle = mean_interval(times_s), median_interval(times_s)
    if mean is None or middle is None:
        return ""
    level = f"({mean.level * 100:g} %)"
    if any(is_too_noisy(found.low, found.high) for found in (mean, middle)):
        return f"{TOO_NOISY} to tell the mean {level}"
    of_mean = f"{two_digit_percent(mean.half_share)} but for spikes rarer than 1 in {len(times_s) // 3} steps"
    return f"the mean is known to ± {of_mean}, the median to ± {two_digit_percent(middle.half_share)} with them {level}"
