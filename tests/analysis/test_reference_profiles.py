"""Published peaks of memory and kernels beside one's own."""

from collections.abc import Iterator
from typing import Any

import msgspec

from cs336_tui.analysis.merge import merge
from cs336_tui.analysis.published import Published, published
from cs336_tui.analysis.reference_profiles import (
    KernelsBeside,
    PeakBeside,
    kernels_beside,
    kernels_said,
    peak_said,
    peaks_beside,
    profiles_said,
)
from cs336_tui.config.spec import CellSpec
from cs336_tui.events.events import CellsPredicted, Event
from cs336_tui.session.state import SessionState
from tests.analysis.test_kernel_cells import a_session, report
from tests.analysis.test_reference import OURS
from tests.made_kernels import a_kernel_report, an_operator_report
from tests.made_memory import a_memory_report
from tests.made_predictions import made_prediction
from tests.samples import START, a_spec, report_events, sized
from tests.session.made import Cell

BIG = a_spec(**sized("2.7B", "2025"), pass_="train-step", context_length=128)
TRAIN = a_spec(pass_="train-step")


def a_point(**changes: Any) -> Published:
    row = Published(
        source="someone", device="A100", edition="2026", size="small", context=128, batch=4, pass_="train-step",
        precision="fp32", warmup=None, steps=None,
    )  # fmt: skip
    return msgspec.structs.replace(row, **changes)


def peaks(state: SessionState, *rows: Published) -> dict[str, PeakBeside]:
    return {each.part: each for each in peaks_beside([state], merge([("one", state)]), rows or None)}


def kernels(state: SessionState, *rows: Published) -> list[KernelsBeside]:
    return list(kernels_beside([state], merge([("one", state)]), rows or None))


def memory(spec: CellSpec, **changes: Any) -> Iterator[Event]:
    return report_events(a_memory_report(spec=spec, **changes), first=900)


def predicted(state: SessionState, spec: CellSpec, **changes: Any) -> SessionState:
    state.apply(CellsPredicted(at=START, predictions=(made_prediction(spec, **changes),)))
    return state


def test_a_measured_peak_stands_beside_the_published_one_of_the_whole_pass() -> None:
    cells = [Cell(TRAIN, [0.1], repeat=n, peak=(39 + n) * 10**9) for n in (1, 2)]
    others = a_point(context=512, peak="70 GB"), a_point(pass_="forward", peak="9 GB")
    (found,) = peaks(a_session(cells=cells), a_point(peak="46 GB"), *others).values()
    assert (found.peak_bytes, found.seen) == (41_000_000_000, "measured")
    assert [match.row.peak for match in found.matches] == ["46 GB"], "of the same pass and context alone"
    assert peak_said(found).here == "small train-step fp32, ctx 128, peak: 41.0 GB here"
    assert peak_said(found).there == (("46.0 GB, here / there 0.89: someone, A100", ""),)


def test_a_memory_report_gives_the_peaks_of_phases() -> None:
    spec = a_spec(pass_="train-step")
    content = a_memory_report(spec=spec)
    spans = {span.phase: span.peak_bytes for span in content.phases}
    state = a_session(*memory(spec), cells=[Cell(spec, [0.1], peak=None)])
    found = peaks(state, *(a_point(peak="46 GB", part=part) for part in ("", "forward", "optimizer")))
    sizes = {"": content.peak_bytes, "forward": spans["forward"], "optimizer": spans["optimizer"]}
    assert {part: each.peak_bytes for part, each in found.items()} == sizes
    assert {each.seen for each in found.values()} == {"memory report"}
    alone = peaks(a_session(*memory(spec)), a_point(peak="46 GB", part="forward"))
    assert alone["forward"].peak_bytes == spans["forward"], "also of a report that no cell is of"


def test_where_nothing_was_recorded_the_prediction_stands_and_says_so() -> None:
    waiting = predicted(a_session(cells=[Cell(BIG, status="oom")]), BIG, forward_peak_bytes=46_500_000_000)
    found = peaks(waiting)
    forward = found["forward"]
    assert (forward.peak_bytes, forward.seen) == (46_500_000_000, "predicted")
    said = peak_said(forward)
    assert said.here == "2.7B train-step fp32, ctx 128, peak in forward: 46.5 GB here (predicted, OOM here)"
    first, second = said.there
    assert first[0].startswith("46.0 GB, here / there 1.01: write-up A (2025), 80 GB data-centre GPU")
    assert second == (
        "46.7 GB, here / there 1.00: public repository EnzoDing-rgb/cs336-assignment2-systems, A800 80GB",
        "edition 2026 there, where it is called xl",
    )


