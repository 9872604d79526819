"""Pivots: every measured cell in one figure, nothing mixed, every wrong choice a clear line. Cells of several sessions
side by side, and their fields: automatic step counts are told apart by the setting."""

import itertools
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cs336_tui.analysis.fields import (
    FIELDS,
    PivotError,
    in_common,
    select,
    shown_of,
    steps_done,
    values,
    varies,
    warmup_done,
)
from cs336_tui.analysis.merge import Result, ddof_of, measured, merge, pooled
from cs336_tui.analysis.pivot import Figure, pivot, suggest, varying
from cs336_tui.config.spec import PASSES, PRECISIONS, CellSpec
from cs336_tui.stats.summaries import summarize
from tests.attention_cells import attention_spec
from tests.samples import ENVIRONMENT, a_spec, cell_start, session_start, sized, state_of, steps
from tests.session.made import OLD_LAPTOP, OTHER_GPU, Cell, cell, results_of, session_of

GRID = results_of(
    *(
        Cell(a_spec(**sized(size), pass_=pass_), [base * factor, base * factor * 1.1])
        for (size, base), (pass_, factor) in itertools.product(
            (("xl", 0.8), ("small", 0.1), ("medium", 0.3)), (("train-step", 3.0), ("forward", 1.0))
        )
    )
)


def test_a_size_by_pass_table_is_in_natural_order() -> None:
    found = pivot(GRID, ["size"], ["pass"])
    assert found.row_keys == (("small",), ("medium",), ("xl",))
    assert found.column_keys == (("forward",), ("train-step",))
    figure = found.figure(("medium",), ("train-step",))
    assert figure.value == pytest.approx(0.945)
    assert figure.std == pytest.approx(summarize([0.9, 0.99]).std_s)
    assert (figure.n, figure.runs, figure.note, figure.marks) == (2, 1, "", ())
    assert found.fixed["precision"] == "fp32"
    assert found.fixed["machine"] == "NVIDIA H100 80GB HBM3 · gpu-box"
    assert "size" not in found.fixed


@pytest.mark.parametrize(
    ("value", "expected"),
    [("mean", 0.105), ("median", 0.105), ("std", 0.00707107), ("memory", 1e9), ("tokens", 512 / 0.105)],
)
def test_values(value: str, expected: float) -> None:
    figure = pivot(GRID, ["size"], ["pass"], value).figure(("small",), ("forward",))
    assert figure.value == pytest.approx(expected, rel=1e-5)


def test_repeats_are_pooled_into_one_figure_and_a_standard_deviation_needs_two_steps() -> None:
    stds = pivot(results_of(cell([0.1]), cell([0.1, 0.2], pass_="forward")), ["pass"], [], "std")
    assert stds.figure(("forward+backward",), ()) == Figure(n=1, runs=1, note="one step")
    assert stds.figure(("forward",), ()).note == ""
    results = results_of(
        Cell(a_spec(), [0.1, 0.2]), Cell(a_spec(), [0.4, 0.5], repeat=2), Cell(a_spec(), status="failed", repeat=3),
        cell([1.0, 1.0], pass_="forward"),
    )  # fmt: skip
    figure = pivot(results, ["pass"], []).figure(("forward+backward",), ())
    assert figure == Figure(
        value=pytest.approx(0.3), std=summarize([0.1, 0.2, 0.4, 0.5]).std_s, n=4, runs=2, marks=("1 of 3 runs: failed",)
    )


def test_a_speed_up_is_the_baselines_time_over_the_figures() -> None:
    results = results_of(
        cell([0.4, 0.41] * 5), cell([0.1, 0.102] * 5, precision="bf16-mixed"),
        cell([0.8, 0.81], pass_="forward"), cell([0.4, 0.402], pass_="forward", precision="bf16-mixed"),
    )  # fmt: skip
    found = pivot(results, ["pass"], ["precision"], "speedup", {"precision": "fp32"})
    assert found.baseline == {"precision": "fp32"}
    fast = found.figure(("forward+backward",), ("bf16-mixed",))
    assert fast.value == pytest.approx(0.405 / 0.101)
    assert fast.low < fast.value < fast.high
    base = found.figure(("forward",), ("fp32",))
    assert (base.value, base.low, base.is_baseline) == (1.0, None, True)


