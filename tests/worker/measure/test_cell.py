"""One whole cell on the CPU and its report; the number of its steps: given counts and automatic ones."""

import itertools
from collections.abc import Iterable
from pathlib import Path
from statistics import median

import msgspec
import pytest
import torch

from cs336_tui.config.spec import ARCHES, PASSES, SYNCS, Arch, CellSpec, Pass, Precision, Sync
from cs336_tui.config.values import PHASES
from cs336_tui.events.events import Notice, StageChanged
from cs336_tui.worker.measure.timing import StepTime, StepTimer
from cs336_tui.worker.workload.building import build
from tests.worker.measure.cells import Report, UsersFolder, run, run_step, small_spec

CPU_PRECISIONS = ("fp32", "bf16-mixed", "fp16-mixed", "bf16")


def assert_sound(report: Report, pass_: Pass, sync: Sync) -> None:
    """Assert two warm-up and three measured steps with every phase of the pass, whose sum is at most the step."""
    measured = ["StepsTimed"] * (3 if sync == "each-step" else 1)
    before = ["building", "ModelBuilt", "warm-up", "StepsTimed", "StepsTimed", "measuring"]
    assert report.outline == [*before, *measured, "finishing", "CellFinished"]
    assert report.finished.status == "ok"
    assert (report.finished.error, report.finished.stage, report.finished.step) == (None, None, None)
    for kind, count in (("warm-up", 2), ("measured", 3)):
        events = report.steps(kind)
        assert [event.first for event in events] == list(range(count))[:: 1 if len(events) == count else count]
        assert len(report.times_s(kind)) == count
        shares = []
        for event in events:
            assert tuple(event.phases_s) == PHASES[pass_]
            assert len(event.host_s) == len(event.times_s)
            for i, time in enumerate(event.times_s):
                phases = [times[i] for times in event.phases_s.values()]
                assert min(phases) > 0
                shares.append(sum(phases) / time)
        assert max(shares) <= 1 + 1e-9
        assert max(shares) > 0.5, "the phases are nearly all of a step"


@pytest.mark.parametrize("precision", CPU_PRECISIONS)
@pytest.mark.parametrize("pass_", PASSES)
def test_every_pass_in_every_precision(pass_: Pass, precision: Precision) -> None:
    report = run(small_spec(pass_=pass_, precision=precision))
    assert_sound(report, pass_, "each-step")
    assert report.built.in_force.parameter_dtype == ("bfloat16" if precision == "bf16" else "float32")
    assert report.built.in_force.autocast_dtype == {"bf16-mixed": "bfloat16", "fp16-mixed": "float16"}.get(precision)
    assert report.built.in_force.matmul_precision == "highest"
    assert report.built.in_force.allow_tf32 is None
    assert report.built.in_force.grad_scaler == (precision == "fp16-mixed" and pass_ == "train-step")
    assert (report.built.in_force.optimizer is not None) == (pass_ == "train-step")
    expected = {"fp32": "float32", "fp16-mixed": "float16"}.get(precision, "bfloat16")
    assert report.finished.logits_dtype == expected


@pytest.mark.parametrize("sync", SYNCS)
@pytest.mark.parametrize("arch", ARCHES)
@pytest.mark.parametrize("pass_", PASSES)
def test_every_pass_of_both_models_in_both_sync_modes(pass_: Pass, arch: Arch, sync: Sync) -> None:
    assert_sound(run(small_spec(pass_=pass_, arch=arch, sync=sync)), pass_, sync)


def test_the_model_is_the_one_asked_for() -> None:
    built = run(small_spec(d_model=24, d_ff=40, num_layers=3, num_heads=2, vocab_size=30)).built
    assert built.cell == 7
    assert built.num_params_without_head == 3 * (4 * 24**2 + 3 * 24 * 40 + 2 * 24) + 30 * 24 + 24
    assert built.num_params == built.num_params_without_head + 30 * 24
    assert built.in_force.device_name.startswith("CPU")


def test_steps_are_reported_when_they_are_done() -> None:
    """A step's event comes before the next step starts: each is as old as the one before it."""
    report = run(small_spec(num_layers=6, d_model=64, context_length=64))
    measured = report.steps("measured")
    for earlier, later in itertools.pairwise(measured):
        assert later.at - earlier.at >= later.times_s[0] * 0.9


