"""Numbers of steps that come from time, in words and in sweeps."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cs336_tui.config.choices import command_of, sweep_from, sweep_of
from cs336_tui.config.counts import MOST_BY_TIME, Auto, auto_of, auto_words, duration_of, duration_words, steps_in
from cs336_tui.config.presets import Preset, from_toml, to_toml
from cs336_tui.config.spec import SpecError
from cs336_tui.config.sweep import Sweep
from tests.samples import a_spec


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        *{"10s": 10.0, "25ms": 0.025, " .5 S": 0.5, "2min": 120.0, "0.1s": 0.1, "1500ms": 1.5, "3.s": 3.0}.items(),
        *((other, None) for other in ("", "10", "s", "0s", "-1s", "1d", "1 0s", "٣s", "1e3s", "infs", "auto", "10s5")),
    ],
)
def test_a_time_is_a_number_with_its_unit(text: str, seconds: float | None) -> None:
    assert duration_of(text) == seconds


@given(st.integers(1, 10**8).map(lambda microseconds: microseconds / 1e6))
def test_a_time_reads_as_it_is_written(seconds: float) -> None:
    assert duration_of(duration_words(seconds)) == seconds


def test_times_are_written_short() -> None:
    assert [duration_words(seconds) for seconds in (0.025, 0.1, 1.0, 10.0, 1.5, 90.0)] == [
        *("25ms", "100ms", "1s", "10s", "1.5s", "90s")
    ]


def test_a_count_by_time_has_a_most() -> None:
    assert auto_of("warmup_steps", "10s") == Auto(MOST_BY_TIME, 10.0)
    assert auto_of("measure_steps", "30s:7") == Auto(7, 30.0)
    assert auto_words("measure_steps", 7, 30.0) == "30s:7"
    assert auto_words("measure_steps", MOST_BY_TIME, 30.0) == "30s"
    for text in ("10s:0", "10s:x", "10s:"):
        with pytest.raises(SpecError, match="expected a time such as 10s or 25ms"):
            auto_of("measure_steps", text)


@pytest.mark.parametrize(
    ("for_s", "step_s", "steps"), [(0.1, 0.03, 3), (0.1, 0.2, 1), (0.1, 1e-9, 50), (0.1, 0.0, 50), (1.0, 0.25, 4)]
)
def test_as_many_steps_as_fit_whole(for_s: float, step_s: float, steps: int) -> None:
    assert steps_in(for_s, step_s, 50) == steps


def test_a_sweep_by_time_round_trips_through_command_preset_and_cells() -> None:
    sweep = sweep_from(warmups=Auto(MOST_BY_TIME, 10.0), steps=Auto(500, 0.1), devices=("cpu",), contexts=(64, 128))
    assert "--warmup 10s --steps 100ms:500" in command_of(sweep)
    assert 'warmup = "10s"' in to_toml(Preset("mine", "", sweep)).splitlines()
    assert from_toml("mine", to_toml(Preset("mine", "", sweep))).sweep == sweep
    assert command_of(sweep_of(sweep.cells())) == command_of(sweep)
    assert {(cell.warmup_for, cell.steps_for, cell.measure_steps) for cell in sweep.cells()} == {(10.0, 0.1, 500)}


def test_other_counts_replace_a_time() -> None:
    by_time = Sweep(**Sweep().counts(Auto(9, 1.0), Auto(9, 2.0), None))
    fixed = by_time.counts((3,), 7, None)
    assert fixed == {
        "warmups": (3,), "warmup_for": None, "warmup_auto": False, "steps": 7, "steps_for": None, "steps_auto": None,
    }  # fmt: skip
    automatic = by_time.counts(Auto(100), Auto(1000), 0.02)
    assert (automatic["warmup_auto"], automatic["warmup_for"]) == (True, None)
    assert (automatic["steps_auto"], automatic["steps_for"]) == (0.02, None)
    with pytest.raises(SpecError, match="only used with --steps auto"):
        by_time.counts(None, None, 0.02)


def test_steps_are_expected_to_come_to_their_time() -> None:
    spec = a_spec(warmup_for=1.0, warmup_steps=1000, steps_for=3.0, measure_steps=20)
    assert (spec.warmup_steps_of(0.1), spec.measure_steps_of(0.1), spec.steps_s(0.5)) == (10, 20, 4.0)
    assert (spec.warmup_is_open, spec.steps_are_open) == (True, True)
    assert (spec.steps_s(0.3), spec.steps_s(2.0), spec.steps_s(0.001)) == (4.0, 2.0 + 3.0, 1.0 + 0.02)
    assert spec.steps_s(None) == 4.0, "at least, while nobody knows how long a step takes"
    fixed = a_spec(warmup_steps=5, measure_steps=10)
    assert (fixed.steps_s(100.0), fixed.steps_s(None)) == (1500.0, None)


def test_do_bench_has_tritons_times_unless_others_are_given() -> None:
    sweep = sweep_from(timers=("do_bench",), devices=("cpu",))
    assert "--warmup 25ms --steps 100ms" in command_of(sweep)
    assert "--timer do_bench" in command_of(sweep)
    assert "--warmup 10s --steps 100ms" in command_of(
        sweep_from(timers=("do_bench",), warmups=Auto(MOST_BY_TIME, 10.0))
    )
    both = sweep_from(timers=("step", "do_bench"), devices=("cpu",))
    assert "--warmup 5 --steps 10" in command_of(both)
    assert "--timer step,do_bench" in command_of(both)


def test_only_cuda_has_an_l2_to_flush() -> None:
    for device in ("cpu", "mps"):
        with pytest.raises(SpecError, match=f"flush l2 yes: only cuda tells the size of its L2.*{device}'s caches"):
            a_spec(flush_l2=True, device=device)
    flushed = a_spec(flush_l2=True, device="cuda:0")
    assert "L2 flushed" in flushed.title
    assert "L2 flushed" not in a_spec(flush_l2=True, timer="do_bench", device="cuda:0").title
