"""Cells that have no result stay in the table of their sweep, wherever they ended."""

from collections.abc import Sequence

import msgspec
import pytest
from matplotlib.figure import Figure

from cs336_tui.analysis.fields import FIELDS, varies
from cs336_tui.analysis.merge import results_of
from cs336_tui.analysis.pivot import pivot, suggest
from cs336_tui.config.spec import CellSpec
from cs336_tui.events import events as ev
from cs336_tui.export.figures import passes_by_size
from cs336_tui.export.writeups import LAYOUTS, layout_tables
from cs336_tui.session.state import SessionState
from tests.export.grids import with_in_force
from tests.samples import ENVIRONMENT, START, a_spec, state_of
from tests.session.made import Cell, events_of

ENDS = ("failed", "oom", "killed", "skipped", "queued", "cancelled")
SWEEPS: dict[str, tuple[CellSpec, ...]] = {
    "sizes": tuple(a_spec(d_model=96 * n, size=size) for n, size in enumerate(("small", "medium", "large"), 1)),
    "passes": tuple(a_spec(pass_=name) for name in ("forward", "forward+backward", "train-step")),
    "checkpoint": tuple(a_spec(pass_="train-step", checkpoint=number) for number in (0, 1, 2)),
    "compiled": tuple(
        a_spec(compile=mode, pass_=name) for name in ("forward", "inference") for mode in ("off", "default")
    ),
    "attention": tuple(a_spec(workload="attention", num_layers=1, context_length=64 * n) for n in (1, 2, 4)),
    "own model": tuple(a_spec(model="mine:Model", batch_size=n) for n in (1, 2, 4)),
}


def session(specs: Sequence[CellSpec], ends: str | None) -> SessionState:
    return state_of(session_events(specs, ends))


def session_events(specs: Sequence[CellSpec], ends: str | None) -> list[ev.Event]:
    """A session whose last cell ended so before its model was built; None: it has a result, too."""
    cells = [Cell(spec, (0.1,) * 5) for spec in specs]
    events: list[ev.Event] = list(events_of(*cells))
    if ends is None:
        return events
    last = len(specs) - 1
    kept = [each for each in events if getattr(each, "cell", None) != last or isinstance(each, ev.CellStarted)]
    if ends in ("skipped", "queued"):
        kept = [each for each in kept if getattr(each, "cell", None) != last]
    if ends == "skipped":
        kept.append(ev.CellSkipped(at=START + 99, cell=last, reason="no room"))
    elif ends != "queued":
        kept.append(ev.CellFinished(at=START + 99, cell=last, status=ends, error="no reason", stage="building"))
    return kept


@pytest.mark.parametrize("ends", ENDS)
@pytest.mark.parametrize("sweep", SWEEPS)
def test_one_sweep_makes_as_many_tables_as_if_every_cell_had_a_result(sweep: str, ends: str) -> None:
    whole, broken = (results_of(session(SWEEPS[sweep], how)) for how in (None, ends))
    tried = 0
    for name, layout in LAYOUTS.items():
        try:
            expected = layout.make(whole, None)
        except ValueError:
            continue  # this sweep is not what the layout shows
        found = layout.make(broken, None)
        whole_form, form = ([(table.label, len(table.rows)) for table in tables] for tables in (expected, found))
        assert form == whole_form, name
        assert not any("threads" in table.caption for table in found), name
        tried += 1
    assert tried >= 4


@pytest.mark.parametrize("ends", ENDS)
def test_nothing_that_a_cell_never_told_tells_it_apart(ends: str) -> None:
    results = results_of(session(SWEEPS["sizes"], ends))
    for key in ("threads", "torch", "machine"):
        assert not varies(results, key), FIELDS[key].show(results[-1])
    rows, columns = suggest(results)
    assert "threads" not in (*rows, *columns)
    assert len(pivot(results, rows, columns).figures) == 3


@pytest.mark.parametrize("threads", [8, None])
@pytest.mark.parametrize("ends", ENDS)
def test_a_machine_that_changed_before_it_makes_no_second_table_for_a_cell_without_numbers(
    ends: str, threads: int | None
) -> None:
    other = msgspec.structs.replace(ENVIRONMENT, torch="2.14.0", host="another", threads=threads)
    events = session_events(SWEEPS["sizes"], ends)
    last = next((at for at, each in enumerate(events) if getattr(each, "cell", None) == 2), len(events))
    moved = results_of(state_of([*events[:last], ev.EnvironmentRead(at=START + 90, environment=other), *events[last:]]))
    for name in ("forward-only", "min-max", "raw-steps", "warm-up", "by-mean", "devices"):
        (table,) = layout_tables(moved, name)
        assert len(table.rows) == 3, name
    drawn = passes_by_size(moved)
    drawn.draw(figure := Figure())
    assert len(figure.axes) == 1, "one panel"


def test_threads_that_were_asked_for_are_a_choice_also_of_a_cell_without_numbers() -> None:
    specs = [a_spec(threads=4), a_spec(threads=2)]
    assert len(layout_tables(results_of(session(specs, "oom")), "min-max")) == 2


def test_a_cell_that_was_skipped_says_why_below_the_table() -> None:
    (table,) = layout_tables(results_of(session(SWEEPS["sizes"], "skipped")), "min-max", published=True)
    assert any(note.endswith(": skipped: no room") for note in table.footnotes)


def test_threads_that_a_users_model_set_are_those_of_its_cell_that_failed() -> None:
    events = [
        each
        for each in events_of(*(Cell(spec, (0.1,) * 5) for spec in SWEEPS["own model"]))
        if getattr(each, "cell", None) != 2
    ]
    assert [FIELDS["threads"].show(result) for result in results_of(state_of(events))] == ["32", "32", "32"]
    results = results_of(state_of(with_in_force(events, threads=4)))
    assert [FIELDS["threads"].show(result) for result in results] == ["4"] * 3
    bare = msgspec.structs.replace(ENVIRONMENT, threads=None)
    told: list[ev.Event] = [
        ev.EnvironmentRead(at=START, environment=bare),
        ev.CellsQueued(at=START, first=0, specs=(a_spec(), a_spec(threads=3))),
    ]
    assert [FIELDS["threads"].show(result) for result in results_of(state_of(told))] == ["unknown", "3"]
