"""Classifies a cell's step times: warm-up, slowdown, drift, two modes, waves, coarse clocks, outliers, or flat.

The names follow Barrett et al. 2017, "Virtual machine warmup blows hot and cold". As there, spikes are limited before
changepoints are sought (winsorised): a time further than 3.5 robust standard deviations (1.4826 × the median absolute
deviation) from the running median of 7 is moved to that distance (Hampel's filter; Davies and Gather 1993). Outliers
are sought among the times as they are.

`course` separates changes from autocorrelated noise; `patterns` finds modes, waves and levels. A change is reported
from 1 % of the step time on, if noise does not explain it. Simulated, 1 in 100 flat series of 100 steps is classified
as something else; of 30 steps, 4 in 100 if neighbours correlate by 0.5, and 12 in 100 by 0.8
(`benchmarks/steady_state.py`).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from functools import partial
from statistics import median
from typing import Literal, NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt

from cs336_tui.stats.course import SHORTEST, Series, course
from cs336_tui.stats.patterns import Modes, clock_tick, find_levels, find_wave, in_turns, teeth, two_modes
from cs336_tui.stats.quantities import change_percent, counted, time_text
from cs336_tui.stats.ratio import MARGIN

Class = Literal["flat", "warm-up", "slowdown", "drift", "bimodal", "periodic", "quantised", "outliers", "too-few"]

FEWEST = 10
"""The fewest steps that are classified."""
WINDOW = 7
LIMIT = 3.5
OUTLYING, LEAST_OUTLYING = 5.0, 0.05
"""An outlier is this many robust standard deviations off, and this share of the step time."""
MOST_OUTLYING = 0.2
"""The largest share of steps that are outliers; more belong to the pattern."""
COLD = 0.05
"""Leading steps that are outlying and slower by this share are cold; they are left out of every fit. A level that moves
by less as measuring begins may be the rest of a warm-up."""
LEAST_GAP = 2 * MARGIN
"""The least distance of modes, as a share of the step time."""
BEYOND_TICKS = 1.5
"""Two neighbouring readings of a coarse clock are not two levels."""
CLEARER = 1.1
"""Factor by which the residual standard deviation of a wave must be below that of two levels."""
ALTERNATING = 4
"""Rises and falls from which on a level alternates between two."""
FOLLOWING = 3
"""Slow steps within this many after the warm-up belong to it."""
FEWEST_AT_SEAM, SEAM = 3, 20
"""Warm-up steps before the first measured step, and steps from it on, that are compared with one another."""
LEAST_LEVEL = 1e-3
_TENFOLD = 9.0
"""From this share on a change is told as a factor."""
_SEED = 336
_MAD_TO_STD = 1.4826


class Finding(msgspec.Struct, frozen=True):
    """One class that holds, with its evidence. `after` is the number of steps before it, None if it is everywhere.
    `share` is its size as a share of the step time: for `flat` the standard deviation, for `drift` the change from the
    first step to the last (negative: faster), for `bimodal` the gap of the modes, else the largest excess."""

    name: Class
    after: int | None
    share: float
    text: str


class Steadiness(msgspec.Struct, frozen=True, kw_only=True):
    """The findings on a series of step times."""

    n: int
    findings: tuple[Finding, ...]
    steady_after: int | None
    """Steps after which the mean stays within 1 % of its end; None if it drifts, alternates between two levels, or
    changed in the last 4 steps."""
    warmup_steps: int | None
    """Number of first steps that are warm-up; None if it goes on or steps are too few."""
    noise: float | None
    """Standard deviation around the mean's course, as a share of the step time, with spikes limited."""
    correlation: float | None
    """Of neighbouring steps' noise, to the nearest tenth."""
    limited: int
    """Number of times that were limited, for this analysis only."""
    hidden: float | None = None
    """The largest lasting change that the noise may hide, as a share of the step time (`_hidden`)."""

    @property
    def classes(self) -> tuple[Class, ...]:
        return tuple(finding.name for finding in self.findings)

    @property
    def sentence(self) -> str:
        """All findings in one sentence."""
        texts = "; ".join(finding.text for finding in self.findings)
        return f"{texts[0].upper()}{texts[1:]}."


def classify(times_s: Sequence[float]) -> Steadiness:
    """Classify step times in order, in seconds. Raises ValueError when a time is not finite or not above 0."""
    times = np.asarray(times_s, dtype=float)
    if not (np.isfinite(times) & (times > 0)).all():
        raise ValueError("a step time is not a finite number above 0")
    n = len(times)
    if n < FEWEST:
        text = f"{counted(n, 'step')}: too few to tell, at least {FEWEST} are needed"
        few = Finding("too-few", None, 0.0, text)
        return Steadiness(
            n=n, findings=(few,), steady_after=None, warmup_steps=None, noise=None, correlation=None, limited=0
        )
    return _Analysis(times / np.median(times)).steadiness()


