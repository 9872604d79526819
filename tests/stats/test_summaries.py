"""Summaries against numpy, and their properties for any list of times."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cs336_tui.stats.summaries import P95_MINIMUM_N, RunningStats, quantile, skews, summarize

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


@pytest.mark.parametrize(
    ("values", "ddof", "std_s"),
    [
        ([1.0, 2.0, 3.0, 4.0], {}, np.std([1, 2, 3, 4], ddof=1)),  # by default that of a sample
        ([1.0, 2.0, 3.0, 4.0], {"ddof": 0}, np.std([1, 2, 3, 4])),
        ([1e5 + wobble for wobble in (0.0, 1e-6, 2e-6)], {}, 1e-6),  # a mean far above the spread
        ([0.5], {}, None),
        ([0.5], {"ddof": 0}, 0.0),
    ],
)
def test_the_std_divides_by_what_is_left(values: list[float], ddof: dict[str, int], std_s: float | None) -> None:
    assert summarize(values, **ddof).std_s == (std_s and pytest.approx(std_s, rel=1e-3 if values[0] > 1e4 else 1e-9))


@given(times, st.randoms())
def test_order_does_not_matter(values: list[float], random) -> None:
    shuffled = random.sample(values, len(values))
    assert summarize(shuffled) == summarize(values)


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
