"""Search for the largest batch or context that fits, and its number of predictions."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cs336_tui.analysis.targets import FIELD, Dimension, largest, search
from cs336_tui.config.spec import CellSpec
from tests.samples import a_spec


class Needs:
    """A need that counts how often it was asked."""

    def __init__(self, fixed: int, each: float, power: float = 1.0) -> None:
        self.fixed, self.each, self.power = fixed, each, power
        self.asked: list[int] = []

    def __call__(self, value: int) -> int:
        self.asked.append(value)
        return self.fixed + int(self.each * value**self.power)


@given(
    fixed=st.integers(0, 10_000),
    each=st.floats(0.01, 1000),
    power=st.sampled_from([0.5, 1.0, 1.4, 2.0]),
    room=st.integers(0, 2_000_000),
    start=st.integers(1, 5000),
    limit=st.integers(1, 5000),
    step=st.integers(1, 20),
)
def test_it_is_the_one_that_trying_all_would_find(
    fixed: int, each: float, power: float, room: int, start: int, limit: int, step: int
) -> None:
    need = Needs(fixed, each, power)
    found = largest(need, room, start=start, limit=limit, step=step)
    fitting = [value for value in range(step, limit + 1, step) if Needs(fixed, each, power)(value) <= room]
    assert found == (fitting[-1] if fitting else None)
    assert len(need.asked) == len(set(need.asked))
    assert len(need.asked) <= 45


@given(st.lists(st.integers(0, 100), min_size=1, max_size=300), st.integers(0, 5000), st.integers(1, 300))
def test_any_need_that_does_not_fall_will_do(rises: list[int], room: int, start: int) -> None:
    needs = [sum(rises[: n + 1]) for n in range(len(rises))]
    found = largest(lambda value: needs[value - 1], room, start=start, limit=len(needs))
    assert found == (sum(need <= room for need in needs) or None)


@pytest.mark.parametrize(
    ("need", "start", "limit", "step", "found", "asked"),
    [
        (Needs(16_000_000, 300_123.4), 4, 10_000_000, 1, 266_503, [4, 8, 266_504, 266_503]),
        (Needs(2_000_000_000, 40_000, power=2.0), 128, 131_072, 16, 1392, [128, 256, 5168, 1392, 1408]),
    ],
    ids=["linear", "quadratic"],
)
def test_a_usual_need_takes_few_questions(
    need: Needs, start: int, limit: int, step: int, found: int, asked: list[int]
) -> None:
    assert largest(need, 80_000_000_000, start=start, limit=limit, step=step) == found
    assert need.asked == asked


OF_RANKS = a_spec(pass_="train-step", ranks=3, parallel="ddp", batch_is="global", batch_size=6, accumulate=2)


@pytest.mark.parametrize(
    ("spec", "by", "need", "room", "limit", "step", "found", "following"),
    [
        (a_spec(), "batch", lambda spec: spec.batch_size * 10, 95, None, 1, 9, 10),
        (a_spec(context_length=100), "context", lambda spec: spec.context_length, 1000, None, 16, 992, 1008),
        (a_spec(), "batch", lambda spec: spec.batch_size, 10**9, 48, 1, 48, None),  # the limit ends it
        (a_spec(), "batch", lambda spec: 10 + spec.batch_size, 10, None, 1, None, 1),  # not even one fits
        (OF_RANKS, "batch", lambda spec: spec.batch_size, 29, 64, 6, 24, 30),  # that ranks and micro-batches divide
    ],
)
def test_a_search_changes_nothing_but_its_dimension_and_tells_of_each_try(
    spec: CellSpec, by: Dimension, need: Callable[[CellSpec], int], room: int, limit: int | None, step: int,
    found: int | None, following: int | None,
) -> None:  # fmt: skip
    def at(value: int | None) -> CellSpec | None:
        return None if value is None else msgspec.structs.replace(spec, **{FIELD[by]: value})

    told: list[tuple[CellSpec, bool]] = []
    fit = search(spec, by, need, room, limit=limit, on_try=lambda each, fits: told.append((each, fits)))
    assert (fit.largest, fit.spec, fit.next_spec) == (found, at(found), at(following))
    assert fit.predictions == len(told)
    assert all(fits == (need(each) <= room) for each, fits in told)
    assert all(each == at(getattr(each, FIELD[by])) and getattr(each, FIELD[by]) % step == 0 for each, _ in told)
