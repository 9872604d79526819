"""An entry of a handout's leaderboard among the published ones; what breaks its rules is none."""

import msgspec
import pytest

from cs336_tui.analysis.published import leaderboard, published
from cs336_tui.config.presets import preset
from cs336_tui.config.spec import CellSpec
from cs336_tui.events.audit import Audit, Results
from cs336_tui.export.subjects.leaderboard import broken_rules, leaderboard_tables
from cs336_tui.export.subjects.results import TableError
from tests.session.made import cell, results_of

EIGHT_BILLION, ATTENTION = (
    preset(f"{edition}/leaderboard").sweep.with_devices(("cuda:0",)).cells()[0] for edition in ("2026", "2025")
)
"""The handouts' own cells, on one device."""


def changed(spec: CellSpec, **changes: object) -> dict[str, object]:
    return {name: getattr(spec, name) for name in spec.__struct_fields__} | changes


def test_published_entries_have_sources_and_are_no_reference_points() -> None:
    newest, oldest = leaderboard("2026"), leaderboard("2025")
    assert (len(newest), newest[0].mean_ms, newest[-1].mean_ms) == (42, 3837, 10_000)
    assert [row.mean_ms for row in oldest] == [5.364, 6.778, 11.07, 22.59, 28.45, 80]
    assert [row.board for row in oldest].count("verified") == 5
    assert all(row.source for row in (*newest, *oldest))
    assert not [row for row in published() if row.board]


@pytest.mark.parametrize(
    ("times_ms", "place", "faster"),
    [((3_000.0, 3_100.0), 1, 0), ((5_993.0, 5_993.0), 11, 10), ((20_000.0,) * 2, 43, 42)],
)
def test_an_entry_has_its_place(times_ms: tuple[float, ...], place: int, faster: int) -> None:
    (table,) = leaderboard_tables(results_of(cell([time / 1e3 for time in times_ms], **changed(EIGHT_BILLION))))
    (own,) = (row for row in table.records if row["marked"] == "own")
    assert own["place"] == place
    times = [row["mean_s"] for row in table.records]
    assert [row["place"] for row in table.records] == [times.index(time) + 1 for time in times]
    assert len(table.rows) == 43
    assert [row["mean_s"] for row in table.records] == sorted(row["mean_s"] for row in table.records)
    assert any(f"{faster} of 42 published entries are faster" in note for note in table.footnotes)
    assert [note.partition(":")[0] for note in table.footnotes[:4]] == [
        "published", "to submit", "to submit, what was done", "to submit, assumptions",
    ]  # fmt: skip


def test_each_leaderboard_has_a_table_of_its_own_cells() -> None:
    results = results_of(cell([5.0] * 3, **changed(EIGHT_BILLION)), cell([0.006] * 3, **changed(ATTENTION)))
    assert [table.label for table in leaderboard_tables(results)] == ["leaderboard-2026", "leaderboard-2025"]


@pytest.mark.parametrize(
    ("changes", "broken"),
    [
        ({}, []),
        ({"ranks": 2, "batch_size": 1, "parallel": "fsdp2"}, []),
        ({"attention": "sdpa", "compile": "off", "optimizer": "adamw"}, []),
        ({"ranks": 2, "parallel": "ddp"}, ["batch"]),
        ({"context_length": 128}, ["context"]),
        ({"timer": "step", "precision": "fp32"}, ["precision", "timer"]),
        ({"arch": "gelu-learned", "norm": "layernorm"}, ["arch", "norm"]),
        ({"norm": "my.kernels:rmsnorm"}, []),
        ({"dropout": 0.1, "attention": "naive", "attention_dropout": 0.1}, ["dropout", "attention-dropout"]),
        ({"bias": "on", "weight_tying": "on"}, ["bias", "weight-tying"]),
        ({"warmup_for": None, "warmup_steps": 0, "steps_for": None, "measure_steps": 1}, ["warmup", "steps"]),
        ({"ranks": 2, "batch_size": 1}, ["parallel"]),
    ],
)
def test_what_a_leaderboard_fixes(changes: dict[str, object], broken: list[str]) -> None:
    assert broken_rules(CellSpec(**changed(EIGHT_BILLION, **changes)), "2026") == broken


@pytest.mark.parametrize(
    ("changes", "audit", "caveats"),
    [
        ({}, Audit(results=Results(reference="the reference model")), []),
        ({"check": "off"}, None, ["not shown to equal the reference: --check off"]),
        ({}, Audit(results=Results(unchecked="no room")), ["not shown to equal the reference: no room"]),
        ({"optimizer": "my.own:SGD"}, Audit(results=Results()), ["not shown to be AdamW: my.own:SGD"]),
    ],
)
def test_what_no_check_has_shown_is_said_with_the_entry(
    changes: dict[str, str], audit: Audit | None, caveats: list[str]
) -> None:
    (result,) = results_of(cell([5.0] * 3, **changed(EIGHT_BILLION, **changes)))
    result.cell.finished = msgspec.structs.replace(result.cell.finished, audit=audit)
    (table,) = leaderboard_tables([result])
    found = [note.removeprefix("to submit, caveat: ") for note in table.footnotes if "caveat" in note]
    assert found == caveats


def test_a_tiny_forward_is_no_entry() -> None:
    with pytest.raises(TableError, match="no cell is an entry"):
        leaderboard_tables(results_of(cell([0.1] * 3)))