def enough_warmup(warmup_times_s: Sequence[float], step_times_s: Sequence[float]) -> str:
    """Advice on the number of warm-up steps, in a few words, from all steps of a cell in order."""
    given, total = len(warmup_times_s), len(warmup_times_s) + len(step_times_s)
    if total < FEWEST:
        return f"too few steps to tell, at least {FEWEST} are needed"
    needed = classify((*warmup_times_s, *step_times_s)).warmup_steps
    if needed is None or needed > given:
        return still_falling(given, len(step_times_s), needed)
    if shifts_at_seam(warmup_times_s, step_times_s):
        sides = warmup_times_s[-FEWEST_AT_SEAM:], step_times_s[:SEAM]
        before, after = (time_text(median(times_s) * 1e9) for times_s in sides)
        return f"not known: steps go from {before} to {after} just as measuring begins; raise --warmup to tell"
    if needed == 0:
        return "no warm-up step was needed"
    just = "was just" if needed == 1 else "were just"
    return f"{counted(needed, 'warm-up step')} {just if needed == given else 'would have been'} enough"


def shifts_at_seam(warmup_times_s: Sequence[float], step_times_s: Sequence[float]) -> bool:
    """True if steps move to another level exactly where measuring begins: each of the last `FEWEST_AT_SEAM` warm-up
    steps is farther from the mean of the first `SEAM` measured ones than 5 % of it, than 3.5 of their standard
    deviations, spikes limited, and than these warm-up steps are from one another. A warm-up fades out before it ends.
    """
    last, first = np.asarray(warmup_times_s[-FEWEST_AT_SEAM:]), limit_spikes(np.asarray(step_times_s[:SEAM]))
    if len(last) < FEWEST_AT_SEAM or len(first) < SHORTEST:
        return False
    nearest = np.abs(last - first.mean()).min()
    return bool(nearest > max(COLD * first.mean(), LIMIT * first.std(ddof=1), np.ptp(last)))


def still_falling(warmup_steps: int, measured_steps: int, needed: int | None) -> str:
    """A phrase: these warm-up steps were too few, and the number `needed`, None if that is not known."""
    if needed is None:
        return f"still falling after {warmup_steps + measured_steps}"
    return f"still falling after {warmup_steps}; {counted(needed, 'warm-up step')} would have been enough"


class _Falls(NamedTuple):
    """The fall of a shape from its beginning, and its later rise."""

    warmup: int
    """Steps before it is within `MARGIN` of its least; 0 if it does not fall."""
    rise: float
    rise_after: int
    rise_until: int
    """Steps before the rise, and before its end."""
    turns: int
    """Number of rises and falls by `MARGIN` or more."""


