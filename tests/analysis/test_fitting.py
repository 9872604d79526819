"""Search for the largest batch or context that fits, and its number of predictions."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from cs336_tui.analysis.targets import largest, search
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


def test_what_is_linear_takes_few_questions() -> None:
    need = Needs(16_000_000, 300_123.4)
    assert largest(need, 80_000_000_000, start=4, limit=10_000_000) == 266_503
    assert need.asked == [4, 8, 266_504, 266_503]


def test_what_is_quadratic_takes_a_dozen_at_most() -> None:
    need = Needs(2_000_000_000, 40_000, power=2.0)
    assert largest(need, 80_000_000_000, start=128, limit=131_072, step=16) == 1392
    assert need.asked == [128, 256, 5168, 1392, 1408]
    assert len(need.asked) <= 12


def test_a_search_changes_nothing_but_the_batch_and_tells_of_each_try() -> None:
    told = []
    fit = search(
        a_spec(), "batch", lambda spec: spec.batch_size * 10, 95, on_try=lambda spec, fits: told.append((spec, fits))
    )
    assert fit.largest == 9
    assert fit.spec == a_spec(batch_size=9)
    assert fit.next_spec == a_spec(batch_size=10)
    assert fit.predictions == len(told)
    assert all(fits == (spec.batch_size <= 9) for spec, fits in told)


def test_contexts_are_tried_in_multiples_of_16() -> None:
    asked = []
    fit = search(a_spec(context_length=100), "context", lambda spec: spec.context_length, 1000,
                 on_try=lambda spec, _: asked.append(spec.context_length))  # fmt: skip
    assert fit.largest == 992
    assert fit.next_spec is not None
    assert fit.next_spec.context_length == 1008
    assert all(context % 16 == 0 for context in asked)


def test_a_limit_ends_the_search_and_nothing_larger_is_known() -> None:
    fit = search(a_spec(), "batch", lambda spec: spec.batch_size, 10**9, limit=48)
    assert (fit.largest, fit.next_spec) == (48, None)


def test_where_not_even_one_fits_there_is_none() -> None:
    fit = search(a_spec(), "batch", lambda spec: 10 + spec.batch_size, 10)
    assert (fit.largest, fit.spec) == (None, None)
    assert fit.next_spec == a_spec(batch_size=1)


def test_batches_are_those_that_ranks_and_micro_batches_divide() -> None:
    spec = a_spec(pass_="train-step", ranks=3, parallel="ddp", batch_is="global", batch_size=6, accumulate=2)
    tried: list[int] = []

    def need(candidate: CellSpec) -> int:
        tried.append(candidate.batch_size)
        return candidate.batch_size

    found = search(spec, "batch", need, 29, limit=64)

    assert found.largest == 24
    assert found.next_spec is not None
    assert found.next_spec.batch_size == 30
    assert all(batch % 6 == 0 for batch in tried)
