"""Summaries of step times: mean, std and quantiles, at once or as a running mean. Pure Python with exact sums
(`math.fsum`): for tens of numbers numpy would only cost memory and start-up time."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence

import msgspec

P95_MINIMUM_N = 20


class Summary(msgspec.Struct, frozen=True, kw_only=True):
    """Statistics of a list of times, in seconds; reads as attributes or as a mapping. `std_s` divides by ``n - ddof``,
    and is None if that is not positive. `p95_s` is None below 20 samples, all are None if ``n`` is 0; `p20_s` and
    `p80_s`, the 20 and 80 % quantiles, in old logs, too."""

    n: int
    mean_s: float | None
    std_s: float | None
    median_s: float | None
    min_s: float | None
    max_s: float | None
    ddof: int
    p95_s: float | None = None
    p20_s: float | None = None
    p80_s: float | None = None

    def with_ddof(self, ddof: int) -> Summary:
        """This summary with another divisor of the std."""
        if ddof == self.ddof:
            return self
        squares = self.std_s**2 * (self.n - self.ddof) if self.std_s is not None else 0.0
        std = math.sqrt(squares / (self.n - ddof)) if self.n > ddof else None
        return msgspec.structs.replace(self, std_s=std, ddof=ddof)

    def keys(self) -> Iterator[str]:
        return iter(self.__struct_fields__)

    def __getitem__(self, key: str) -> float | int | None:
        found: dict[str, float | int | None] = msgspec.structs.asdict(self)
        return found[key]


def summarize(times_s: Iterable[float], ddof: int = 1) -> Summary:
    """Summary of step times in seconds. Raises ValueError for a negative `ddof` or a time that is not finite."""
    if ddof < 0:
        raise ValueError(f"ddof {ddof}: expected 0 or more")
    ordered = sorted(map(float, times_s))
    n = len(ordered)
    if not all(map(math.isfinite, ordered)):
        raise ValueError("a step time is not finite")
    if n == 0:
        return Summary(n=0, mean_s=None, std_s=None, median_s=None, min_s=None, max_s=None, ddof=ddof)
    mean = math.fsum(ordered) / n
    squares = math.fsum((t - mean) ** 2 for t in ordered)
    return Summary(
        n=n,
        mean_s=mean,
        std_s=math.sqrt(squares / (n - ddof)) if n > ddof else None,
        median_s=quantile(ordered, 0.5),
        min_s=ordered[0],
        max_s=ordered[-1],
        ddof=ddof,
        p95_s=quantile(ordered, 0.95) if n >= P95_MINIMUM_N else None,
        p20_s=quantile(ordered, 0.2),
        p80_s=quantile(ordered, 0.8),
    )


def skews(times_s_of_ranks: Iterable[Sequence[float]]) -> list[float]:
    """The skew of each step: its time on the slowest rank less that on the fastest."""
    return [max(step) - min(step) for step in zip(*times_s_of_ranks, strict=True)]


def quantile(ordered: Sequence[float], q: float) -> float:
    """The `q` quantile of an ascending, non-empty list, linear between neighbours (numpy's default method)."""
    position = q * (len(ordered) - 1)
    low = math.floor(position)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (position - low)


class RunningStats:
    """Mean and standard deviation of a stream, one sample at a time (Welford 1962)."""

    def __init__(self) -> None:
        self.n = 0
        self.mean = 0.0
        self._squares = 0.0

    @classmethod
    def of(cls, summary: Summary) -> RunningStats:
        """The state after the samples of this summary."""
        stats = cls()
        stats.n, stats.mean = summary.n, summary.mean_s or 0.0
        stats._squares = (summary.std_s or 0.0) ** 2 * (summary.n - summary.ddof)
        return stats

    def add(self, value: float) -> None:
        self.n += 1
        delta = value - self.mean
        self.mean += delta / self.n
        self._squares += delta * (value - self.mean)

    def std(self, ddof: int = 1) -> float | None:
        """Standard deviation so far, or None while ``n <= ddof``."""
        return math.sqrt(self._squares / (self.n - ddof)) if self.n > ddof else None

    def summary(self, ddof: int = 1) -> Summary | None:
        """Mean and std so far, without quantiles; None before the first sample."""
        rest = dict.fromkeys(("median_s", "min_s", "max_s"))
        return Summary(n=self.n, mean_s=self.mean, std_s=self.std(ddof), ddof=ddof, **rest) if self.n else None