class _Analysis:
    """The analysis of times divided by their median."""

    def __init__(self, values: Series) -> None:
        self.tick = clock_tick(values)
        if self.tick is not None:  # spread over a tick with a fixed seed: readings of a clock are no levels
            values = values + self.tick * np.random.default_rng(_SEED).uniform(-0.5, 0.5, len(values))
        self.values = values
        self.n = len(values)
        # Leading steps that are far slower than the others, in a series whose median is 1.
        self.cold = _leading(values > 1 + max(OUTLYING * _MAD_TO_STD * float(np.median(np.abs(values - 1))), COLD))
        gap = max(LEAST_GAP, BEYOND_TICKS * (self.tick or 0.0))
        modes = _modes(values[self.cold :], gap)
        if modes is not None and modes.interleaved:  # the first steps may be of the slower mode, and not cold
            self.cold = _leading(values > 2 * modes.high - modes.low)
            modes = _modes(values[self.cold :], gap)
        rest = values[self.cold :]
        wave = find_wave(limit_spikes(rest))
        if modes is not None and wave is not None:
            within = float((_at_one_level(rest, modes)).std())
            around = float((rest - wave.values).std())
            wave, modes = (wave, None) if around * CLEARER < within else (None, modes)
        one_level = _at_one_level(rest, modes) if modes is not None and modes.interleaved else rest
        limited = limit_spikes(one_level)
        self.limited = int(np.count_nonzero(limited != one_level))
        self.course = course(limited)
        if wave is None or wave.cost >= self.course.cost:  # that the course does not explain as well, or beside it
            rest_of_course = limited - self.course.mean + 1
            wave = teeth(self.course) or (find_wave(rest_of_course) if self.course.terms else None)
        self.wave = None if wave is None or wave.size < LEAST_GAP else wave
        if self.wave is not None:
            self.course = course(limited - self.wave.values)
        self.mean = self.course.mean if self.wave is None else self.course.mean + self.wave.values
        self.shape = np.maximum(self.course.shape, LEAST_LEVEL)
        self.noise = float((limited - self.mean).std())
        self.hidden = _hidden(limited)
        self.falls = _falls(self.shape)
        self.alternates = modes is not None and not modes.interleaved and self.falls.turns >= ALTERNATING
        if modes is None or not (modes.interleaved or self.alternates):
            modes = two_modes(rest - self.mean, gap)
        self.modes = modes
        self.levels = find_levels(limited - self.mean + 1) if modes is None else None
        residuals = rest - self.mean
        self.residuals = residuals if modes is None else _at_one_level(residuals, modes)
        self.residuals -= np.median(self.residuals)
        self.warmup, self.outlying = self.set_apart()

    def set_apart(self) -> tuple[int, npt.NDArray[np.intp]]:
        """The number of warm-up steps after the cold ones, slow followers included, and the indices of outliers."""
        reach = max(OUTLYING * _MAD_TO_STD * float(np.median(np.abs(self.residuals))), LEAST_OUTLYING)
        if self.wave is not None:  # a few harmonics do not follow a sudden reset
            reach = max(reach, self.wave.size / 2)
        outlying = np.flatnonzero(np.abs(self.residuals) > reach)
        warmup = 0 if self.alternates else self.falls.warmup
        if self.cold + warmup:
            for index in outlying[(outlying >= warmup) & (self.residuals[outlying] > 0)]:
                warmup = int(index) + 1 if index < warmup + FOLLOWING else warmup
        outlying = outlying[outlying >= warmup]
        return warmup, outlying if len(outlying) <= max(MOST_OUTLYING * len(self.residuals), 1) else outlying[:0]

    @property
    def warm(self) -> bool:
        """True if enough steps come after the warm-up to see its end."""
        return len(self.shape) - self.warmup >= SHORTEST

    def steadiness(self) -> Steadiness:
        flat = f"flat: no change of 1 % or more in {counted(self.n, 'step')} (noise {_percent(self.noise)})"
        return Steadiness(
            n=self.n,
            findings=tuple(self.findings()) or (Finding("flat", 0, self.noise, flat),),
            steady_after=self.steady_after(),
            warmup_steps=None if self.drift < 0 or not self.warm else self.cold + self.warmup,
            noise=self.noise,
            correlation=round(self.course.correlation, 1),
            limited=self.limited,
            hidden=self.hidden,
        )

    @property
    def level(self) -> float:
        """The mean of all steps but the cold ones."""
        return max(float(self.course.mean.mean()), LEAST_LEVEL)

    @property
    def drift(self) -> float:
        """Change from the first step to the last; 0 if it is below `MARGIN`."""
        ramp = self.course.ramp
        drift = float(ramp[-1] - ramp[0]) / self.level
        return drift if abs(drift) >= MARGIN else 0.0

    def steady_after(self) -> int | None:
        if self.alternates or self.drift or self.wave is not None:
            return None
        shape = self.shape
        moving = np.flatnonzero(np.abs(shape - shape[-1]) >= MARGIN * shape[-1])
        after = max(int(moving[-1]) + 1 if len(moving) else 0, self.warmup)
        return self.cold + after if len(shape) - after >= SHORTEST else None

    def findings(self) -> Iterator[Finding]:
        after, drift, falls, outlying = self.cold + self.warmup, self.drift, self.falls, self.outlying
        # No change of a fit is larger than that of the steps.
        least, most = float(self.values.min()), float(self.values.max())
        spread = most / least - 1 if least > 0 else math.inf
        rise, drift = min(falls.rise, spread), max(min(drift, spread), least / most - 1)
        if after:
            share = float(self.values[:after].max()) / float(self.shape[min(self.warmup, len(self.shape) - 1)]) - 1
            share = min(share, spread)
            which = "step is" if after == 1 else f"{after} steps are up to"
            text = f"the first {which} {_slower(share)}"
            if not self.warm:
                text = f"still getting faster after {counted(self.n, 'step')}, by {_by(share)}"
            yield Finding("warm-up", 0, share, text)
        if rise >= MARGIN and not self.alternates:
            begin, until = self.cold + falls.rise_after, self.cold + falls.rise_until
            which = f"from step {begin + 1} on steps" if until == self.n else f"steps {begin + 1} to {until}"
            yield Finding("slowdown", begin, rise, f"{which} are {_slower(rise)}")
        elif drift > 0 and not self.alternates:
            yield Finding("slowdown", after, drift, f"the last steps are {_slower(drift)}")
        if drift and not self.alternates:
            way = "slower" if drift > 0 else "faster"
            yield Finding("drift", None, drift, f"steps get gradually {way}, by {_by(drift)} in all")
        if self.modes is not None:
            share = (self.modes.high - self.modes.low) / self.level
            share = min(share, spread)
            of = _percent(self.modes.upper_share)
            text = f"steps go between two levels {_by(share)} apart, {of} of them at the slower one"
            yield Finding("bimodal", None, share, text)
        if self.wave is not None:
            share = min(self.wave.size / self.level, spread)
            period = f"{self.wave.period:.{0 if self.wave.period >= 9.95 else 1}f}"
            yield Finding("periodic", None, share, f"steps go up and down by {_by(share)} every {period} steps")
        if self.tick is not None:
            yield Finding("quantised", None, self.tick, f"the clock ticks every {_percent(self.tick)} of a step")
        elif self.levels is not None:
            yield Finding("quantised", None, self.levels, f"steps lie at levels {_percent(self.levels)} apart")
        if len(outlying):
            furthest = max(map(float, self.residuals[outlying]), key=abs)
            verb = "stands" if len(outlying) == 1 else "stand"
            way = f"{_percent(furthest)} faster" if furthest < 0 else _slower(furthest)
            by = "" if furthest >= _TENFOLD else "by "
            text = f"{counted(len(outlying), 'step')} {verb} out, {by}up to {way}"
            yield Finding("outliers", self.cold + int(outlying[0]), furthest, text)