def test_a_speed_up_over_a_cell_that_did_not_fit_says_so() -> None:
    mixed = {"precision": "bf16-mixed"}
    results = results_of(
        cell(status="oom"), cell([0.1, 0.102], **mixed), cell([0.3] * 10, pass_="forward"),
        cell([0.2] * 10, pass_="forward", **mixed), cell([0.2, 0.2], pass_="backward", **mixed),
    )  # fmt: skip
    found = pivot(results, ["pass"], ["precision"], "speedup", {"precision": "fp32"})
    notes = {key: figure.note for key, figure in found.figures.items()}
    assert notes[("forward+backward",), ("fp32",)] == "OOM"
    assert notes[("forward+backward",), ("bf16-mixed",)] == "baseline OOM"
    assert notes[("backward",), ("bf16-mixed",)] == "no baseline"
    width = found.figure(("forward",), ("bf16-mixed",))
    assert width.low == width.value == width.high == pytest.approx(1.5)


def test_a_baseline_in_another_machine_is_found() -> None:
    laptop = session_of(cell([1.0, 1.1], device="cpu"), cell([0.5, 0.5], device="mps"), environment=OLD_LAPTOP)
    results = merge([("laptop", laptop), ("box", session_of(cell([0.1, 0.1])))])
    found = pivot(results, [], ["device", "machine"], "speedup", {"device": "cpu"})
    on_the_gpu = found.figure((), ("cuda:0", "NVIDIA H100 80GB HBM3 · gpu-box"))
    assert on_the_gpu.value == pytest.approx(10.5)


def test_endings_become_words() -> None:
    statuses = {"forward": "oom", "backward": "failed", "inference": "killed", "train-step": "cancelled"}
    results = results_of(
        *(cell([0.1], status=status, pass_=pass_) for pass_, status in statuses.items()), cell(status=None)
    )
    found = pivot(results, ["pass"], [])
    assert {row: figure.note for (row, _), figure in found.figures.items()} == {
        ("forward",): "OOM", ("backward",): "failed", ("inference",): "killed", ("train-step",): "unfinished",
        ("forward+backward",): "not run",
    }  # fmt: skip
    assert all(figure.value is None for figure in found.figures.values())


def test_memory_that_no_allocator_counts_is_marked() -> None:
    results = results_of(Cell(a_spec(device="cpu"), [0.1], peak=None), cell([0.1]))
    found = pivot(results, ["device"], [], "memory")
    resident = found.figures[("cpu",), ()]
    assert resident == Figure(value=2_000_000_000, n=1, runs=1, marks=("peak RSS of the whole process",))
    assert found.figures[("cuda:0",), ()].marks == ()


def test_a_cell_that_ran_on_another_gpu_is_marked() -> None:
    results = results_of(cell([0.1]), cell([0.1], pass_="forward"), Cell(a_spec(pass_="backward"), [0.2], on=OTHER_GPU))
    found = pivot(results, ["pass"], [])
    assert found.figures[("backward",), ()].marks == ("machine NVIDIA A100 · other-box",)
    assert found.figures[("forward",), ()].marks == ()
    assert found.notes == ("machine differs: NVIDIA A100 · other-box, NVIDIA H100 80GB HBM3 · gpu-box",)
    assert "machine" not in found.fixed


def test_one_machine_a_device_needs_no_mark_but_is_said() -> None:
    laptop, box = session_of(cell([1.0], device="cpu"), environment=OLD_LAPTOP), session_of(cell([0.1]))
    found = pivot(merge([("laptop", laptop), ("box", box)]), ["device"], [])
    assert all(figure.marks == () for figure in found.figures.values())
    assert "torch differs: cpu: 2.9.0; cuda:0: 2.13.0" in found.notes


