"""Kernels of all cells: parts of a step as profiled and as timed, against sums made by hand."""

from collections.abc import Iterator, Mapping, Sequence
from itertools import count
from typing import Any

import msgspec
import pytest

from cs336_tui.analysis.kernel_cells import CellPart, kernel_cells, profiled, step_parts
from cs336_tui.analysis.kernels import rows
from cs336_tui.analysis.merge import merge
from cs336_tui.config.spec import CellSpec, recorded_spec
from cs336_tui.events.events import Event, ReportFinished, ReportStarted, StageChanged, StepsTimed
from cs336_tui.events.kernel_report import KernelGroup, KernelReport, KernelSummary
from cs336_tui.session.state import SessionState
from tests.made_kernels import ADAM, ADD, GEMM, SMALL_GEMM, SOFTMAX, STEP, a_group, a_kernel_report, an_operator_report
from tests.samples import START, a_spec, cell_end, cell_start, state_of
from tests.session.made import OLD_LAPTOP, Cell, cell, events_of

TRAIN = a_spec(pass_="train-step")
PHASES_S = {
    "zero_grad": (0.0001, 0.0001), "forward": (0.0003, 0.0005), "loss": (0.00001, 0.00001),
    "backward": (0.0006, 0.0008), "optimizer": (0.0001, 0.0003),
}  # fmt: skip


def timed(number: int, phases_s: Mapping[str, Sequence[float]]) -> Iterator[Event]:
    """A cell that was measured with these phases, whose sums are its steps."""
    at = START + 10 * number
    yield from cell_start(number)
    yield StageChanged(at=at, cell=number, stage="measuring")
    times = tuple(map(sum, zip(*phases_s.values(), strict=True)))
    phases = {name: tuple(times_s) for name, times_s in phases_s.items()}
    yield StepsTimed(at=at, cell=number, kind="measured", first=0, times_s=times, phases_s=phases)
    yield cell_end(number)


def report(content: KernelReport | None, spec: CellSpec | None = None, **how: Any) -> Iterator[Event]:
    number = next(_NUMBERS)
    yield ReportStarted(at=START, report=number, kind="kernels", spec=content.spec if content else spec)
    yield ReportFinished(at=START, report=number, status="ok" if content else "oom", content=content, **how)


_NUMBERS = count()


def parts_of(*states: SessionState) -> tuple[CellPart, ...]:
    return kernel_cells(states, merge([("one", state) for state in states]))


def a_session(*events: Event, cells: Sequence[Cell] = (), **more: Any) -> SessionState:
    return state_of([*events_of(*cells, **more), *events])


def train_state() -> SessionState:
    waiting = Cell(TRAIN, status=None)
    return a_session(*timed(0, PHASES_S), *report(a_kernel_report(TRAIN)), cells=[waiting])


def test_a_training_step_has_three_parts_profiled_beside_timed() -> None:
    forward, both, step = parts_of(train_state())
    assert [part.part for part in (forward, both, step)] == ["forward", "forward+backward", "step"]
    for part, kernels_us, mean_s in (
        (forward, 4 + 15.7 + 18.3 + 91.5 + 18.5 + 12 + 14 + 11 + 13 + 3 + 29 + 83 + 9.1 + 52, 0.0004),
        (both, 835.5 - 110.2, 0.00111),
        (step, 835.5, 0.00141),
    ):
        assert part.profiled.kernel_ns == round(kernels_us * 1000)
        assert part.timed.mean_s == pytest.approx(mean_s)
        assert part.kernel_difference_s == pytest.approx(kernels_us / 1e6 - mean_s)
        assert part.of_timed(part.kernel_difference_s) == pytest.approx(kernels_us / 1e6 / mean_s - 1)
    assert forward.profiled.span_ns == a_kernel_report().phase_spans_ns["forward"]
    assert forward.span_difference_s == pytest.approx(forward.profiled.span_ns / 1e9 - 0.0004)
    assert both.profiled.span_ns is both.span_difference_s is None, "what lies between two phases is not known"
    assert step.profiled.span_ns == a_kernel_report().span_ns
    assert forward.timed.n == 2
    assert forward.timed.std_s == pytest.approx(0.0001 * 2**0.5)


def test_top_kernel_and_shares_are_of_the_part() -> None:
    forward, both, step = (part.profiled for part in parts_of(train_state()))
    assert (forward.top.name, forward.top.instances) == (GEMM, 3 + 1 + 2 + 1)
    assert forward.top.total_ns == 255_500
    assert forward.top.share == pytest.approx(255.5 / 374.1)
    assert forward.matmul_share == pytest.approx((255.5 + 25) / 374.1)
    assert forward.softmax_share == pytest.approx(11 / 374.1)
    assert forward.optimizer_share == 0
    assert (both.top.instances, both.softmax_share) == (13, pytest.approx(25 / 725.3))
    assert step.optimizer_share == pytest.approx(110.2 / 835.5)
    assert step.matmul_share == pytest.approx((525.5 + 25 + 50.2) / 835.5)