def test_backward_leaves_its_forward_out() -> None:
    """Only the backward of a window of backward steps is counted, in both sync modes."""
    shape = {"d_model": 128, "context_length": 128, "warmup_steps": 2, "measure_steps": 8}
    for sync in SYNCS:
        report = run(small_spec(pass_="backward", sync=sync, **shape))
        first = next(e.at for e in report.events if isinstance(e, StageChanged) and e.stage == "measuring")
        last = report.steps("measured")[-1].at
        assert sum(report.times_s()) < 0.9 * (last - first)
        shares = [phase / whole for phase, whole in zip(report.phase_s("backward"), report.times_s(), strict=True)]
        assert median(shares) == pytest.approx(1, abs=0.05), "a step that lost its CPU between two marks is no matter"


def test_pipelined_train_steps_fill_their_window() -> None:
    report = run(small_spec(pass_="train-step", sync="pipelined", d_model=64, context_length=64, measure_steps=10))
    (measured,) = report.steps("measured")
    started = next(e.at for e in report.events if isinstance(e, StageChanged) and e.stage == "measuring")
    assert 0.5 * (measured.at - started) < sum(measured.times_s) <= measured.at - started
    assert measured.times_s == pytest.approx([sum(t) for t in zip(*measured.phases_s.values(), strict=True)])


def test_same_seed_same_tokens_and_parameters_which_a_step_moves_alike() -> None:
    spec = small_spec(pass_="train-step")
    workloads = [build(msgspec.structs.replace(spec, seed=seed), torch.device("cpu")) for seed in (3, 3, 4)]
    tokens = [each.batch.inputs for each in workloads]
    before = [each.model.token_embedding.weight.detach().clone() for each in workloads]
    for workload in workloads:
        run_step(workload, spec)
    after = [each.model.token_embedding.weight.detach() for each in workloads]
    for first, again, other in (tokens, before, after):
        assert torch.equal(first, again)
        assert not torch.equal(first, other)
    assert not torch.equal(before[0], after[0]), "the optimizer moves the parameters"


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
    warm, timed = ["building", "ModelBuilt", "warm-up", *["StepsTimed"] * 17], ["StepsTimed"] * 3
    assert report.outline == [*warm, "measuring", *timed, "finishing", "CellFinished"]
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


def test_skipped_optimizer_steps_are_counted_among_those_that_ran(monkeypatch: pytest.MonkeyPatch) -> None:
    # One token: the loss's gradient, scaled by 65536 as at first, is more than float16 can hold.
    spec = small_spec(pass_="train-step", precision="fp16-mixed", context_length=1, batch_size=1, warmup_steps=0)
    automatic = msgspec.structs.replace(spec, steps_auto=0.01, measure_steps=100)
    why, skipped = notices(run_scripted(automatic, [0.05] * 100, monkeypatch))
    assert "stopped after 20 steps" in why
    assert "of 20 optimizer steps were skipped" in skipped


def test_no_warm_up() -> None:
    report = run(small_spec(warmup_steps=0, measure_steps=1))
    assert report.outline == ["building", "ModelBuilt", "measuring", "StepsTimed", "finishing", "CellFinished"]


def test_digests_and_losses_show_that_two_cells_measured_the_same() -> None:
    one, again, other = (run(small_spec(pass_="train-step", seed=seed)).finished for seed in (1, 1, 2))
    assert len(one.losses) == small_spec().measure_steps
    assert (one.tokens_digest, one.weights_digest, one.losses) == (
        again.tokens_digest,
        again.weights_digest,
        again.losses,
    )
    assert one.tokens_digest != other.tokens_digest
    assert one.weights_digest != other.weights_digest
    forward = run(small_spec(pass_="forward", seed=1)).finished
    assert (forward.weights_digest, forward.losses) == (one.weights_digest, ())
    recomputed = run(small_spec(pass_="train-step", seed=1, checkpoint=1)).finished
    assert recomputed.weights_digest == one.weights_digest


def test_a_loss_that_is_not_finite_is_none(folder: Path) -> None:
    source = """
steps = []
def diverging(logits, targets):
    steps.append(logits)
    return logits.mean() * (float("nan") if len(steps) > 6 else 1.0)
"""
    users = UsersFolder(folder)
    own = f"{users.write(source)}:diverging"
    spec = small_spec(pass_="train-step", loss=own, model_path=users.paths, check="off", measure_steps=10)
    end = run(spec).finished
    assert end.status == "ok", end.error
    assert end.losses[0] is not None
    assert end.losses[-1] is None
