"""Formatting of numbers with units. Summaries against numpy, and their properties for any list of times."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cs336_tui.stats.quantities import (
    BARS,
    MILLISECONDS,
    change_percent,
    count,
    duration,
    gigabytes,
    milliseconds,
    sparkline,
    two_digit_percent,
)
from cs336_tui.stats.summaries import P95_MINIMUM_N, RunningStats, quantile, skews, summarize


@pytest.mark.parametrize(
    ("mean_s", "std_s", "expected"),
    [
        (0.1532, 0.00041, ("153.20", "0.41")),
        (0.1532, 0.0000996, ("153.20", "0.10")),
        (0.1532, 0.0412, ("153", "41")),
        (0.6, 0.1453, ("600", "145")),
        (12.5, 0.001, ("12500.0", "1.0")),
        (0.0001234, 0.0000000456, ("0.123400", "0.000046")),
        (0.0001234, 1e-12, ("0.123400", "0.000000")),
        (0.0048, None, ("4.800", "n/a")),
        (0.5, 0.0, ("500.0", "0.0")),
        (0.1, 1e-9, ("100.000000", "0.000001")),
        (0.1, summarize([0.1] * 12).std_s, ("100.0", "0.0")),  # of equal times
        (None, None, ("n/a", "n/a")),
    ],
)
def test_digits_of_a_time_follow_its_std(mean_s, std_s, expected) -> None:
    assert milliseconds(mean_s, std_s) == expected


@pytest.mark.parametrize(("time_s", "shown"), [(0.00017, "0.17"), (0.0, "0"), (0.528, "528"), (0.0139, "14")])
def test_a_short_time_beside_a_large_std_is_not_0(time_s: float, shown: str) -> None:
    assert MILLISECONDS.time(time_s, mean_s=0.014, std_s=0.056) == shown


@given(st.floats(1e-6, 1e3), st.floats(1e-8, 1e2))
def test_a_shown_std_is_within_its_second_digit(mean_s: float, std_s: float) -> None:
    mean, std = milliseconds(mean_s, std_s)
    assert float(std) == pytest.approx(std_s * 1e3, rel=0.051)
    assert len(mean.partition(".")[2]) == len(std.partition(".")[2])


NUMBERS = {
    gigabytes: {0: "0.00", 51e6: "0.051", 1.5e9: "1.50", 9.999e9: "10.0", 38.43e9: "38.4", 512e9: "512", None: "n/a"},
    count: {0: "0", 850: "850", 850.26: "850", 85.37: "85.4", 999.6: "1.00k", 1234: "1.23k", 102_345: "102k"}
    | {120_950_000: "121M", 999_999: "1.00M", 1.24e9: "1.24B", 9e12: "9.00T", 9e15: "9000T", None: "n/a"},
    duration: {0: "0:00", 48.4: "0:48", 59.7: "1:00", 723: "12:03", 3723: "1:02:03"}
    | {360_000: "100:00:00", None: "n/a"},
    two_digit_percent: {0.000015: "0.0015 %", 0.0246: "2.5 %", 0.126: "13 %", 0.996: "100 %", 12.34: "1234 %"},
    change_percent: {0.0: "0.0 %", 0.0049: "0.5 %", 0.0996: "10 %", 0.061: "6.1 %", -1.5: "150 %"},
}


@pytest.mark.parametrize("words", NUMBERS, ids=lambda words: words.__name__)
def test_numbers_are_as_short_as_people_read_them(words) -> None:
    assert {value: words(value) for value in NUMBERS[words]} == NUMBERS[words]


def test_a_sparkline_measures_from_zero_so_that_small_noise_stays_flat() -> None:
    assert len(set(sparkline([100.0, 100.4, 99.6, 99.8, 100.2], top=120))) == 1
    assert sparkline([400, 200, 100, 50]) == "█▄▂▁"
    assert sparkline([50, 50], top=400) == "▁▁"
    assert sparkline([]) == ""
    assert sparkline([0, 0]) == "▁▁"


@given(st.lists(st.floats(0, 1e6), min_size=1, max_size=300), st.integers(1, 80))
def test_a_narrow_sparkline_keeps_every_peak(values: list[float], width: int) -> None:
    bars = sparkline(values, width=width)
    assert len(bars) == min(width, len(values))
    assert set(bars) <= set(BARS)
    if max(values) > 0:
        assert BARS[-1] in bars


times = st.lists(st.floats(1e-7, 1e5), min_size=1, max_size=200)


@given(times, st.integers(0, 2))
def test_summary_agrees_with_numpy(values: list[float], ddof: int) -> None:
    found = summarize(values, ddof)
    assert (found.n, found.ddof) == (len(values), ddof)
    assert found.mean_s == pytest.approx(np.mean(values))
    assert found.median_s == pytest.approx(np.median(values))
    assert (found.min_s, found.max_s) == (min(values), max(values))
    std_s = pytest.approx(np.std(values, ddof=ddof), rel=1e-6, abs=1e-12 * max(values)) if len(values) > ddof else None
    assert found.std_s == std_s
    p20_s, p80_s, p95_s = (pytest.approx(np.percentile(values, share)) for share in (20, 80, 95))
    assert (found.p20_s, found.p80_s) == (p20_s, p80_s)
    assert found.p95_s == (p95_s if len(values) >= P95_MINIMUM_N else None)


def test_the_std_is_by_default_that_of_a_sample_however_far_the_mean_is_above_it() -> None:
    assert summarize([1.0, 2.0, 3.0, 4.0]).std_s == pytest.approx(np.std([1, 2, 3, 4], ddof=1), rel=1e-9)
    assert summarize([1e5 + wobble for wobble in (0.0, 1e-6, 2e-6)]).std_s == pytest.approx(1e-6, rel=1e-3)


def test_no_times_are_a_summary_of_nothing() -> None:
    found = summarize([])
    assert dict(found) == {
        "n": 0, "mean_s": None, "std_s": None, "median_s": None, "min_s": None, "max_s": None, "ddof": 1, "p95_s": None,
        "p20_s": None, "p80_s": None,
    }  # fmt: skip


def test_a_summary_reads_as_attributes_and_as_a_mapping_of_plain_numbers() -> None:
    found = summarize(np.array([1.0, 3.0]))
    assert found["mean_s"] == found.mean_s == 2.0
    assert all(type(found[key]) in (float, int, type(None)) for key in found.keys())  # noqa: SIM118
    with pytest.raises(KeyError):
        found["keys"]


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_times_that_are_not_finite_and_a_negative_ddof_are_refused(value: float) -> None:
    with pytest.raises(ValueError, match="not finite"):
        summarize([1.0, value, 2.0])
    with pytest.raises(ValueError, match="ddof -1"):
        summarize([1.0], ddof=-1)


@given(times, st.floats(0, 1))
def test_quantiles_agree_with_numpy(values: list[float], q: float) -> None:
    assert quantile(sorted(values), q) == pytest.approx(np.quantile(values, q))


@given(times)
def test_running_statistics_agree_with_the_summary_at_every_step(values: list[float]) -> None:
    running = RunningStats()
    assert running.std() is None
    for n, value in enumerate(values, 1):
        running.add(value)
        assert running.n == n
    assert running.mean == pytest.approx(np.mean(values))
    assert (running.std(1) is None) == (len(values) == 1)
    for ddof in (0, 1)[: len(values)]:
        assert running.std(ddof) == pytest.approx(np.std(values, ddof=ddof), rel=1e-6, abs=1e-9 * max(values))


@given(st.integers(1, 9).flatmap(lambda n: st.lists(st.lists(st.floats(0, 1e3), min_size=n, max_size=n), min_size=1)))
def test_the_skew_of_a_step_is_its_range_over_ranks(times_s_of_ranks: list[list[float]]) -> None:
    assert skews(times_s_of_ranks) == np.ptp(times_s_of_ranks, axis=0).tolist()
    assert skews(()) == []


@given(times, st.randoms())
def test_order_does_not_matter(values: list[float], random) -> None:
    shuffled = random.sample(values, len(values))
    assert summarize(shuffled) == summarize(values)
