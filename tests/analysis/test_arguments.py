"""Arguments of a user's own code in tables: each is a field of pivots, filters and baselines."""

from typing import Any

import pytest

from cs336_tui.analysis.fields import FIELDS, PivotError, select, varies
from cs336_tui.analysis.judgement import Judgement
from cs336_tui.analysis.merge import Result
from cs336_tui.analysis.pivot import pivot, suggest, varying
from cs336_tui.events import events as ev
from cs336_tui.export.figures import heat_map
from cs336_tui.export.subjects.results import results_table
from cs336_tui.export.writing.drawing import Absent, Drawing
from cs336_tui.export.writing.verdicts import judgement_of
from cs336_tui.session.state import fold
from cs336_tui.tui.tabs.compare_pages import PivotChoice, pivot_page
from tests.analysis.judging import FLAT, evidence
from tests.samples import a_spec, cell_end, cell_start, session_start, state_of, steps, summary_of
from tests.session.made import Cell, cell, results_of

OWN = {"attention": "mine:flash"}


def tried(m: str, n: str, times_s: list[float], **more: Any) -> Cell:
    return cell(times_s, attention_args=(("BLOCK_M", m), ("BLOCK_N", n)), **OWN, **more)


def grid(*more: Cell) -> tuple[Result, ...]:
    """Times of 10 ms for each unit of BLOCK_M / 16, and 1 ms for each of BLOCK_N / 16."""
    cells = [tried(str(m), str(n), [m / 1600 + n / 16000] * 3) for m in (16, 128) for n in (32, 64)]
    return results_of(*cells, *more)


def test_each_argument_is_a_field_in_the_order_of_its_numbers() -> None:
    assert varying(grid()) == ("attention-arg.BLOCK_M", "attention-arg.BLOCK_N")
    rows, columns = suggest(grid())
    found = pivot(grid(), rows, columns)
    assert found.row_keys == (("16",), ("128",))
    assert found.column_keys == (("32",), ("64",))
    figure = found.figure(("128",), ("64",))
    assert figure is not None
    assert figure.value == pytest.approx(0.084)


def test_arguments_that_vary_must_be_named_one_by_one_or_together() -> None:
    with pytest.raises(PivotError, match=r"BLOCK_N .32, 64. varies but is in neither rows nor columns"):
        pivot(grid(), ["attention-arg.BLOCK_M"], [])
    together = pivot(grid(), ["attention-args"], [])
    assert together.row_keys[0] == ("BLOCK_M=128, BLOCK_N=32",)
    (one,) = select(grid(), {"attention-arg.BLOCK_M": "128", "attention-arg.BLOCK_N": "64"})
    assert FIELDS["attention-args"].show(one) == "BLOCK_M=128, BLOCK_N=64"
    with pytest.raises(KeyError):
        FIELDS["attention.BLOCK_M"]


def test_the_ratio_to_another_attention_needs_none_of_its_arguments() -> None:
    results = grid(cell([0.021] * 2 + [0.0211], attention="sdpa"))
    assert varies(results, "attention")
    assert not varies(grid(cell([0.02], attention="sdpa"))[4:], "attention-args")
    named = ["attention", "attention-arg.BLOCK_M"], ["attention-arg.BLOCK_N"]
    found = pivot(results, *named, "speedup", {"attention": "sdpa"})
    ratio = found.figure(("mine:flash", "128"), ("64",))
    assert ratio is not None
    assert ratio.value == pytest.approx(0.02103 / 0.084, rel=1e-3)
    base = found.figure(("sdpa", "none"), ("none",))
    assert base is not None
    assert base.is_baseline


def test_a_cell_that_failed_is_a_row_with_its_arguments() -> None:
    table = results_table(grid(tried("512", "64", [], status="failed")))
    assert [(row["attention-args"], row["status"]) for row in table.records][-1] == (
        "BLOCK_M=512, BLOCK_N=64",
        "failed",
    )


