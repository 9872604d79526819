"""Candidates that can run on a target and fit it by prediction; search for the largest batch or context that fits, and
its number of predictions."""

import time
from collections.abc import Callable, Sequence
from functools import partial
from itertools import accumulate
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cs336_tui.analysis.shortlist import (
    Shortlist,
    lacking,
    limit_of_peak,
    needed_bytes,
    shortlist,
    started_of,
)
from cs336_tui.analysis.targets import CONTEXT_BYTES, FIELD, Dimension, Target, largest, search
from cs336_tui.config.spec import CellSpec, SpecError
from cs336_tui.config.tuning import Over, Tuning
from cs336_tui.events.environment import DeviceInfo
from cs336_tui.events.prediction import Prediction
from cs336_tui.runner.predictor import PredictionError, predictions_of
from tests.made_predictions import MadePredictor, made_prediction
from tests.samples import ENVIRONMENT, a_spec, sized

GB = 10**9


def a_target(device: str = "cuda:0", capacity_bytes: int | None = 80 * GB) -> Target:
    return Target(name="Some", device=device, capacity_bytes=capacity_bytes, free_bytes=capacity_bytes, source="made")


def a_tuning(device: str = "cuda:0", over: Sequence[Over] = (Over("checkpoint", (0, 1)),), **more: Any) -> Tuning:
    base = a_spec(device=device, pass_="train-step", batch_size=4)
    return Tuning(base=base, over=tuple(over), **more)


def of_bytes(spec: CellSpec) -> Prediction:
    """90 GB without checkpointing, 30 GB with it."""
    return made_prediction(spec, peak_bytes=(30 if spec.checkpoint else 90) * GB)


def chosen(tuning: Tuning, target: Target, predictor: MadePredictor | None = None) -> Shortlist:
    used = predictor or MadePredictor(of_bytes)
    return shortlist(tuning, target, lambda _: None, partial(predictions_of, used), every=True)


def test_what_does_not_fit_by_prediction_is_left_out_with_both_figures() -> None:
    found = chosen(a_tuning(), a_target())
    assert [spec.checkpoint for spec in found.candidates] == [1]
    (left,) = found.left_out
    assert left.words == "starting point"
    assert left.why == "by prediction it needs 90.0 GB, and the limit is 79.5 GB"
    assert len(chosen(a_tuning(), a_target(capacity_bytes=None)).candidates) == 2


def test_only_what_may_matter_is_predicted_before_a_race() -> None:
    predictor = MadePredictor(of_bytes)
    for capacity, is_asked in ((80 * GB, False), (2 * GB, True)):
        target = a_target(capacity_bytes=capacity)
        shortlist(a_tuning(), target, lambda _: None, partial(predictions_of, predictor))
        assert bool(predictor.asked) == is_asked


@pytest.mark.parametrize(
    ("asked", "device", "limit"),
    [
        ({}, "cuda:0", 80 * GB - CONTEXT_BYTES["cuda"]),
        ({}, "cpu", 80 * GB),
        ({"within_bytes": 70 * GB}, "cuda:0", 70 * GB),
        ({"within_share": 0.5}, "cuda:0", 40 * GB),
    ],
)
def test_the_limit_of_a_peak(asked: dict[str, Any], device: str, limit: int) -> None:
    assert limit_of_peak(a_tuning(device, **asked), a_target(device)) == limit


def test_ranks_share_the_memory_of_a_cpu_and_each_has_its_process_there() -> None:
    spec = a_spec(device="cpu", ranks=2, parallel="ddp")
    alone = made_prediction(spec, peak_bytes=GB)
    assert needed_bytes(alone, a_target("cpu")) == 2 * (GB + CONTEXT_BYTES["cpu"])
    assert needed_bytes(made_prediction(a_spec(ranks=2, parallel="ddp"), peak_bytes=GB), a_target()) == GB


def test_what_cannot_be_predicted_is_tried() -> None:
    def made(spec: CellSpec) -> Prediction:
        if spec.checkpoint:
            raise PredictionError("no idea")
        return made_prediction(spec, peak_bytes=GB)

    found = chosen(a_tuning(), a_target(), MadePredictor(made))
    assert [spec.checkpoint for spec in found.candidates] == [0, 1]
    assert [spec.checkpoint for spec in found.predictions] == [0]


def test_predictions_end_in_time() -> None:
    predictor = MadePredictor(of_bytes)
    assert not predictions_of(predictor, [a_spec()], until=time.monotonic() - 1)
    assert not predictor.asked
    assert predictions_of(predictor, [a_spec()], until=time.monotonic() + 100)
    assert 99 < predictor.within_s <= 100


def test_a_device_that_is_not_here_lacks_what_its_kind_does() -> None:
    old = DeviceInfo(name="cuda:0", label="V100", precisions=("fp32", "fp16-mixed"), capability="7.0")
    assert lacking(old)(a_spec()) is None
    assert "can do fp32, fp16-mixed" in str(lacking(old)(a_spec(precision="bf16")))