def test_a_part_that_nothing_tells_is_not_made_up() -> None:
    found = peaks(predicted(a_session(cells=[Cell(BIG, status=None)]), BIG, peak_phase="backward"))
    assert (found["optimizer"].peak_bytes, found["optimizer"].seen) == (None, "")
    assert "peak in optimizer: not known here" in peak_said(found["optimizer"]).here


def test_other_precisions_are_said_and_warm_ups_are_not_counted() -> None:
    cells = [Cell(msgspec.structs.replace(TRAIN, warmup_steps=w, precision="bf16-mixed"), [0.1]) for w in (0, 5)]
    (found,) = peaks_beside([], merge([("one", a_session(cells=cells))]), [a_point(peak="46 GB")])
    assert found.matches[0].caveats == ("fp32 there, bf16-mixed here",)


def test_published_kernels_stand_beside_those_of_the_same_part_of_whichever_pass() -> None:
    state = a_session(*report(a_kernel_report(TRAIN)), cells=[Cell(TRAIN, [0.1])])
    rows = (
        a_point(pass_="forward", top_kernel="gemm", top_launches=145, top_percent=46.8),
        a_point(part="forward", top_kernel="sgemm", matmul_percent=80.0),
        a_point(matmul_percent=54.1),
        a_point(context=512, top_kernel="elsewhere"),
    )
    forward, step = kernels(state, *rows)
    assert (forward.part.part, [match.row.top_kernel for match in forward.matches]) == ("forward", ["sgemm", "gemm"])
    assert forward.matches[1].caveats == ("pass forward there",)
    assert (step.part.part, [match.row.matmul_percent for match in step.matches]) == ("step", [54.1])
    said = kernels_said(forward)
    assert said.here.startswith("small train-step fp32, ctx 128, kernels of forward: 68.3 % sm90_xmma_gemm_f32f32_tf32")
    assert said.here.endswith(" in 7 launches; matrix products 75.0 % here")
    assert said.there == (
        ("sgemm; matrix products 80.0 %: someone, A100", ""),
        ("46.8 % gemm in 145 launches: someone, A100", "pass forward there"),
    )
    assert kernels_said(step).there == (("matrix products 54.1 %: someone, A100", ""),)


def test_kernels_that_were_not_profiled_say_so_and_operators_are_called_so() -> None:
    (found,) = kernels(a_session(cells=[Cell(TRAIN, status=None)]), a_point(matmul_percent=54.1))
    assert kernels_said(found).here.endswith("kernels of step: not profiled here")
    on_cpu = a_spec(pass_="forward+backward", device="cpu")
    state = a_session(*report(an_operator_report(on_cpu)))
    (found,) = kernels(state, a_point(pass_="forward+backward", top_kernel="gemm"))
    assert "here (operators by self time)" in kernels_said(found).here
    cells = [Cell(a_spec(warmup_steps=w), [0.1]) for w in (0, 1, 5)]
    warmups = kernels(a_session(cells=cells), a_point(pass_="forward+backward", top_kernel="gemm"))
    assert len(warmups) == 1, "warm-ups of a cell have their kernels once"


def test_every_published_peak_and_kernel_is_found_by_a_cell_of_its_own() -> None:
    for row in published():
        if row.holds("time"):
            continue
        made = {"arch": row.arch, "pass_": row.pass_, "context_length": row.context, "precision": row.precision}
        ways = {"ranks": row.ranks or 1, "parallel": OURS.get(row.parallel, "none")}
        state = a_session(cells=[Cell(a_spec(**sized(row.size, row.edition), **made, **ways), status=None)])
        beside = (*peaks(state).values(), *kernels(state))
        assert row in [match.row for each in beside for match in each.matches]


def test_of_cells_for_which_nothing_is_published_nothing_is_said() -> None:
    state = a_session(cells=[Cell(a_spec(context_length=64), [0.1])])
    assert list(profiles_said([state], merge([("one", state)]))) == []