def test_the_same_cell_in_two_sessions_is_not_mixed() -> None:
    results = merge([(title, session_of(cell([0.1]), cell([0.2], pass_="forward"))) for title in ("a", "b")])
    with pytest.raises(PivotError, match=r"session \(a, b\) varies but is in neither .* add session"):
        pivot(results, ["pass"], [])
    found = pivot(results, ["pass"], ["session"])
    assert found.column_keys == (("a",), ("b",))


def test_editions_that_share_a_name_are_not_mixed() -> None:
    results = results_of(cell([0.1], **sized("xl", "2025")), cell([0.2], **sized("xl", "2026")))
    with pytest.raises(PivotError, match="edition"):
        pivot(results, [], [])
    assert pivot(results, ["size"][:0], ["edition"]).column_keys == (("2025",), ("2026",))


@pytest.mark.parametrize(
    ("rows", "columns", "value", "baseline", "said"),
    [
        (["size"], ["precision"], "mean", None,
         "pivot on precision: every cell has fp32; fields that vary: size, d_model, d_ff"),
        (["width"], ["pass"], "mean", None, "field width: did you mean within"),
        (["size"], ["size"], "mean", None, "pivot on size: named twice"),
        (["size"], [], "mean", None,
         "pass (forward, train-step) varies but is in neither rows nor columns, which would mix different cells: "
         "add pass, or keep one, such as pass=forward"),
        (["size"], ["pass"], "mode", None,
         "value mode: expected one of mean, std, median, speedup, memory, tokens, activations"),
        (["size"], ["pass"], "speedup", None, "speed-up needs a baseline, such as size=small"),
        (["size"], ["pass"], "mean", {"size": "small"}, "a baseline is for value speedup, not for mean"),
        (["size"], ["pass"], "speedup", {"size": "10B"}, "baseline size=10B: size here is one of small, medium, xl"),
        (["size"], ["pass"], "speedup", {"precision": "fp32"},
         "baseline precision=fp32: precision is in neither rows nor columns, such as size=small"),
        (["size"], ["pass"], "speedup", {"size": "small,medium"}, "baseline size=small,medium: fits several"),
    ],
)  # fmt: skip
def test_a_wrong_choice_is_one_clear_line(rows: Any, columns: Any, value: str, baseline: Any, said: str) -> None:
    with pytest.raises(PivotError) as error:
        pivot(GRID, rows, columns, value, baseline)
    assert str(error.value).startswith(said)
    assert "\n" not in str(error.value)


def test_a_baseline_that_fits_several_says_what_to_add() -> None:
    a = session_of(cell([0.1, 0.1]), cell([0.3, 0.3], pass_="forward"))
    b, c = session_of(cell([0.2, 0.2])), session_of(cell([0.2, 0.2], pass_="forward"))
    results = merge([("a", a), ("b", b), ("c", c)])
    with pytest.raises(PivotError, match="fits several; add session, one of a, b"):
        pivot(results, ["pass"], ["session"], "speedup", {"pass": "forward+backward"})


def test_one_figure_needs_no_rows_and_no_columns() -> None:
    results = results_of(cell([0.1, 0.3]))
    assert suggest(results) == ((), ())
    found = pivot(results, [], [])
    assert found.row_keys == found.column_keys == ((),)
    assert found.figures[(), ()].value == pytest.approx(0.2)
    for results in ((), results_of(cell(status=None))):
        with pytest.raises(PivotError, match="nothing to pivot"):
            pivot(results, [], [])


@pytest.mark.parametrize(
    ("cells", "expected"),
    [
        ([{}, {"pass_": "forward"}, sized("medium")], (("size",), ("pass",))),
        ([{}, {"precision": "bf16-mixed"}], (("precision",), ())),
        ([{}, {"precision": "tf32"}, {"warmup_steps": 0}], (("precision",), ("warmup",))),
        ([{}, {"pass_": "forward"}, {"context_length": 256}, {"seed": 3}], (("pass", "seed"), ("context",))),
    ],
)
def test_a_suggestion_prefers_size_by_pass(cells: list[dict[str, Any]], expected: Any) -> None:
    assert suggest(results_of(*(cell([0.1], **changes) for changes in cells))) == expected


