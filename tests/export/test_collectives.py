"""The table and the figure of collectives, of times that are known."""

from __future__ import annotations

import csv
import io
import json
from xml.etree import ElementTree

import pytest

from cs336_tui.analysis.collectives import published_curves
from cs336_tui.analysis.merge import Result, merge
from cs336_tui.analysis.published import published
from cs336_tui.config.choices import sweep_from
from cs336_tui.events import events as ev
from cs336_tui.export.figures import by_message, passes_by_size
from cs336_tui.export.record import to_csv, to_json
from cs336_tui.export.reference import reference_tables
from cs336_tui.export.subjects.data_parallel import collective_tables
from cs336_tui.export.subjects.results import TableError, results_table
from cs336_tui.export.writing.drawing import Absent, Drawing
from cs336_tui.session.state import SessionState
from cs336_tui.stats.summaries import summarize
from tests.samples import ENVIRONMENT, HEADER

TIMES_S = {("1MB", 2): 1e-3, ("1MB", 4): 2e-3, ("100MB", 2): 50e-3, ("100MB", 4): 200e-3}


def known(**choices: object) -> tuple[Result, ...]:
    """A session of all-reduces whose steps took `TIMES_S`, and one rank half of that."""
    sweep = sweep_from(
        **{"workload": "collective", "devices": ("cpu",), "sizes": ("100MB", "1MB"), "ranks": (4, 2)} | choices
    )
    state = SessionState()
    state.apply(HEADER)
    state.apply(ev.EnvironmentRead(at=0.0, environment=ENVIRONMENT))
    for number, spec in enumerate(sweep.cells()):
        time_s = TIMES_S[spec.size, spec.ranks]
        state.apply(ev.CellsQueued(at=0.0, first=number, specs=(spec,)))
        state.apply(ev.CellStarted(at=0.0, cell=number))
        ranks = ((time_s,) * 3, *((time_s / 2,) * 3 for _ in range(spec.ranks - 1)))
        steps = ev.StepsTimed(at=1.0, cell=number, kind="measured", first=0, times_s=(time_s,) * 3, rank_times_s=ranks)
        state.apply(steps)
        skew = summarize([time_s / 2] * 3)
        state.apply(ev.CellFinished(at=2.0, cell=number, status="ok", skew=skew))
    return merge([("s", state)])


def test_the_layout_has_sizes_below_each_other_and_ranks_side_by_side():
    (table,) = collective_tables(known(), None)
    assert [column.header for column in table.columns] == [
        "size", "2 ranks (ms)", "4 ranks (ms)", "2 ranks busbw (GB/s)", "4 ranks busbw (GB/s)",
    ]  # fmt: skip
    assert table.texts("size") == ("1MB", "100MB")
    # 1 MB in 1 ms over 2 ranks: 1 GB/s x 2/2; 100 MB in 200 ms over 4: 0.5 GB/s x 6/4.
    assert [record["2 ranks busbw (GB/s)"] for record in table.records] == pytest.approx([1.0, 2.0])
    assert [record["4 ranks busbw (GB/s)"] for record in table.records] == pytest.approx([0.75, 0.75])
    assert [record["4 ranks (ms)"] for record in table.records] == pytest.approx([2.0, 200.0])


def test_the_results_have_skew_and_both_bandwidths():
    table = results_table(known(ranks=(4,)))
    by_size = {record["size"]: record for record in table.records}
    assert by_size["1MB"]["algbw_bytes_per_s"] == pytest.approx(0.5e9)
    assert by_size["1MB"]["busbw_bytes_per_s"] == pytest.approx(0.75e9)
    assert by_size["1MB"]["skew_s"] == pytest.approx(1e-3)
    assert not {"context", "batch", "pass", "tokens_per_s"} & by_size["1MB"].keys()
    assert any("2(n-1)/n" in note for note in table.footnotes)


def test_the_figure_is_of_bandwidth_over_size():
    figure = by_message(known())
    assert isinstance(figure, Drawing)
    text = "".join(ElementTree.fromstring(figure.files()["svg"]).itertext())
    for words in ("busbw (GB/s)", "100MB", "ranks 2", "ranks 4"):
        assert words in text
    assert isinstance(by_message(known(sizes=("1MB",))), Absent)
    assert isinstance(passes_by_size(known()), Absent)


def test_the_figure_has_what_others_published_of_the_same_operation_backend_and_ranks():
    figure = by_message(known())
    assert isinstance(figure, Drawing)
    text = "".join(ElementTree.fromstring(figure.files()["svg"]).itertext())
    assert "published, 2 ranks: CPU of a machine with H100s" in text
    assert "PCIe" not in text  # which is of NCCL


def test_published_busbw_is_that_of_the_published_time():
    by_ranks = {result.spec.ranks: result.spec for result in known()}
    (found,) = published_curves(by_ranks[4], published())
    # 10 MiB in 15.07 ms over 4 ranks, 100 MiB in 58.17 ms, by 6/4
    assert [point.size for point in found.points] == ["1MiB", "10MiB", "100MiB", "1000MiB"]
    assert found.points[1].busbw == pytest.approx(10 * 2**20 / 15.07e-3 * 1.5)
    assert found.points[2].busbw == pytest.approx(100 * 2**20 / 58.17e-3 * 1.5)


def test_tables_set_published_times_beside_ones_own():
    (table,) = reference_tables(known(ranks=(2,), sizes=("1MB",)))
    own, there = table.rows
    assert own[0].startswith("all-reduce · 1MB · fp32 · cpu · 2 ranks · gloo")
    assert (there[1], there[3]) == ("0.57", "1.75")  # 1 ms here, 0.57 ms there
    assert {record["reference_mean_s"] for record in table.records} == {0.57e-3}
    assert {record["pass"] for record in table.records} == {None}
    assert not any("TF32" in note for note in table.footnotes)


def test_data_of_a_collective_have_no_stand_ins_for_what_it_lacks():
    state = known(ranks=(2,), sizes=("1MB",))[0].state
    (run,) = json.loads(to_json(state))["runs"]
    lacking = (
        "pass", "context_length", "batch_size", "d_model", "d_ff", "num_layers", "num_heads", "vocab_size", "edition",
        "arch", "attention", "norm", "optimizer", "loss", "parallel", "batch_is",
    )  # fmt: skip
    assert {name: run["spec"][name] for name in lacking} == dict.fromkeys(lacking)
    held = {"size": "1MB", "collective": "all-reduce", "ranks": 2, "precision": "fp32", "device": "cpu"}
    assert {name: run["spec"][name] for name in held} == held
    assert run["spec"]["workload"] == "collective"
    assert [run[name] for name in ("num_params", "num_params_without_head", "tokens_per_s", "flops_per_s")] == [
        None
    ] * 4
    (row,) = csv.DictReader(io.StringIO(to_csv(state)))
    assert {name: row[name] for name in (*lacking, "num_params", "tokens_per_s")} == dict.fromkeys(
        (*lacking, "num_params", "tokens_per_s"), ""
    )
    assert (row["rank_0_times_s"], row["rank_1_times_s"]) == ("0.001;0.001;0.001", "0.0005;0.0005;0.0005")
    assert float(row["skew_mean_s"]) == pytest.approx(0.5e-3)


def test_notes_of_collectives_speak_of_no_tokens_and_batches():
    notes = " ".join(results_table(known(ranks=(4,))).footnotes)
    assert "slowest rank" in notes
    assert not any(word in notes for word in ("tokens", "batch", "logits", "FLOP"))


def test_a_session_without_collectives_has_no_such_table():
    with pytest.raises(TableError, match="run some with cs336-tui comm"):
        collective_tables((), None)