def test_a_race_needs_its_starting_point_and_something_beside_it() -> None:
    large = MadePredictor(lambda spec: made_prediction(spec, peak_bytes=90 * GB))
    wide = a_tuning(within_bytes=GB)
    with pytest.raises(SpecError, match=r"starting point small .*: by prediction it needs 90.0 GB, and the limit is 1"):
        started_of(wide, ENVIRONMENT, partial(predictions_of, large))
    lacking_here = a_tuning("cpu", (Over("cuda_graph", ("off", "step")),))
    with pytest.raises(SpecError, match=r"over cuda-graph: cuda graph step: cpu .* has none"):
        started_of(lacking_here, ENVIRONMENT, partial(predictions_of, large))


def test_the_beginning_of_a_race_says_what_is_tried_and_what_was_spent() -> None:
    began = time.monotonic() - 3
    started = started_of(a_tuning(), ENVIRONMENT, partial(predictions_of, MadePredictor()), began)
    assert [spec.checkpoint for spec in started.candidates] == [0, 1]
    assert started.limit_bytes
    assert 3 <= started.spent_s < 4


def test_a_limit_above_what_is_there_and_a_budget_below_the_forecast_of_a_visit_are_refused() -> None:
    with pytest.raises(SpecError, match=r"within 90.0 GB: Some has 80.0 GB"):
        limit_of_peak(a_tuning(within_bytes=90 * GB), a_target())
    slow = MadePredictor(lambda spec: made_prediction(spec, flops={"forward": 10**18}))
    with pytest.raises(SpecError, match="budget 10s: shorter than one visit, which takes at least"):
        started_of(a_tuning(budget_s=10.0), ENVIRONMENT, partial(predictions_of, slow))
    base = a_spec(**sized("10B"), device="cpu", pass_="train-step", context_length=1024, threads=1)
    long = Tuning(base=base, over=(Over("checkpoint", (0, 1)),), budget_s=60.0)
    with pytest.raises(SpecError, match=r"budget 60s: shorter than one visit, which takes at least \d:\d\d:\d\d"):
        started_of(long, ENVIRONMENT, partial(predictions_of, MadePredictor()))


curves = st.builds(
    lambda fixed, each, power, limit: [fixed + int(each * value**power) for value in range(1, limit + 1)],
    st.integers(0, 10_000), st.floats(0.01, 1000), st.sampled_from([0.5, 1.0, 1.4, 2.0]), st.integers(1, 5000),
)  # fmt: skip
any_rises = st.lists(st.integers(0, 100), min_size=1, max_size=300).map(lambda rises: [*accumulate(rises)])


@given(curves | any_rises, st.integers(0, 5000) | st.integers(0, 2_000_000), st.integers(1, 5000), st.integers(1, 20))
def test_it_is_the_one_that_trying_all_would_find(needs: list[int], room: int, start: int, step: int) -> None:
    asked: list[int] = []

    def need(value: int) -> int:
        asked.append(value)
        return needs[value - 1]

    found = largest(need, room, start=start, limit=len(needs), step=step)
    fitting = [value for value in range(step, len(needs) + 1, step) if needs[value - 1] <= room]
    assert found == (fitting[-1] if fitting else None)
    assert len(asked) == len(set(asked))
    assert len(asked) <= 45


@pytest.mark.parametrize(
    ("need", "start", "limit", "step", "found", "questions"),
    [
        (lambda value: 16_000_000 + int(300_123.4 * value), 4, 10_000_000, 1, 266_503, [4, 8, 266_504, 266_503]),
        (lambda value: 2_000_000_000 + 40_000 * value**2, 128, 131_072, 16, 1392, [128, 256, 5168, 1392, 1408]),
    ],
    ids=["linear", "quadratic"],
)
def test_a_usual_need_takes_few_questions(
    need: Callable[[int], int], start: int, limit: int, step: int, found: int, questions: list[int]
) -> None:
    asked: list[int] = []
    room = 80_000_000_000
    assert largest(lambda at: asked.append(at) or need(at), room, start=start, limit=limit, step=step) == found
    assert asked == questions


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

    def predicted(each: CellSpec) -> Prediction:
        return made_prediction(each, peak_bytes=need(each))

    fit = search(spec, by, predicted, room, limit=limit, on_try=lambda each, fits: told.append((each, fits)))
    assert (fit.largest, fit.spec, fit.next_spec) == (found, at(found), at(following))
    assert fit.predictions == len(told)
    assert all(fits == (need(each) <= room) for each, fits in told)
    assert all(each == at(getattr(each, FIELD[by])) and getattr(each, FIELD[by]) % step == 0 for each, _ in told)