def test_select_keeps_what_was_asked_for() -> None:
    assert {result.spec.size for result in select(GRID, {"size": "small,xl"})} == {"small", "xl"}
    assert len(select(GRID, {"size": "SMALL", "pass": "forward", "device": "cuda"})) == 1
    assert select(GRID, {}) == GRID
    with pytest.raises(PivotError, match=r"^context=64: context here is 128$"):
        select(GRID, {"context": "64"})
    with pytest.raises(PivotError, match="field contexts: did you mean context"):
        select(GRID, {"contexts": "64"})
    with pytest.raises(PivotError, match="pass here is forward"):
        select(select(GRID, {"pass": "forward"}), {"pass": "train-step"})


def test_every_field_shows_and_orders_every_result() -> None:
    results = (*GRID, *results_of(cell(status=None, size="custom", device="cpu", threads=3), environment=OLD_LAPTOP))
    for key, field in FIELDS.items():
        assert all(isinstance(field.show(result), str) for result in results)
        assert values(results, key)
    assert values(results, "torch") == ("2.9.0", "2.13.0")
    assert "size" in varying(results)


specs = st.builds(
    lambda size, edition, **more: a_spec(**sized(size, edition), **more),
    size=st.sampled_from(["small", "medium", "xl"]),
    edition=st.sampled_from(["2025", "2026"]),
    pass_=st.sampled_from(PASSES),
    precision=st.sampled_from(PRECISIONS),
    device=st.sampled_from(["cpu", "cuda:0"]),
    context_length=st.sampled_from([64, 128]),
    warmup_steps=st.integers(0, 1),
)
made_cells = st.builds(
    Cell,
    spec=specs,
    measured_s=st.lists(st.floats(0.001, 1), min_size=1, max_size=3),
    status=st.sampled_from(["ok", "ok", "ok", "oom", "failed", None]),
    repeat=st.integers(1, 3),
    on=st.sampled_from([None, ENVIRONMENT, OTHER_GPU]),
)
many_results = st.lists(
    st.lists(made_cells, min_size=1, max_size=5).map(lambda cells: session_of(*cells)), min_size=1, max_size=3
).map(lambda states: merge([("s", state) for state in states]))


@given(many_results)
def test_what_is_suggested_can_be_pivoted_and_holds_every_measured_cell_once(results: tuple[Result, ...]) -> None:
    if not any(result.cell.is_over for result in results):
        return
    rows, columns = suggest(results)
    found = pivot(results, rows, columns)
    assert sum(figure.runs for figure in found.figures.values()) == len(measured(results))
    steps = [time_s for result in measured(results) for time_s in result.cell.step_times_s]
    total = sum(figure.value * figure.n for figure in found.figures.values() if figure.value is not None)
    assert total == pytest.approx(sum(steps))
    assert set(found.figures) <= set(itertools.product(found.row_keys, found.column_keys))


def test_a_cell_that_is_in_several_sessions_is_there_as_often_and_told_apart() -> None:
    titles = ["run", "run", "run (2)", "run"]
    states = [session_of(cell([0.1 * number, 0.2])) for number in range(4)]
    found = merge(list(zip(titles, states, strict=True)))
    assert [(result.source, result.cell.step_times_s[0]) for result in found] == [(n, 0.1 * n) for n in range(4)]
    assert len({result.spec for result in found}) == 1
    names = [result.session for result in found]
    assert (names[0], "run (2)" in names, len(set(names))) == ("run", True, 4)


def test_repeats_and_cells_without_a_result_are_kept() -> None:
    ended = {"oom": "OOM", "failed": "failed", "killed": "killed", "cancelled": "unfinished", None: "not run"}
    lost = (cell([0.1, 0.2], status=status) for status in ended)
    found = merge([("one", session_of(Cell(a_spec(), [0.1]), Cell(a_spec(), [0.2], repeat=2), *lost))])
    assert [result.cell.repeat for result in found] == [1, 2, 1, 1, 1, 1, 1]
    assert [result.ending for result in found] == ["", "", *ended.values()]
    assert measured(found) == found[:2]