def limit_spikes(values: Series) -> Series:
    """The values, held to `LIMIT` robust standard deviations from the running median of `WINDOW`."""
    half = WINDOW // 2
    padded = np.pad(values, half, constant_values=np.nan)
    medians = np.nanmedian(np.lib.stride_tricks.sliding_window_view(padded, WINDOW), axis=1)
    reach = LIMIT * _MAD_TO_STD * float(np.median(np.abs(values - medians)))
    return np.clip(values, medians - reach, medians + reach)


def _hidden(values: Series) -> float:
    """The larger of two: the range of the running means over a tenth of the values (of the values themselves below
    20), and a linear trend over all values plus two of its standard errors."""
    n = len(values)
    over = max(n // 10, 1)
    sums = np.cumsum(values)
    means = np.concatenate([sums[over - 1 : over], sums[over:] - sums[:-over]]) / over
    t = np.linspace(-0.5, 0.5, n)
    trend = float(t @ values / (t @ t))
    left = values - values.mean() - trend * t
    error = math.sqrt(float(left @ left) / (n - 2) / float(t @ t))
    return max(float(means.max() / means.min() - 1), (abs(trend) + 2 * error) / float(values.mean()))


def _leading(holds: npt.NDArray[np.bool_]) -> int:
    """Number of first values that are true."""
    return int(np.argmin(holds)) if not holds.all() else len(holds)


def _modes(values: Series, gap: float) -> Modes | None:
    """The two levels of the values, in turns or in any other order."""
    return in_turns(limit_spikes(values), gap) or two_modes(values, gap)


def _at_one_level(values: Series, modes: Modes) -> Series:
    """The values, the upper mode's lowered by the gap of the means."""
    gap = values[modes.upper].mean() - values[~modes.upper].mean()
    return np.where(modes.upper, values - gap, values)


def _falls(shape: Series) -> _Falls:
    """The falls and rises of a shape; a change below `MARGIN` is none."""
    extreme, turns, direction = shape[0], 0, 0
    least, least_end, rise, rise_after = shape[0], 0, 0.0, 0
    for index in np.flatnonzero(np.diff(shape, prepend=shape[0])):
        value = shape[index]
        change = (value - extreme) / extreme
        if direction * change > 0:
            extreme = value
        elif abs(change) >= MARGIN:
            extreme, direction, turns = value, (1 if change > 0 else -1), turns + 1
        if rise < MARGIN and value < least:
            least, least_end = value, int(index)
        if value / least - 1 > rise:
            rise = float(value / least - 1)
            rise_after = int(index) if rise_after == 0 and rise >= MARGIN else rise_after
    near = np.flatnonzero(shape[: least_end + 1] < least * (1 + MARGIN))
    warmup, risen = int(near[0]), np.flatnonzero(shape[rise_after:] >= least * (1 + MARGIN))
    until = rise_after + int(risen[-1]) + 1 if rise >= MARGIN else 0
    return _Falls(warmup, rise, rise_after, until, turns)


def _slower(share: float) -> str:
    """``6.1 % slower``, ``52 times as slow``."""
    return f"{_percent(share)} slower" if share < _TENFOLD else f"{1 + share:.0f} times as slow"


def _by(share: float) -> str:
    """``6.1 %``, ``a factor of 52``."""
    return _percent(share) if share < _TENFOLD else f"a factor of {1 + share:.0f}"


_percent = partial(change_percent, finest=2)