def test_the_same_top_kernel_or_another_by_its_full_name() -> None:
    assert [part.same_as_forward for part in parts_of(train_state())] == [None, True, True]
    other = GEMM.replace("tn_n", "nt_n")
    groups = (
        a_group(GEMM, "matrix multiply", "forward", "head", (3.0,)),
        a_group(other, "matrix multiply", "backward", "head", (2.0, 2.0), backward=True),
    )
    both = a_spec(pass_="forward+backward")
    state = a_session(*report(a_kernel_report(both, groups=groups)), cells=[Cell(both, [0.1])])
    forward, whole = parts_of(state)
    assert (forward.part, whole.part, whole.same_as_forward) == ("forward", "forward+backward", False)
    assert whole.profiled.top.name == other


@pytest.mark.parametrize("profile", [a_kernel_report(), an_operator_report()])
def test_the_top_kernel_is_the_first_row_of_the_kernel_table(profile: KernelReport) -> None:
    for _, phases in step_parts(tuple(profile.phase_spans_ns)):
        assert profiled(profile, phases).top == rows(profile, phase=phases)[0]


@pytest.mark.parametrize(
    ("phases", "names"),
    [
        (("forward",), ["forward"]),
        (("backward",), ["backward"]),
        (("forward", "loss"), ["forward", "forward+loss"]),
        (("forward", "loss", "backward"), ["forward", "forward+backward"]),
        (("zero_grad", "forward", "loss", "backward", "optimizer"), ["forward", "forward+backward", "step"]),
        (("forward", "optimizer"), ["forward", "step"]),
        ((), ["step"]),
    ],
)
def test_parts_of_a_step_are_those_that_its_phases_have(phases: tuple[str, ...], names: list[str]) -> None:
    assert [name for name, _ in step_parts(phases)] == names


def test_a_cell_without_a_profile_is_there_with_what_was_timed() -> None:
    long = cell(status=None, context_length=256, pass_="forward")
    cells = [long, cell([0.1], pass_="forward"), Cell(TRAIN, status="oom")]
    reports = [*report(a_kernel_report(cells[1].spec)), *report(None, TRAIN, error="no room")]
    state = a_session(*timed(0, {"forward": (0.2, 0.2)}), *reports, cells=cells)
    found = [(p.result.spec.context_length, p.result.spec.pass_, p.part, p.profile) for p in parts_of(state)]
    assert [each for each in found if each[0] == 256] == [(256, "forward", "forward", "")]
    without = next(part for part in parts_of(state) if part.result.spec.context_length == 256)
    assert without.profiled is None
    assert without.timed.mean_s == pytest.approx(0.2)
    assert [each[2:] for each in found if each[1] == "train-step"] == [
        ("forward", "oom"), ("forward+backward", "oom"), ("step", "oom"),
    ]  # fmt: skip


def test_a_profile_without_a_cell_is_there_without_a_timing() -> None:
    state = a_session(*report(a_kernel_report(TRAIN)), *report(an_operator_report()), cells=[cell([0.1])])
    found = parts_of(state)
    assert {part.result.spec.pass_ for part in found if part.profiled and part.timed is None} == {
        "train-step", "forward+backward",
    }  # fmt: skip
    assert len([part for part in found if part.profiled is None]) == 2
    chosen = kernel_cells([state], (), lambda spec: spec.pass_ == "train-step")
    assert [part.part for part in chosen] == ["forward", "forward+backward", "step"]
    assert parts_of(a_session(cells=[cell([0.1])])) == parts_of() == (), "without a profile"


def test_a_profile_of_another_session_counts_on_the_same_device_alone() -> None:
    timings = a_session(cells=[Cell(TRAIN, [0.001, 0.002])], session="a")
    same = msgspec.structs.replace(a_kernel_report(TRAIN), torch="2.13.0")
    profiles = a_session(*report(same), session="b")
    found = parts_of(timings, profiles)
    assert [part.part for part in found] == ["forward", "forward+backward", "step"]
    assert all(part.profiled for part in found)
    assert found[-1].timed.mean_s == pytest.approx(0.0015)
    elsewhere = a_session(cells=[Cell(TRAIN, [0.001])], session="c", environment=OLD_LAPTOP)
    assert len(parts_of(elsewhere, profiles)) == 2 + 3, "of the cell what it timed, of the profile all its parts"