def test_a_heat_map_has_each_crossing_and_why_one_has_no_value() -> None:
    results = grid(tried("512", "64", [], status="failed"))
    found = heat_map(pivot(results, ["attention-arg.BLOCK_M"], ["attention-arg.BLOCK_N"]))
    assert isinstance(found, Drawing)
    svg = found.files(["svg"])["svg"].decode()
    assert all(f">{text}<" in svg for text in ("12.00", "84.00", "failed", "BLOCK_M", "BLOCK_N", "512"))
    failed = pivot(results_of(tried("1", "1", [], status="failed"), tried("2", "2", [], status="failed")), *_NAMED)
    assert heat_map(failed) == Absent("heat-map", "no crossing has a value")


_NAMED = ["attention-arg.BLOCK_M"], ["attention-arg.BLOCK_N"]


def test_the_screen_shades_what_is_fast_the_most() -> None:
    page = pivot_page(PivotChoice(rows=tuple(_NAMED[0]), columns=tuple(_NAMED[1])), grid(), 100)
    lines = ["".join(span.text for span in row) for row in page.rows]
    by_row = {line.split()[0]: line for line in lines if line.strip()}
    assert "█" in by_row["16"]
    assert "█" not in by_row["128"]
    assert "░" in by_row["128"]


def chose(chosen: str, time_s: float | None = None) -> ev.Autotuned:
    times_s = {} if time_s is None else {chosen: time_s}
    return ev.Autotuned(by="triton", kernel="attn_fwd", key="128", chosen=chosen, times_s=times_s)


def judged_cells(runs: list[tuple[tuple[ev.Autotuned, ...], ...]]) -> list[Judgement]:
    """The judgements of repeats of a cell with these choices in each rank."""
    spec = a_spec(device="cpu", measure_steps=len(FLAT))
    state = state_of(session_start([spec] * len(runs)))
    for number, choices in enumerate(runs):
        end = cell_end(number, autotuned=choices, summary=summary_of(FLAT))
        fold([*cell_start(number), *steps(number, (), FLAT), end], state)
    return [found for each in state.cells.values() if (found := judgement_of(each, state))]


def test_repeats_whose_autotuner_chose_otherwise_are_told_with_their_times() -> None:
    cells = judged_cells([((chose("BLOCK_M: 64", 0.002),),), ((chose("BLOCK_M: 128"),),)])
    for each in cells:
        holds, text = evidence(each, "autotuned-differently")
        assert holds is True
        assert text.startswith("attn_fwd: BLOCK_M: 64 (cell 1 at 2.000 ms, a step ")
        assert "; BLOCK_M: 128 (cell 2, a step " in text
        (check,) = (check for check in each.checks if check.name == "autotuned-differently")
        assert check.advice == "pin it: leave one triton.Config in the configs of its triton.autotune"


def test_ranks_and_repeats_that_chose_alike_are_no_doubt() -> None:
    differ = judged_cells([((chose("A"),), (chose("B"),))])
    assert evidence(differ[0], "autotuned-differently")[0] is True
    assert "A (cell 1 rank 0" in evidence(differ[0], "autotuned-differently")[1]
    alike = judged_cells([((chose("A"),),), ((chose("A"),),)])
    assert evidence(alike[1], "autotuned-differently") == (False, "1 choice of autotuners, alike in 2 runs")
    assert "chosen by autotuners: attn_fwd (128): A" in alike[0].notes


def test_two_kernels_of_one_name_in_a_run_are_compared_between_runs_alone() -> None:
    forward, backward = (
        ev.Autotuned(by="inductor", kernel="triton_poi_fused_add_0", chosen=chosen) for chosen in ("A", "B")
    )
    alike = judged_cells([((forward, backward),), ((backward, forward),)])
    assert evidence(alike[0], "autotuned-differently") == (False, "1 choice of autotuners, alike in 2 runs")
    differ = judged_cells([((forward, backward),), ((backward, backward),)])
    assert "triton_poi_fused_add_0: A and B (cell 1" in evidence(differ[0], "autotuned-differently")[1]
