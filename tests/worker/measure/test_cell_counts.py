"""Number of steps of a cell: given counts and automatic ones."""

import itertools
from collections.abc import Iterable

import msgspec
import pytest

from cs336_tui.config.spec import SYNCS, CellSpec, Sync
from cs336_tui.events.events import Notice
from cs336_tui.worker.measure.timing import StepTime, StepTimer
from tests.worker.measure.cells import Report, run, small_spec


def test_no_warm_up() -> None:
    report = run(small_spec(warmup_steps=0, measure_steps=1))
    assert report.outline == [
        "building",
        "ModelBuilt",
        "measuring",
        "StepsTimed",
        "finishing",
        "CellFinished",
    ]


@pytest.mark.parametrize("sync", SYNCS)
def test_fixed_counts_are_always_honoured(sync: Sync, monkeypatch: pytest.MonkeyPatch) -> None:
    """A given count is kept, whether step times are flat or fall."""
    for script in ([0.05] * 60, [0.05 * (2 - 0.01 * step) for step in range(60)]):
        spec = small_spec(pass_="forward", warmup_steps=17, measure_steps=43, sync=sync)
        report = run_scripted(spec, script, monkeypatch)
        assert (len(report.times_s("warm-up")), len(report.times_s())) == (17, 43)
        assert notices(report) == []


def run_scripted(spec: CellSpec, script: Iterable[float], monkeypatch: pytest.MonkeyPatch) -> Report:
    """Run the cell, with these times in place of those that its steps, synchronised one by one, really took."""
    times = iter(script)

    class Scripted(StepTimer):
        def time(self) -> StepTime:
            return super().time()._replace(total_s=next(times))

    with monkeypatch.context() as patch:
        patch.setattr("cs336_tui.worker.measure.cell.StepTimer", Scripted)
        return run(spec)


def notices(report: Report) -> list[str]:
    return [event.text for event in report.events if isinstance(event, Notice)]


def test_warming_up_ends_when_steps_are_steady(monkeypatch: pytest.MonkeyPatch) -> None:
    """The cold step and ten flat ones are seen at 15; two steps more are run before those that are measured."""
    script = [1.0, *[0.05, 0.0501] * 20]
    report = run_scripted(small_spec(warmup_auto=True, warmup_steps=100), script, monkeypatch)
    assert report.outline == [
        *("building", "ModelBuilt", "warm-up", *["StepsTimed"] * 17),
        *("measuring", *["StepsTimed"] * 3, "finishing", "CellFinished"),
    ]
    assert [event.first for event in report.steps("warm-up")] == list(range(17))
    assert report.finished.warmup_steps_done == 17


def test_at_the_most_warm_up_steps_it_goes_on_to_measure_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    falling = [0.05 * (2 - 0.01 * step) for step in range(43)]
    report = run_scripted(small_spec(warmup_auto=True, warmup_steps=40), falling, monkeypatch)
    assert report.times_s("warm-up") == falling[:40]
    assert report.times_s() == falling[40:]
    assert notices(report) == ["cell 8: still falling after 40 warm-up steps, the limit"]
    assert report.finished.status == "ok"


def test_measuring_ends_when_the_mean_is_known_and_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    script = [0.05, 0.0501] * 100
    report = run_scripted(small_spec(steps_auto=0.01, measure_steps=100), script, monkeypatch)
    assert (len(report.times_s("warm-up")), len(report.times_s())) == (2, 20)
    (notice,) = notices(report)
    assert notice.startswith("cell 8: stopped after 20 steps: the mean is known to ± 0.")
    assert report.finished.summary is not None
    assert report.finished.summary.n == 20


def test_at_the_most_measured_steps_it_stops_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    """An ever growing noise, and steps too short for the least time."""
    growing = [0.05 * (1 + (-1) ** step * 0.002 * step) for step in range(82)]
    missed = ", not at the ± 0.05 % asked for"
    for script, said in ((growing, missed), ([0.001] * 82, "")):
        report = run_scripted(small_spec(steps_auto=0.001, measure_steps=80), script, monkeypatch)
        assert len(report.times_s()) == 80
        (notice,) = notices(report)
        assert notice.startswith(f"cell 8: stopped after 80 steps{said}, the limit: the mean is known to ± ")
        assert report.finished.remarks == (notice.removeprefix("cell 8: "),)


def test_a_cell_with_automatic_counts_is_stopped_between_steps() -> None:
    answers = itertools.chain([False] * 6, itertools.repeat(True))
    spec = small_spec(warmup_auto=True, warmup_steps=100, steps_auto=0.01, measure_steps=100)
    report = run(spec, cancelled=lambda: next(answers))
    assert report.finished.status == "cancelled"
    assert report.finished.warmup_steps_done == 5


def test_an_optimizer_step_that_the_scaler_skipped_is_told() -> None:
    # One token: the loss's gradient, scaled by 65536 as at first, is more than float16 can hold.
    spec = small_spec(pass_="train-step", precision="fp16-mixed", context_length=1, batch_size=1, warmup_steps=0)
    report = run(spec)
    assert report.finished.status == "ok"
    (notice,) = [event for event in report.events if isinstance(event, Notice)]
    assert "of 3 optimizer steps were skipped" in notice.text


def test_skipped_optimizer_steps_are_counted_among_those_that_ran(monkeypatch: pytest.MonkeyPatch) -> None:
    spec = small_spec(pass_="train-step", precision="fp16-mixed", context_length=1, batch_size=1, warmup_steps=0)
    automatic = msgspec.structs.replace(spec, steps_auto=0.01, measure_steps=100)
    why, skipped = notices(run_scripted(automatic, [0.05] * 100, monkeypatch))
    assert "stopped after 20 steps" in why
    assert "of 20 optimizer steps were skipped" in skipped