def test_repeats_of_a_cell_are_one_and_warm_ups_are_apart() -> None:
    spec, cold = a_spec(pass_="forward"), a_spec(pass_="forward", warmup_steps=0)
    cells = [Cell(spec, [0.1]), Cell(spec, [0.3], repeat=2), Cell(cold, [0.9])]
    groups = tuple(group for group in STEP if group.phase == "forward")
    state = a_session(*report(a_kernel_report(spec, groups=groups)), cells=cells)
    found = parts_of(state)
    assert [(part.result.spec.warmup_steps, part.timed and part.timed.mean_s) for part in found] == [
        (0, pytest.approx(0.9)), (2, pytest.approx(0.2)),
    ]  # fmt: skip
    assert all(part.profiled for part in found), "a profile is of both: it is taken after a warm-up of its own"


def test_cells_come_in_their_natural_order() -> None:
    cells = [cell([0.1], context_length=c, pass_=p) for c in (1024, 128) for p in ("train-step", "forward")]
    state = a_session(*report(a_kernel_report(cells[0].spec)), cells=cells)
    order = dict.fromkeys((part.result.spec.context_length, part.result.spec.pass_) for part in parts_of(state))
    assert list(order) == [(128, "forward"), (128, "train-step"), (1024, "forward"), (1024, "train-step")]


def test_softmax_is_that_of_attention_by_its_range_by_kind_or_not_known() -> None:
    loss = a_group("void cunn_SoftMaxForward<float>()", "softmax", "forward", "loss", (5.0,))
    named = (a_group(ADD, "elementwise", "forward", "softmax", (3.0,)), loss)
    assert profiled(a_kernel_report(groups=named)).softmax_share == pytest.approx(3 / 8), "written out, by its range"
    nameless = (a_group(SOFTMAX, "softmax", "forward", "", (2.0,)), loss)
    assert profiled(a_kernel_report(groups=nameless)).softmax_share == pytest.approx(2 / 7), "by kind, not the loss's"
    fused = (a_group("flash_fwd_kernel", "other", "forward", "attention core", (2.0,)), loss)
    assert profiled(a_kernel_report(groups=fused)).softmax_share is None
    kernel = "void pytorch_flash::flash_fwd_kernel<pytorch_flash::Flash_fwd_kernel_traits<64, 128>>()"
    recorded = (a_group(kernel, "other", "", "", (2.0,)), a_group(GEMM, "matrix multiply", "", "", (2.0,)))
    assert profiled(a_kernel_report(groups=recorded)).softmax_share is None, "by the name of its kernel alone"


def test_the_optimizer_is_all_that_its_phase_launches() -> None:
    groups = (
        a_group(SMALL_GEMM, "matrix multiply", "forward", "head", (6.0,)),
        a_group(ADD, "elementwise", "optimizer", "optimizer", (2.0,)),
        a_group(ADAM, "optimizer", "optimizer", "optimizer", (1.0,)),
        a_group("Memset", "copy", "zero_grad", "zero_grad", (1.0,)),
    )
    assert profiled(a_kernel_report(groups=groups)).optimizer_share == pytest.approx(0.4)
    none = profiled(a_kernel_report(groups=()))
    assert (none.kernel_ns, none.top, none.matmul_share) == (0, None, 0.0)


def test_what_others_recorded_is_named_by_its_phases_or_as_a_recording() -> None:
    spec = recorded_spec("a.json.gz", "cuda:0")
    unnamed = (a_group(GEMM, "matrix multiply", "", "", (3.0, 4.0)), a_group(ADD, "elementwise", "", "", (2.0,)))
    (part,) = parts_of(a_session(*report(a_kernel_report(spec, groups=unnamed, phase_spans_ns={"": 9_000}))))
    assert (part.part, part.timed) == ("recording", None)
    assert (part.profiled.kernel_ns, part.profiled.top and part.profiled.top.instances) == (9_000, 2)
    named = parts_of(a_session(*report(a_kernel_report(spec))))
    assert [each.part for each in named] == ["forward", "forward+backward", "recording"]
    snapshot = Cell(recorded_spec("a.pickle", "cuda:0"), status=None)
    state = a_session(*report(a_kernel_report(TRAIN)), cells=[snapshot])
    assert {part.result.spec.recording for part in parts_of(state)} == {""}, "a snapshot has no kernels to show"


def test_totals_without_single_launches_count() -> None:
    summary = KernelSummary(instances=145, total_ns=46_800)
    groups = (
        KernelGroup(GEMM, "matrix multiply", "", "", False, (), summary=summary),
        KernelGroup(ADD, "elementwise", "", "", False, (), summary=KernelSummary(instances=3, total_ns=53_200)),
        KernelGroup(GEMM, "matrix multiply", "", "", False, (), summary=KernelSummary(instances=5, total_ns=10_000)),
    )
    found = profiled(a_kernel_report(groups=groups, total_ns=110_000, launches=153, span_ns=0))
    assert (found.kernel_ns, found.instances, found.span_ns) == (110_000, 153, None)
    assert (found.top.name, found.top.instances, found.top.total_ns) == (GEMM, 150, 56_800)
    assert found.matmul_share == pytest.approx(56.8 / 110)