def test_pooled_repeats_are_one_summary_of_all_steps() -> None:
    found = merge([("one", session_of(Cell(a_spec(), [0.1, 0.2]), Cell(a_spec(), [0.3, 0.5], repeat=2)))])
    assert pooled(found, 0) == summarize([0.1, 0.2, 0.3, 0.5], 0)
    assert pooled(found[:1], 1) == summarize([0.1, 0.2])
    assert pooled([], 1) is None


def test_ddof_is_the_sessions_when_they_agree() -> None:
    numpys, sample = session_of(cell([0.1]), ddof=0), session_of(cell([0.1]))
    assert ddof_of(merge([("a", numpys)])) == 0
    assert ddof_of(merge([("a", numpys), ("b", sample)])) == 1


def automatic(**changes: object) -> CellSpec:
    fields = {"warmup_auto": True, "warmup_steps": 100, "steps_auto": 0.01, "measure_steps": 1000}
    return a_spec(**(fields | changes))


def test_what_was_really_done_is_shown_once_it_is_known() -> None:
    begun = [*session_start([automatic()]), *cell_start(0)]
    (waiting,) = state_of(session_start([automatic()])).cells.values()
    (building,) = state_of(begun).cells.values()
    (measuring,) = state_of([*begun, *steps(0, (0.1,) * 12, (0.1,) * 3)]).cells.values()
    assert [warmup_done(cell) for cell in (waiting, building, measuring)] == ["auto", "auto", "auto (12)"]
    assert [steps_done(cell) for cell in (waiting, building, measuring)] == ["auto", "auto", "auto"]
    (over,) = results_of(Cell(automatic(), (0.1,) * 140, (0.1,) * 12))
    assert FIELDS["warmup"].show_done(over) == warmup_done(over.cell) == "auto (12)"
    assert FIELDS["steps"].show_done(over) == steps_done(over.cell) == "auto (140)"


def test_fixed_counts_are_shown_as_numbers() -> None:
    (result,) = results_of(Cell(a_spec(), (0.1,) * 4, (0.1,) * 2))
    for key, shown in (("warmup", "2"), ("steps", "4")):
        assert FIELDS[key].show(result) == FIELDS[key].show_done(result) == shown_of(result.spec, key) == shown


def test_other_ceilings_and_widths_are_other_settings() -> None:
    assert shown_of(automatic(), "warmup") == "auto"
    assert shown_of(automatic(warmup_steps=50), "warmup") == "auto:50"
    assert shown_of(automatic(measure_steps=200, steps_auto=0.02), "steps") == "auto:200 2%"


def test_automatic_cells_are_picked_and_put_together_by_their_setting() -> None:
    """Two runs of an automatic cell are repeats, however many steps each came to; fixed ones come first."""
    results = results_of(
        Cell(automatic(), (0.1,) * 40, (0.1,) * 12),
        Cell(automatic(), (0.3,) * 20, (0.1,) * 15, repeat=2),
        Cell(automatic(warmup_steps=5, warmup_auto=False), (0.2,) * 20, (0.1,) * 5),
    )
    assert values(results, "warmup") == ("5", "auto")
    assert [result.cell.cell for result in select(results, {"warmup": "auto"})] == [0, 1]
    table = pivot(results, ["warm-up"], [])
    fixed, auto = (table.figures[(shown,), ()] for shown in ("5", "auto"))
    assert (fixed.n, auto.n, auto.runs) == (20, 60, 2)


def test_attention_alone_has_no_vocabulary_edition_or_architecture() -> None:
    both = results_of(Cell(a_spec(pass_="forward"), [0.1]), Cell(attention_spec(), [0.1]))
    of_models = ("edition", "arch", "vocab")
    assert not any(varies(both, key) for key in of_models)
    assert {in_common(both[1:], key) for key in of_models} == {""}
    assert in_common(both, "vocab") == "10000 (language-model)"
