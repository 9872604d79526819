"""Formatting of numbers with units."""

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
from cs336_tui.stats.summaries import summarize


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
